//! What is on the node under the UID of a pod that nobody knows, and whether it is there.

use berth_core::{
    id::{Attempt, ContainerId, ContainerName, PodUid, SandboxId, VolumeName},
    observation::ObservedTask,
    spec::QosClass,
    time::Now,
};

use super::{Container, Given, Sandbox, World};

/// The only sandbox of such a pod.
const FIRST: Attempt = 0;

impl World {
    /// What an agent made whose records are gone: a pod that runs.
    pub(crate) fn stray(&mut self, uid: &PodUid, now: Now) -> SandboxId {
        let (sandbox, name) = (SandboxId::of(uid, FIRST), ContainerName::new("main"));
        let id = ContainerId::of(uid, &name, FIRST);
        let shim = Sandbox { pod: uid.clone(), attempt: FIRST, is_alive: true, is_recorded: true };
        let container = Container {
            pod: uid.clone(),
            name,
            attempt: FIRST,
            hash: 1,
            sandbox: sandbox.clone(),
            task: ObservedTask::Running { pid: 200, started_at: now.wall },
            given: Given::default(),
        };
        self.stray_files(uid);
        self.netns.insert(sandbox.clone(), uid.clone());
        self.networks.insert(sandbox.clone(), uid.clone());
        self.sandboxes.insert(sandbox.clone(), shim);
        self.snapshots.insert(id.clone(), uid.clone());
        self.containers.insert(id, container);
        sandbox
    }

    /// Files and a cgroup alone. Only an agent that begins finds them.
    pub(crate) fn stray_files(&mut self, uid: &PodUid) {
        self.dirs.insert(uid.clone());
        self.cgroups.insert(uid.clone(), QosClass::Burstable);
        self.volumes.insert((uid.clone(), VolumeName::new("data")));
    }

    /// UIDs under which there is something.
    pub(crate) fn uids(&self) -> impl Iterator<Item = &PodUid> {
        let files =
            self.dirs.iter().chain(self.cgroups.keys()).chain(self.volumes.iter().map(|(uid, _)| uid));
        let network = self.netns.values().chain(self.networks.values());
        let sandboxes = self.sandboxes.values().map(|one| &one.pod);
        let containers = self.containers.values().map(|one| &one.pod).chain(self.snapshots.values());
        files
            .chain(network)
            .chain(sandboxes)
            .chain(containers)
            .chain(self.records.keys())
            .chain(self.ends.keys())
    }
}
