//! Images: their names, what is known of one, pulls that pods share.

mod info;
pub mod name;
pub(crate) mod pulls;

pub use info::{ImageConfig, ImageInfo};
