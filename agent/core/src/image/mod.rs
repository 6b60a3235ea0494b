//! Images: their names, what is known of one, how the transfer of one goes, and which are removed.

pub mod collection;
mod info;
pub mod name;
pub mod transfer;
mod wanted;

pub use info::{ImageConfig, ImageInfo};
pub use wanted::WantedImage;
