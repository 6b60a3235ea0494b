//! What is done about the network beside the pods: which leftovers of an earlier life are removed, and when what is looked at.

use std::{collections::BTreeSet, time::Duration};

use crate::id::SandboxId;

/// How often a network that was not ready is looked at again, beside every change of its configuration.
const NOT_READY_EVERY: Duration = Duration::from_secs(10);

/// How often a network that was ready is asked whether it still is. Containerd's CRI asks with every status of the
/// kubelet, every 10 s; a plugin that says no also fails ADD, so a minute only delays the condition.
const READY_EVERY: Duration = Duration::from_secs(60);

/// How long pods wait until it is known whether they can be wired. So long a kubelet takes a runtime that says nothing for one that has
/// begun (`maxWaitForContainerRuntime` of `pkg/kubelet/kubelet.go`); it then begins no pod at all, since containerd's answer waits for the
/// plugins' STATUS. STATUS only informs, and keeps nobody from ADD (CNI 1.1).
pub const UNHEARD_AFTER: Duration = Duration::from_secs(30);

/// How soon what could not be collected is tried again: plugins may not be installed yet when the agent starts, and a busy
/// network may be free a moment later.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// Everything that bears the mark of this agent, by sandbox. Nothing else is ever removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marked {
    /// Of which there is the mark of a network namespace.
    pub namespaces: BTreeSet<SandboxId>,
    /// Of which there is our own record of an attachment.
    pub attachments: BTreeSet<SandboxId>,
}

/// Sandboxes of which something is left and that nobody knows: neither a pod's record nor the runtime. Those of records
/// belong to their pods; those of the runtime are removed with the rest of what is there.
#[must_use]
pub fn leftovers(marked: &Marked, known: &BTreeSet<SandboxId>) -> BTreeSet<SandboxId> {
    marked.namespaces.union(&marked.attachments).filter(|sandbox| !known.contains(sandbox)).cloned().collect()
}

/// When to look at the network again.
#[must_use]
pub fn look_after(is_ready: bool) -> Duration {
    if is_ready { READY_EVERY } else { NOT_READY_EVERY }
}

/// What came of a collection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// Leftovers that could not be removed.
    pub left: usize,
    /// The network was in use, and its plugins were not told.
    pub busy: bool,
}

/// When to collect again.
#[must_use]
pub fn collect_after(collected: Collected, period: Duration) -> Duration {
    match collected {
        Collected { left: 0, busy: false } => period,
        Collected { .. } => period.min(RETRY_AFTER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[&str]) -> BTreeSet<SandboxId> {
        ids.iter().map(|id| SandboxId::from_known(*id)).collect()
    }

    #[test]
    fn only_what_is_marked_and_unknown_is_left_over() {
        for (namespaces, attachments, known, expected) in [
            (&["a"][..], &["a"][..], &["a"][..], &[][..]),
            (&["a"], &["a"], &[], &["a"]),
            // Killed between the namespace and the attachment.
            (&["a"], &[], &[], &["a"]),
            // The machine was off: marks of namespaces are gone, leases are not.
            (&[], &["a"], &[], &["a"]),
            (&["a", "b"], &["b", "c"], &["b"], &["a", "c"]),
            // Nothing of what is known without a mark is anybody's to remove.
            (&[], &[], &["a", "b"], &[]),
        ] {
            let marked = Marked { namespaces: set(namespaces), attachments: set(attachments) };
            assert_eq!(leftovers(&marked, &set(known)), set(expected), "{marked:?} {known:?}");
        }
    }

    #[test]
    fn what_failed_is_tried_again_soon() {
        let (hour, second) = (Duration::from_secs(3600), Duration::from_secs(1));
        for (left, busy, period, expected) in [
            (0, false, hour, hour),
            (1, false, hour, RETRY_AFTER),
            (0, true, hour, RETRY_AFTER),
            (1, true, second, second),
        ] {
            assert_eq!(collect_after(Collected { left, busy }, period), expected, "{left} {busy} {period:?}");
        }
        assert!(look_after(false) < look_after(true));
    }
}
