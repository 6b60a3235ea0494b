//! The decisions of Berth's containerd shim, as one deterministic machine.
//!
//! Everything that happens to a shim becomes an [`Event`]; [`Machine::handle`] turns it into [`Effect`]s, which the
//! shell performs in order. The machine does no I/O, reads no clock and starts nothing, so every order of events can
//! be replayed in a test.
//!
//! Invariants, each held by the simulation in `tests/sim`:
//! * every request is answered exactly once, unless its connection goes away first;
//! * per task, events come as created < started < exited < deleted, and the exits of its execs before its own;
//! * a container is not deleted, started or saved while another of these is under way;
//! * nothing is done about a thing that clients were not told of, and no member outlives a sandbox that was stopped;
//! * an exit is persisted, then published, then answered;
//! * an exit that overtakes the report of its own start is an ordinary event, and is never lost.
#![forbid(unsafe_code)]
#![deny(clippy::wildcard_enum_match_arm, missing_docs)]

mod effect;
mod event;
mod exec;
mod feed;
mod id;
mod kills;
pub mod log;
mod machine;
pub mod mount;
pub mod namespace;
mod reply;
mod sandbox;
mod task;

pub use effect::{Action, Effect, Notice, Scope};
pub use event::{Event, ExecPurpose, Now, OpId, Origin, Process, ReqId, Request};
pub use feed::{FEED_EVENTS_MAX, FeedEvent, FeedItem};
pub use id::{Id, IdError};
pub use kills::Kills;
pub use machine::Machine;
pub use reply::{
    Code, Exit, Failure, ProcessView, Reply, SandboxState, SandboxView, Status, TaskView, Truth,
};
