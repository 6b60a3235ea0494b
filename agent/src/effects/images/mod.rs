//! The image port: what is on the node, pulls, layers of containers and what images bring along.

mod auth;
mod credentials;
mod follow;
mod forget;
mod hosts;
pub(super) mod image_root;
pub(super) mod image_volumes;
pub(super) mod inspect;
mod lease;
mod listed;
mod progress;
pub(super) mod pull;
mod pulled;
pub(super) mod rootfs;
mod stream;
pub(super) mod unpack;

pub use follow::follow_images;
pub use lease::end_unused;

use super::{failure, files, host, kinds, layers, leases};
