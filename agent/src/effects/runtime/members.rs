//! Containers of sandboxes that this agent has made: what a removal has to look at. Containerd finds the containers of a sandbox
//! only by reading all that it has.
//!
//! Of a sandbox that an earlier agent made nothing is known here: what that agent asked for last may have been written after this
//! one read what there is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_core::id::{ContainerId, SandboxId};

/// Containers by sandbox. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct SandboxMembers(Arc<Mutex<BTreeMap<SandboxId, BTreeSet<ContainerId>>>>);

impl SandboxMembers {
    /// A sandbox was made of which nothing was there before.
    pub(super) fn begin(&self, sandbox: &SandboxId) {
        self.table().entry(sandbox.clone()).or_default();
    }

    /// A container is about to be recorded.
    pub(super) fn add(&self, sandbox: &SandboxId, container: &ContainerId) {
        if let Some(members) = self.table().get_mut(sandbox) {
            members.insert(container.clone());
        }
    }

    /// The record of a container was found and removed.
    pub(super) fn remove(&self, sandbox: &SandboxId, container: &ContainerId) {
        if let Some(members) = self.table().get_mut(sandbox) {
            members.remove(container);
        }
    }

    /// What may be left in a sandbox, which is then forgotten; `None` when containerd has to be asked.
    pub(super) fn take(&self, sandbox: &SandboxId) -> Option<BTreeSet<ContainerId>> {
        self.table().remove(sandbox)
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<SandboxId, BTreeSet<ContainerId>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containerd_is_asked_for_what_this_agent_did_not_see_from_the_beginning() {
        let members = SandboxMembers::default();
        let [own, earlier] = ["own", "earlier"].map(SandboxId::from_known);
        let [gone, left] = ["gone", "left"].map(ContainerId::from_known);
        members.begin(&own);
        for sandbox in [&own, &earlier] {
            members.add(sandbox, &gone);
            members.add(sandbox, &left);
            members.remove(sandbox, &gone);
        }
        // Found again by another try.
        members.begin(&own);
        assert_eq!(members.take(&own), Some([left].into()));
        assert_eq!(members.take(&own), None, "a removal that failed halfway");
        assert_eq!(members.take(&earlier), None);
    }

    #[test]
    fn a_sandbox_that_was_emptied_has_nothing_to_be_asked_for() {
        let members = SandboxMembers::default();
        let (sandbox, container) = (SandboxId::from_known("s"), ContainerId::from_known("c"));
        members.begin(&sandbox);
        assert_eq!(members.take(&sandbox), Some(BTreeSet::new()));
        members.begin(&sandbox);
        members.add(&sandbox, &container);
        members.remove(&sandbox, &container);
        assert_eq!(members.take(&sandbox), Some(BTreeSet::new()));
    }
}
