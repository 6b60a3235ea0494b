//! Points at which the agent can be made to die, so that tests can show that a death at any of them leaves nothing
//! behind (invariant 6). The label comes from `BERTH_ABORT_AT`; without it, reaching a point costs one comparison.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::effects::KINDS;

/// Points within effects, after something was made that a restart must find.
const INNER: &[&str] = &[
    "sandbox.store-created",
    "sandbox.created",
    "sandbox.started",
    "container.files-written",
    "container.record-created",
    "container.task-created",
    "container.task-started",
    "container.task-deleted",
    "container.snapshot-removed",
    "volume.directory-made",
    "volumes.unmounted",
    "persist.before",
    "persist.after",
];

/// Where to die. Nowhere by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failpoint(Option<String>);

impl Failpoint {
    /// Dies at `label`, which is one of [`labels`].
    #[must_use]
    pub fn at(label: Option<String>) -> Self {
        Self(label)
    }

    /// Dies here when `label` was asked for.
    pub fn reach(&self, label: &str) {
        debug_assert!(labels().any(|known| known == label), "{label} is not in the list");
        if self.0.as_deref() == Some(label) {
            tracing::warn!(label, "dying on request");
            // As a power cut would: no destructor, no handler. SIGKILL cannot fail on oneself.
            let _cannot_fail = kill(Pid::this(), Signal::SIGKILL);
        }
    }
}

/// Every label there is: `<effect>.before` and `<effect>.after` for each kind of effect, and the points within them.
pub fn labels() -> impl Iterator<Item = String> {
    let edges = KINDS.iter().flat_map(|kind| [format!("{kind}.before"), format!("{kind}.after")]);
    edges.chain(INNER.iter().map(|&label| label.to_owned()))
}
