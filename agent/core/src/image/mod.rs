//! Images: their names, what is known of one, and how the transfer of one goes.

mod info;
pub mod name;
pub mod transfer;

pub use info::{ImageConfig, ImageInfo};
