//! Everything the core can ask the shell for.
//!
//! Every effect is idempotent: `Ensure…` looks before it makes and answers the same for what it found, `Remove…` succeeds
//! when nothing is there. The outcome of each comes back as [`Event::Done`](crate::event::Event::Done) with the same
//! [`OpId`]; only [`Act::Note`], [`Act::Withdraw`], [`Act::GiveUpHook`], [`NodeAct::GiveUpPull`] and [`NodeAct::Note`] have none. A pod's
//! acts are handed out when its record is written, so the shell needs no order among them: it performs [`Act::Persist`], [`Act::Forget`] and what only
//! touches memory as they come, answers at once, and starts the rest without waiting for it.

use crate::{
    cgroup::QosValues,
    cluster::node,
    id::{OpId, PodName, PodUid, SandboxId},
    image::{WantedImage, collection::Removal},
    oci::HostFile,
    pod::port::{
        cgroup::CgroupRequest,
        hook::HookRequest,
        look::LookRequest,
        network::{NetnsRequest, NetworkRequest},
        probe::ProbeRequest,
        removal::RemoveContainerRequest,
        resize::{MemoryCheck, ResizeRequest},
        rootfs::RootfsRequest,
        sandbox::SandboxRequest,
        signal::SignalRequest,
        start::{StartRequest, TaskRequest},
        status::Published,
        termination::TerminationMessageRequest,
        volume::VolumeRequest,
    },
    record::PodRecord,
    status::Note,
};

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// For one pod.
    Pod {
        /// Given back with the outcome.
        op: OpId,
        /// The pod it is for.
        pod: PodUid,
        /// What.
        act: Act,
    },
    /// For the node as a whole.
    Node {
        /// Given back with the outcome.
        op: OpId,
        /// What.
        act: NodeAct,
    },
}

impl Effect {
    /// Its number, which comes back with its outcome.
    #[must_use]
    pub fn op(&self) -> OpId {
        match self {
            Self::Pod { op, .. } | Self::Node { op, .. } => *op,
        }
    }
}

/// What to do for the node: images are shared by pods, and the QoS cgroups hold them.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeAct {
    /// Look for an image on the node. Outcome: `Image`.
    InspectImage(WantedImage),
    /// Fetch and unpack an image. Outcome: `Image`, present. It fails with `Config` where a secret that it is pulled with is malformed.
    PullImage(WantedImage),
    /// End a pull that is under way, if it is: it fails, unless it has brought the image.
    GiveUpPull(OpId),
    /// Look how full the disk is that images are on. Outcome: `ImageDisk`.
    MeasureImages,
    /// List the images of the node, with what uses them. Outcome: `Images`.
    ListImages,
    /// Remove an image, unless something uses it by now. Outcome: `Done`, or `ImageKept`.
    RemoveImage(Box<Removal>),
    /// Set the values of the QoS cgroups. Outcome: `Done`.
    SetQos(Box<QosValues>),
    /// Read the Node object from the API server. Outcome: `NodeObject`.
    ReadNodeObject,
    /// Report something that happened to the node.
    Note(node::Note),
}

/// What to do for a pod.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Write the pod's record. When that fails, the old one is still there. Outcome: `Done`.
    Persist(Box<PodRecord>),
    /// Remove the pod's record: nothing of the pod is left. Outcome: `Done`.
    Forget,
    /// Let everybody see what the pod is. Outcome: `Done`.
    Publish(Published),
    /// Show the pod no longer.
    Withdraw,
    /// Report something that happened to the pod.
    Note(Note),

    /// Make the pod's cgroup with these values, and its QoS parent. Outcome: `Done`.
    EnsureCgroup(CgroupRequest),
    /// Make the pod's directories and log directory. Outcome: `Done`.
    EnsureDirs(PodName),
    /// Make the named network namespace, with `lo` up. Outcome: `Netns`.
    EnsureNetns(NetnsRequest),
    /// Wire the pod's network namespace by CNI. Outcome: `Network`.
    EnsureNetwork(Box<NetworkRequest>),
    /// Create and start the sandbox, or find it running. Outcome: `Sandbox`.
    EnsureSandbox(Box<SandboxRequest>),
    /// Make and mount one volume. Outcome: `Volume`.
    EnsureVolume(Box<VolumeRequest>),
    /// Prepare the container's writable layer. Outcome: `Rootfs`.
    EnsureRootfs(RootfsRequest),
    /// Create the container and its task and start it, or find it started. Outcome: `Started`.
    StartContainer(Box<StartRequest>),

    /// Write those files of the pod that are missing. Outcome: `Done`.
    WriteFiles(Vec<HostFile>),
    /// Look whether what was made is still there and as it was made, without a question to containerd. Outcome: `Looked`.
    Look(Box<LookRequest>),

    /// Ask a container. Outcome: `Probed`.
    Probe(Box<ProbeRequest>),
    /// Run a hook of a container. Outcome: `Hooked`.
    RunHook(Box<HookRequest>),
    /// Give up a hook that is under way: it has no outcome then.
    GiveUpHook(OpId),

    /// Keep where a reboot does not reach it how a pod has ended. Outcome: `Done`.
    KeepEnd(Box<PodRecord>),

    /// Look what became of a start that nobody answered, and begin nothing. Outcome: `Task`.
    LookAtTask(Box<TaskRequest>),
    /// Give the cgroup of a container that runs other resources, where its pod uses less memory than it may then. Outcome: `Done`, also when
    /// it has ended.
    ResizeContainer(Box<ResizeRequest>),
    /// Look whether the pod uses less memory than it may from now on. Outcome: `Done`.
    CheckMemory(MemoryCheck),
    /// Send a signal to a container's init process. Outcome: `Done`, also when it has ended.
    Signal(SignalRequest),
    /// Read the termination message of a container that has ended. Outcome: `TerminationMessage`.
    ReadTerminationMessage(Box<TerminationMessageRequest>),
    /// Remove the container's task, record and snapshot, killing it when it runs. Outcome: `Done`.
    RemoveContainer(RemoveContainerRequest),
    /// Stop and remove a sandbox with everything in it. Outcome: `Done`.
    RemoveSandbox(SandboxId),
    /// Kill the shim of a sandbox that is being removed, and with it everything in it: it answers nothing. Outcome: `Done`,
    /// also when there is none.
    KillShim(SandboxId),
    /// Undo the CNI attachment with the configuration it was made with. Outcome: `Done`.
    RemoveNetwork(SandboxId),
    /// Remove the network namespace. Outcome: `Done`.
    RemoveNetns(SandboxId),
    /// Unmount and remove all volumes of the pod. Outcome: `Done`.
    RemoveVolumes {
        /// Whether some are made of images, so that containerd has something of them.
        with_images: bool,
    },
    /// Kill what is left in the pod's cgroup and remove it. Outcome: `Done`.
    RemoveCgroup(crate::spec::QosClass),
    /// Remove the pod's directories, its logs and the links to them. Outcome: `Done`.
    RemoveDirs(PodName),
    /// Remove what was kept of how the pod ended. Outcome: `Done`.
    DropEnd,
    /// Remove whatever the node has under the UID of a pod that has neither record nor manifest: mounted volumes, the
    /// cgroup under whichever QoS parent, directories, logs. Its containers and sandboxes are gone by then. Outcome:
    /// `Done`.
    Sweep,
}

