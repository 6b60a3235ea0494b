//! The decisions of a Berth node, with no effect of their own.
//!
//! `Node` is a machine: the shell gives it an [`Event`](event::Event) and the time, it answers with
//! [`Effect`](effect::Effect)s, and every outcome of an effect comes back as an event. Nothing here reads a clock, a
//! file, a socket or a random number, so a run can be replayed from its events.
//!
//! ```text
//!   desired pods ─┐
//!   outcomes ─────┼─▶ Node::handle(now, Event) ─▶ per pod: plan(desired, actual, now) ─▶ Node::poll_effect()
//!   shim events ──┤                                                                └───▶ Node::poll_timeout()
//!   observation ──┘
//! ```
//!
//! [`cluster`] has machines beside it: what the API server is told of the pods and the node, and when.
#![forbid(unsafe_code)]
#![deny(clippy::wildcard_enum_match_arm, missing_docs)]

pub mod cgroup;
pub mod cluster;
pub mod config;
pub mod derived;
pub mod effect;
pub mod event;
pub mod failure;
#[cfg(test)]
mod fixtures;
pub mod flaws;
pub mod glob;
pub mod id;
pub mod image;
pub mod metrics;
pub mod node;
pub mod observation;
pub mod oci;
mod ops;
pub mod paths;
pub mod pod;
pub mod record;
pub mod selinux;
pub mod server;
pub mod short;
pub mod spec;
pub mod stats;
pub mod status;
pub mod time;
pub mod users;
