//! Everything that can happen to a node.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use crate::{
    config::NodeFacts,
    failure::Failure,
    id::{OpId, PodUid, SandboxId},
    image::{
        ImageInfo, WantedImage,
        collection::{ImageDisk, StoredImage},
    },
    node::NodeInfo,
    observation::{Observation, ObservedTask, SandboxReport},
    oci::Accounts,
    pod::port::{hook::HookAnswer, look::Finding, probe::ProbeAnswer, start_failure::StartFailure},
    record::PodRecord,
    spec::{ObjectKey, Pod, Source},
    status::NetworkStatus,
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
        /// Whether the source was read whole. In what it could not read yet may be pods of an earlier run of the agent.
        is_whole: bool,
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
    /// What the Node object says, each time it is seen. Before pods of the API server are wanted for the first time.
    NodeInfo(NodeInfo),
    /// Whether pods can be wired: a CNI configuration is there and its plugins are content.
    NetworkReady(Result<(), String>),
    /// Whether pods can be wired is not known for longer than they are to wait: what comes of an attachment tells.
    NetworkUnheard,
    /// An object of the API server has changed, or is known for the first time to pods that waited for it.
    ObjectChanged {
        /// Which.
        object: ObjectKey,
        /// The pods that use it.
        pods: Vec<PodUid>,
    },
    /// Secrets of an image that is looked for or pulled cannot be read; it is pulled without them.
    PullSecretsMissing {
        /// The image.
        image: WantedImage,
        /// Names of those of its secrets.
        names: Vec<String>,
    },
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
    /// Pods of which something is left on the node but no record, and that [`prove`](crate::node::prove) says are ours: orphans,
    /// where no source wants them.
    pub orphans: Vec<PodUid>,
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
        /// Whether its runtime makes mounts read-only with all that is mounted below them (KEP-3857).
        recursive_read_only: bool,
    },
    /// Where the volume is on the node.
    Volume {
        /// Absolute path.
        path: String,
        /// When what is in it is to be made anew though nothing it is from has changed: a token grows old.
        again_in: Option<Duration>,
    },
    /// The image, when it is on the node.
    Image(Option<Arc<ImageInfo>>),
    /// The file system that images are on.
    ImageDisk(ImageDisk),
    /// All images of the node.
    Images(Vec<StoredImage>),
    /// The image was not removed: something uses it by now.
    ImageKept,
    /// The writable layer is prepared.
    Rootfs(Arc<Accounts>),
    /// The container runs, or has already ended.
    Started(ObservedTask),
    /// The container was not started, as far as containerd says.
    NotStarted(Box<StartFailure>),
    /// What became of a start that nobody answered. Where the shim has gone and told nothing of it, the look fails with
    /// [`SandboxGone`](crate::failure::FailureKind::SandboxGone).
    Task(ObservedTask),
    /// The termination message of a container.
    TerminationMessage(String),
    /// What a container answered.
    Probed(ProbeAnswer),
    /// What a hook came to.
    Hooked(HookAnswer),
    /// The Node object.
    NodeObject(Box<NodeInfo>),
    /// What is not as it was made.
    Looked(BTreeSet<Finding>),
}
