//! Images: their names, and what is known of one.

mod info;
pub mod name;

pub use info::{ImageConfig, ImageInfo};
