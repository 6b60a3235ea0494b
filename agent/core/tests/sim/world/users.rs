//! Ids of pods with user namespaces of their own.

use berth_core::{
    id::{PodUid, SandboxId},
    oci::ContainerPlan,
    record::PodRecord,
    spec::{Pod, UserMode},
    users::HostIds,
};

use super::World;

impl World {
    /// The network namespace of a sandbox is made, owned by a user namespace of these ids.
    pub(super) fn netns_made(&mut self, pod: &PodUid, sandbox: &SandboxId, ids: Option<HostIds>) {
        let Some(ids) = ids else { return };
        // The record of a pod that has ended may name ids that it has left: nothing is there that has them.
        let has_some = |record: &&PodRecord| record.terminal.is_none() || self.has_anything_of(&record.uid);
        let others = self.records.values().filter(|record| record.uid != *pod).filter(has_some);
        let shared = others.filter(|record| record.ids.is_some_and(|of| overlap(of, ids)));
        let shared: Vec<String> = shared.map(|record| record.uid.to_string()).collect();
        if !shared.is_empty() {
            self.violate(format!("{pod}: has ids of {shared:?}"));
        }
        self.ids.insert(sandbox.clone(), ids);
    }

    fn has_anything_of(&self, pod: &PodUid) -> bool {
        self.volumes.iter().any(|(of, _)| of == pod)
            || self.snapshots.values().chain(self.netns.values()).any(|of| of == pod)
            || self.sandboxes.values().any(|sandbox| sandbox.pod == *pod)
    }

    /// What is made in a sandbox is made for the ids of its network namespace, and a pod that is to have some has.
    pub(super) fn check_ids(&mut self, pod: &Pod, sandbox: &SandboxId, ids: Option<HostIds>) {
        let (made, uid) = (self.ids.get(sandbox).copied(), &pod.uid);
        if made != ids {
            self.violate(format!("{uid}: ids {ids:?} in a sandbox of {made:?}"));
        }
        if ids.is_some() != (pod.users == UserMode::Pod) {
            self.violate(format!("{uid}: ids {ids:?} in a pod of {:?}", pod.users));
        }
    }
}

/// The ids that a container is to run with.
pub(super) fn of_plan(plan: &ContainerPlan) -> Option<HostIds> {
    let linux = plan.spec.linux().as_ref()?;
    let map = linux.uid_mappings().as_ref()?.first()?;
    Some(HostIds { first: map.host_id(), count: map.size() })
}

fn overlap(one: HostIds, other: HostIds) -> bool {
    one.first < other.first + other.count && other.first < one.first + one.count
}
