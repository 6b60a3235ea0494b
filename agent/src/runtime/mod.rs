//! Containerd and the shims: connections, and what they say about the pods.
//!
//! ```text
//!   watch     one task: connected? ─▶ RuntimeDown / observe() ─▶ RuntimeUp, and containerd's events as hints
//!   shims     one task per sandbox: State, then Events ─▶ SandboxReport
//!   grouped   containers under shims of others, whose ends containerd tells
//!   containerd  calls with a deadline, for the executors of effects
//! ```

mod containerd;
mod exec;
mod exits;
#[cfg(test)]
pub(crate) mod fake;
mod features;
mod flaws;
mod grouped;
pub mod labels;
mod layers;
mod observe;
mod on_time;
mod orphans;
pub mod probe;
mod shims;
mod snapshotter;
mod spec;
mod watch;

pub use containerd::{CallError, Cause, ConnectError, Containerd, Service};
pub use exec::{Exec, ExecError, Specs};
pub use features::{Features, RuntimeFeatures, Unasked};
pub use flaws::tell as tell_flaws;
pub use grouped::GroupedTasks;
pub use layers::remove_left;
pub use observe::{ObserveError, ObservedNode, observe};
pub use on_time::on_time;
pub use orphans::seen;
pub use shims::{Answer, Shims};
pub use snapshotter::{REMAP_IDS, layers_dir};
pub use spec::recorded_spec;
pub use watch::{Watch, connect};
