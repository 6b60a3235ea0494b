//! Control groups of containers, version 1 and 2: finding, counting, killing and watching.

mod find;
mod members;
mod remove;
mod stats;
mod watch;

pub(crate) use find::Cgroup;
pub(crate) use members::{dissolve, kill_group, move_tree, signal_process};
pub(crate) use watch::OomWatch;