/// What an act changes of what the record of its pod tells of (invariant 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Footprint {
    /// It leaves something on the node that only the record tells of: it is not begun before that is written.
    Leaves,
    /// It takes away what the record on disk may still count on.
    TakesAway,
    /// Nothing.
    None,
}

impl NodeAct {
    /// The act in a word.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::InspectImage(_) => "inspect-image",
            Self::PullImage(_) => "pull-image",
            Self::GiveUpPull(_) => "give-up-pull",
            Self::MeasureImages => "measure-images",
            Self::ListImages => "list-images",
            Self::RemoveImage(_) => "remove-image",
            Self::SetQos(_) => "set-qos",
            Self::ReadNodeObject => "read-node-object",
            Self::Note(_) => "note",
        }
    }
}

impl Act {
    /// The act in a word.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.properties().0
    }

    /// What it changes of what the record tells of.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        self.properties().1
    }

    fn properties(&self) -> (&'static str, Footprint) {
        use Footprint::{Leaves, None, TakesAway};
        match self {
            Self::Persist(_) => ("persist", None),
            Self::Forget => ("forget", None),
            Self::Publish(_) => ("publish", None),
            Self::Withdraw => ("withdraw", None),
            Self::Note(_) => ("note", None),

            Self::EnsureCgroup(_) => ("ensure-cgroup", Leaves),
            Self::EnsureDirs(_) => ("ensure-dirs", Leaves),
            Self::EnsureNetns(_) => ("ensure-netns", Leaves),
            Self::EnsureNetwork(_) => ("ensure-network", Leaves),
            Self::EnsureSandbox(_) => ("ensure-sandbox", Leaves),
            Self::EnsureVolume(_) => ("ensure-volume", Leaves),
            Self::EnsureRootfs(_) => ("ensure-rootfs", Leaves),
            Self::StartContainer(_) => ("start-container", Leaves),

            Self::WriteFiles(_) => ("write-files", Leaves),
            Self::Look(_) => ("look", None),

            Self::Probe(_) => ("probe", None),
            Self::RunHook(_) => ("run-hook", None),
            Self::GiveUpHook(_) => ("give-up-hook", None),

            Self::KeepEnd(_) => ("keep-end", Leaves),

            Self::LookAtTask(_) => ("look-at-task", None),
            Self::ResizeContainer(_) => ("resize-container", Leaves),
            Self::CheckMemory(_) => ("check-memory", None),
            Self::Signal(_) => ("signal", None),
            Self::ReadTerminationMessage(_) => ("read-termination-message", None),
            Self::RemoveContainer(_) => ("remove-container", TakesAway),
            Self::RemoveSandbox(_) => ("remove-sandbox", TakesAway),
            Self::KillShim(_) => ("kill-shim", TakesAway),
            Self::RemoveNetwork(_) => ("remove-network", TakesAway),
            Self::RemoveNetns(_) => ("remove-netns", TakesAway),
            Self::RemoveVolumes { .. } => ("remove-volumes", TakesAway),
            Self::RemoveCgroup(_) => ("remove-cgroup", TakesAway),
            Self::RemoveDirs(_) => ("remove-dirs", TakesAway),
            Self::DropEnd => ("drop-end", None),
            // Of a pod without a record.
            Self::Sweep => ("sweep", None),
        }
    }
}
