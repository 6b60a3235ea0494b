//! Containerd and the shims: connections, and what they say about the pods.
//!
//! ```text
//!   watch     one task: connected? ─▶ RuntimeDown / observe() ─▶ RuntimeUp, and containerd's events as hints
//!   shims     one task per sandbox: State, then Events ─▶ SandboxReport
//!   containerd  calls with a deadline, for the executors of effects
//! ```

mod containerd;
pub mod labels;
mod observe;
pub mod probe;
mod shims;
mod strays;
mod watch;

pub use containerd::{CallError, Cause, ConnectError, Containerd, Service};
pub use observe::{Found, ObserveError, observe};
pub use shims::Shims;
pub(crate) use shims::observed_process;
pub use strays::strays;
pub use watch::{Watch, connect};
