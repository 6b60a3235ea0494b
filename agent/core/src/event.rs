//! Everything that can happen to a node.

use std::{collections::BTreeSet, net::IpAddr, path::PathBuf, sync::Arc};

use jiff::Timestamp;

use crate::{
    config::NodeFacts,
    id::{Attempt, ContainerId, ContainerName, OpId, PodUid, SandboxId},
    pod::port::look::Finding,
    record::PodRecord,
    spec::{Pod, Source},
    time::Mono,
};

/// Something happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// What was found at start: the first event.
    Restored(Box<Restored>),
    /// All pods that a source wants, replacing what it wanted before.
    Desired {
        /// Which source.
        source: Source,
        /// Its pods.
        pods: Vec<Arc<Pod>>,
    },
    /// Containerd is there again after it was lost; its whole state, to be compared by level.
    RuntimeUp(Observation),
    /// Containerd is lost. Running containers go on; effects on it fail until it is back.
    RuntimeDown {
        /// Why, for people.
        why: String,
    },
    /// What of the node may have changed, read before another event that pods are prepared after.
    NodeFacts(NodeFacts),
    /// Whether pods can be wired: a CNI configuration is there and its plugins are content.
    NetworkReady(Result<(), String>),
    /// A sandbox reports.
    Sandbox {
        /// Which.
        id: SandboxId,
        /// What.
        report: SandboxReport,
    },
    /// An effect has ended.
    Done {
        /// Which.
        op: OpId,
        /// How.
        outcome: Result<Outcome, Failure>,
    },
}

/// What an earlier run left.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Restored {
    /// Records of pods, with the pods read back from their manifests.
    pub pods: Vec<(PodRecord, Arc<Pod>)>,
    /// Pods that have no record any more, since the machine was switched off, and had ended before.
    pub ended: Vec<(PodRecord, Arc<Pod>)>,
    /// What containerd and the shims know.
    pub observation: Observation,
    /// Pods of which something is left on the node (directory, cgroup, netns) but no record.
    pub strays: Vec<PodUid>,
}

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
}

/// A sandbox record of containerd and what its shim says.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedSandbox {
    /// Its id.
    pub id: SandboxId,
    /// Whose it is.
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
    /// Whose it is.
    pub pod: PodUid,
    /// Which container of the pod.
    pub name: ContainerName,
    /// Which run of it.
    pub attempt: Attempt,
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
    /// Created, not started.
    Created,
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

/// What an effect brought.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Done; nothing more to say.
    Done,
    /// The network namespace.
    Netns(PathBuf),
    /// The pod is wired.
    Network(NetworkStatus),
    /// The sandbox runs.
    Sandbox {
        /// Process id of the shim: its namespaces are the pod's.
        pid: u32,
    },
    /// Where the volume is on the node.
    Volume {
        /// Absolute path.
        path: String,
    },
    /// The image, when it is on the node.
    Image(Option<Arc<ImageInfo>>),
    /// The writable layer is prepared.
    Rootfs(Arc<Accounts>),
    /// The container runs, or has already ended.
    Started(ObservedTask),
    /// What became of a start that nobody answered.
    Task(ObservedTask),
    /// The last words of a container.
    TerminationMessage(String),
    /// What is not as it was made.
    Looked(BTreeSet<Finding>),
}

/// Why an effect failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What the core does about it.
    pub kind: FailureKind,
    /// What was tried, on what, why it failed and what to do: shown to people.
    pub message: String,
}

/// Kinds of failure that the core treats differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// May work later: retried with a growing delay.
    Transient,
    /// Timed out or cut off: what it did is not known; done again (it is idempotent) before anything builds on it.
    Unknown,
    /// Containerd is not there; tried again when it is back.
    RuntimeDown,
    /// The pod asks for what cannot be given here: retried slowly, shown as a configuration error.
    Config,
    /// The image's name cannot be parsed.
    InvalidImageName,
    /// The registry does not have it, refuses it or cannot be reached.
    ImagePull,
    /// The OCI runtime could not start the container (no such command, bad working directory).
    StartFailed,
    /// The sandbox that the effect needs has gone, and the effect did nothing in it.
    SandboxGone,
    /// The pod's shim was asked, on a connection that it did not refuse, and did not answer within
    /// [`SHIM_ANSWER`](crate::effect::SHIM_ANSWER) while the agent ran on time. Nothing was done.
    Silent,
    /// The record that must come before the effect could not be written, so nothing was begun; done when it is.
    Unrecorded,
}

impl FailureKind {
    /// Whether something that is told for all explains it: containerd's absence, a record that cannot be written.
    #[must_use]
    pub fn is_told_elsewhere(self) -> bool {
        match self {
            Self::RuntimeDown | Self::Unrecorded => true,
            Self::Transient
            | Self::Unknown
            | Self::Config
            | Self::InvalidImageName
            | Self::ImagePull
            | Self::StartFailed
            | Self::SandboxGone
            | Self::Silent => false,
        }
    }
}

/// Addresses of a wired pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkStatus {
    /// Primary address first.
    pub ips: Vec<IpAddr>,
}

/// An image on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageInfo {
    /// The name it was found under, normalised.
    pub name: String,
    /// Digest of its config: the image id.
    pub id: String,
    /// `repository@digest`, where known: what `imageID` of a container status shows.
    pub repo_digest: Option<String>,
    /// Chain id of its layers: parent of the containers' snapshots.
    pub chain_id: String,
    /// Bytes of its layers, packed.
    pub size_bytes: u64,
    /// Its config.
    pub config: ImageConfig,
}

/// The part of an image's config that a container starts from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// `NAME=value`.
    pub env: Vec<String>,
    /// `ENTRYPOINT`.
    pub entrypoint: Vec<String>,
    /// `CMD`.
    pub cmd: Vec<String>,
    /// `USER`: name or number, with an optional group.
    pub user: String,
    /// `WORKDIR`.
    pub working_dir: String,
    /// `STOPSIGNAL`.
    pub stop_signal: Option<String>,
    /// `VOLUME`s: paths in the container.
    pub volumes: Vec<String>,
}

/// The account files of a root file system, size-capped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accounts {
    /// `/etc/passwd`.
    pub passwd: String,
    /// `/etc/group`.
    pub group: String,
}
