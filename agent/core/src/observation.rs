//! What containerd and the shims say of sandboxes, containers and tasks.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::{
    id::{Attempt, ContainerId, ContainerName, PodUid, SandboxId},
    time::Mono,
};

/// The runtime as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observation {
    /// When the reading began: what was begun after that may be missing.
    pub asked_at: Mono,
    /// Every sandbox of ours.
    pub sandboxes: Vec<ObservedSandbox>,
    /// Every container of ours.
    pub containers: Vec<ObservedContainer>,
    /// Sandboxes of which containerd has no record, for somebody removed it, though they are up or their shim is there and does
    /// not answer.
    pub unrecorded: BTreeSet<SandboxId>,
    /// Sandboxes whose shim is there and does not answer, or could not be asked: nothing is known of what is in them.
    pub silent: BTreeSet<SandboxId>,
}

impl Observation {
    /// Pods of which there is a sandbox or a container.
    #[must_use]
    pub fn pods(&self) -> BTreeSet<PodUid> {
        let sandboxes = self.sandboxes.iter().map(|sandbox| &sandbox.pod);
        let containers = self.containers.iter().map(|container| &container.pod);
        sandboxes.chain(containers).cloned().collect()
    }

    /// Sandboxes that there are, with a record of containerd or without one.
    #[must_use]
    pub fn sandbox_ids(&self) -> BTreeSet<SandboxId> {
        let recorded = self.sandboxes.iter().map(|sandbox| &sandbox.id);
        recorded.chain(&self.unrecorded).cloned().collect()
    }
}

/// A sandbox record of containerd and what its shim says.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedSandbox {
    /// Its id.
    pub id: SandboxId,
    /// UID of its pod.
    pub pod: PodUid,
    /// Which of the pod's sandboxes.
    pub attempt: Attempt,
    /// Whether its shim answers and says that it is ready. When it does not and tasks in it are `Unknown`, the shim may
    /// only be slow: the sandbox is looked at again before anything is taken for lost.
    pub ready: bool,
    /// Process id of the shim; 0 when it is not ready.
    pub pid: u32,
}

/// A container record of containerd and what the shim says of its task.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedContainer {
    /// Its id.
    pub id: ContainerId,
    /// UID of its pod.
    pub pod: PodUid,
    /// Which container of the pod.
    pub name: ContainerName,
    /// Which run of it.
    pub attempt: Attempt,
    /// The sandbox that it says it is in, also where containerd has no record of that; absent where it says none.
    pub sandbox: Option<SandboxId>,
    /// Hash of what it was made from; 0 when that is not known, and so no reason to replace it.
    pub hash: u64,
    /// Its task.
    pub task: ObservedTask,
}

/// A task.
#[derive(Debug, Clone, PartialEq)]
pub enum ObservedTask {
    /// There is none: never created, or lost with its shim.
    Absent,
    /// Created and never started: its init waits, or was killed before it ran anything, as it is when containerd undoes a
    /// creation whose client has gone. That is the end of no run.
    Created,
    /// Being started: it may run at any moment. Look again before acting.
    Starting,
    /// Running or paused.
    Running {
        /// Process id of its init.
        pid: u32,
        /// When it started.
        started_at: Timestamp,
    },
    /// Ended.
    Exited(Exit),
    /// The shim does not answer. Look again before acting.
    Unknown,
}

/// How a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 128 + signal after a signal.
    pub code: u32,
    /// When it started, where known.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Timestamp,
    /// Whether the kernel killed something in it for memory.
    pub oom_killed: bool,
}

/// What a shim reports about its pod.
#[derive(Debug, Clone, PartialEq)]
pub enum SandboxReport {
    /// A container ended.
    Exited {
        /// Which.
        id: ContainerId,
        /// How.
        exit: Exit,
    },
    /// The connection was made anew: every task there is.
    Resync {
        /// When that was asked for: what was begun after that may be missing.
        asked_at: Mono,
        /// The tasks.
        tasks: Vec<(ContainerId, ObservedTask)>,
    },
    /// The shim is gone, and every container with it.
    Lost {
        /// When that was seen.
        at: Timestamp,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_there_with_a_sandbox_or_a_container_and_a_sandbox_without_its_record() {
        let [one, two, three] = ["one", "two", "three"].map(PodUid::new);
        let sandbox = |pod: &PodUid| ObservedSandbox {
            id: SandboxId::of(pod, 0),
            pod: pod.clone(),
            attempt: 0,
            ready: false,
            pid: 0,
        };
        let container = |pod: &PodUid| ObservedContainer {
            id: ContainerId::from_known("c1"),
            pod: pod.clone(),
            name: ContainerName::new("main"),
            attempt: 0,
            sandbox: Some(SandboxId::of(pod, 0)),
            hash: 0,
            task: ObservedTask::Unknown,
        };
        let seen = Observation {
            sandboxes: vec![sandbox(&one)],
            containers: vec![container(&one), container(&two)],
            unrecorded: [SandboxId::of(&three, 0)].into(),
            ..Observation::default()
        };
        assert_eq!(seen.pods(), [one.clone(), two].into());
        assert_eq!(seen.sandbox_ids(), [&one, &three].map(|pod| SandboxId::of(pod, 0)).into());
    }
}
