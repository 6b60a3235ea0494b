//! Ports: one file for each, with what can be asked of it, what it answers, and what follows from the answer.

mod backing;
pub mod cgroup;
mod end;
mod files;
pub mod hook;
pub mod image;
pub mod look;
pub mod network;
pub mod probe;
pub mod pull_backoff;
pub(in crate::pod) mod record;
pub mod removal;
pub mod resize;
pub mod rootfs;
mod run_image;
pub mod sandbox;
pub mod signal;
pub mod start;
pub mod start_failure;
pub mod status;
pub mod termination;
pub mod volume;
