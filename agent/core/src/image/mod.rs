//! Images: their names, what is known of one, who may have it, which platforms they are for, how the transfer of one goes, and which are removed.

pub mod access;
pub mod collection;
mod info;
pub mod name;
pub mod platform;
pub mod transfer;
mod wanted;

pub use info::{ImageConfig, ImageInfo};
pub use wanted::WantedImage;
