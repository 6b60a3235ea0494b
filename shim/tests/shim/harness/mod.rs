//! The harness of the conformance suite, with what this shim offers besides the contract: its own service and its logs.

mod log;
mod pod;
mod raw;
mod runtime;
mod shim;
mod task;

pub(crate) use berth_shim_conformance::harness::{
    Bootstrap, Conn, Spec, Streams, WITHIN, World, copy_program, is_gone, isolate, make_netns, process,
    until, write_program,
};
pub(crate) use log::LogLine;
pub(crate) use pod::{Pod, SANDBOX_CONFIG, create, options, start};
pub(crate) use raw::{Raw, address_of, assert_refused, finish, run, served_by};
pub(crate) use runtime::{Runtime, trial};
pub(crate) use shim::Shim;
pub(crate) use task::Task;
