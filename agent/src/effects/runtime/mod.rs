//! Sandboxes, containers and signals.
//!
//! ```text
//!   sandbox, container ─▶ port ─▶ berth    our own shim: the sandbox API, and its own service
//!          │                  └─▶ grouped  shims of others, which have no sandbox of their own
//!          └─▶ task, records   what both do alike in containerd
//! ```

mod berth;
pub(super) mod container;
mod grouped;
mod handlers;
pub(super) mod kill;
pub(super) mod look;
mod members;
mod port;
pub(super) mod prepare;
mod records;
pub(super) mod resize;
pub(super) mod sandbox;
pub(super) mod signal;
mod task;
mod text;

pub use handlers::SandboxHandlers;
pub use members::SandboxMembers;
