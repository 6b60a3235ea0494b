//! The wire between containerd, the agent and a shim: messages, and the frames that carry them.
//!
//! Messages are generated from `proto/` and checked in; `tests/regenerate.rs` holds them to the definitions. [`ttrpc`]
//! is the transport as a state machine without I/O, which the shim drives from its poll loop; `client` (a feature)
//! drives it from Tokio. [`flow`] is what the ends of a stream with a process keep.

mod any;
#[cfg(feature = "client")]
pub mod client;
pub mod flow;
mod generated;
pub mod ttrpc;
mod version;

pub use any::{AnyError, pack, unpack};
pub use generated::berth::shim::v1 as shim;
pub use generated::containerd::events;
pub use generated::containerd::runc::v1 as runc;
pub use generated::containerd::runtime::{bootstrap::v1 as bootstrap, sandbox::v1 as sandbox};
pub use generated::containerd::services::events::ttrpc::v1 as event_service;
pub use generated::containerd::task::v2 as task;
pub use generated::containerd::types;
pub use generated::containerd::v1::types as process;
pub use generated::grpc::health::v1 as health;
pub use generated::io::containerd::cgroups::{v1 as cgroup1, v2 as cgroup2};
pub use generated::runtimeoptions::v1 as runtimeoptions;
pub use prost_types::{Any, Timestamp};
pub use version::{EXEC_BY_COMMAND, FLOW_CONTROL, SHIM_PROTOCOL, shim_protocol};

/// The second name of [`task::task_service`]: the same methods and messages, asked for by containerd 2.0 and later.
pub const TASK_V3: &str = "containerd.task.v3.Task";

/// `google.protobuf.Empty`.
pub type Empty = ();
