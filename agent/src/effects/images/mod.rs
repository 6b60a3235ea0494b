//! The image port: what is on the node, pulls, layers of containers, what images bring along, and the end of those that nothing uses.

mod auth;
pub(super) mod collection;
mod credentials;
mod documents;
mod follow;
mod forget;
mod hosts;
pub(super) mod image_root;
pub(super) mod image_volumes;
pub(super) mod inspect;
mod lease;
mod listed;
pub(super) mod mounted;
mod progress;
pub(super) mod pull;
mod pull_records;
mod pulled;
pub(super) mod rootfs;
pub(super) mod snapshot;
mod stored;
mod stream;
pub(super) mod unpack;
mod used;
pub(super) mod volume;

pub use follow::follow_images;
pub use lease::end_unused;
pub use volume::end_left;

use super::{failure, files, host, kinds, layers, leases};
