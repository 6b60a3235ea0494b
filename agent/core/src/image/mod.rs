//! Images: their names, what is known of one, and how the transfer of one goes.

mod info;
pub mod name;
pub mod transfer;
mod wanted;

pub use info::{ImageConfig, ImageInfo};
pub use wanted::WantedImage;
