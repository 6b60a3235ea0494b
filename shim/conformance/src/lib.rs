//! Conformance of containerd shims: what containerd and its clients rely on, shown on any shim's program.
//!
//! [`harness`] is a small containerd that uses only the public contract: the task service v2 and v3, the sandbox service,
//! the events service, `start`, `delete`, `-info`. [`fake_runtime`] is an OCI runtime without containers, for what is
//! about the shim alone.

#![expect(
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    clippy::print_stderr,
    reason = "a failure here is the failure of the test"
)]

mod cases;
pub mod deviations;
pub mod fake_runtime;
pub mod harness;
mod proofs;
mod suite;

pub use suite::{Attempts, Candidate, SandboxService, announce, proofs, run, trials};
