//! The cgroup tree of pods, in either version of the hierarchy. Names and values come from `berth_core::cgroup`; here
//! they are made, written and removed: by hand, and with the systemd driver by systemd first.

mod level;
mod systemd;
mod tree;
mod unified;
mod walk;

pub use systemd::{Session, Systemd, SystemdError, WireError};
pub use tree::{Tree, TreeError};
