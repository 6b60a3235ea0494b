//! A small containerd: bundles, the events service, `shim start`, and calls.

mod conn;
mod containerd;
mod leaks;
mod pod;
mod runtime;
mod shim;
mod spec;
mod task;
mod wait;
mod world;

pub(crate) use conn::Conn;
pub(crate) use pod::{Pod, SANDBOX_CONFIG, create, make_netns, options, start, status};
pub(crate) use runtime::Runtime;
pub(crate) use shim::{Bootstrap, Shim};
pub(crate) use spec::{Spec, process};
pub(crate) use task::{LogLine, Streams, Task};
pub(crate) use wait::until;
pub(crate) use world::{World, isolate, trial};
