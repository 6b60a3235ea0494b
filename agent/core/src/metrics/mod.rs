//! What is measured, as far as it has to be decided.

mod image_size;
mod starts;

pub use image_size::image_size;
pub use starts::{Started, Starts};
