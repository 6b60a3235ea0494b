//! Sessions with a process or a port of a pod, as far as the node decides: what of a pod is meant, and what a request must be
//! that becomes one. Their protocols are in `berth-stream`.
//!
//! Source: `pkg/kubelet/server/server.go`.

mod attach;
mod target;
mod upgrade;

pub use super::Refusal;
pub use attach::AtInputEnd;
pub use target::{Asked, container_id, has_sandbox, meant_pod};
pub use upgrade::{Upgrade, UpgradeRequest};
