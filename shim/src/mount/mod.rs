//! Root file systems: the mounts of a creation request, and their end.
//!
//! The plan is berth-shim-core's. Here it is carried out, by these rules:
//! * A place is a descriptor, opened beneath the bundle without following links, since what lies there may be an image's.
//! * Mounts that only serve later ones are made on a tmpfs of the bundle's own and leave with it as soon as the root file
//!   system stands: an overlay or a bind mount keeps what it is made of by itself. So the root file system is all that
//!   ever has to be unmounted, and with it go its loop devices.
//! * Whatever fails, and whoever dies, what is mounted is in one of two places of the bundle.

mod activation;
mod error;
mod held;
mod image;
mod loopback;
mod perform;
mod place;
mod tool;
mod unmount;

pub(crate) use activation::mount_all;
pub(crate) use error::MountError;
pub(crate) use unmount::{unmount_all, unmount_bundle};
