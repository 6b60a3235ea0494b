//! What users see of a pod.

use std::{borrow::Cow, net::IpAddr};

use jiff::Timestamp;

use crate::{
    id::{ContainerId, ContainerName, PodName, PodUid},
    spec::{ContainerKind, CpuMemory, QosClass, Quantities, Resources},
};

/// `status` of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodStatus {
    /// UID of the pod.
    pub uid: PodUid,
    /// Its name.
    pub name: PodName,
    /// Phase.
    pub phase: Phase,
    /// Reason of the phase, such as `Evicted`; mostly empty.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Whether the pod is being stopped.
    pub terminating: bool,
    /// Conditions in the kubelet's order.
    pub conditions: Vec<Condition>,
    /// Addresses of the node, primary first.
    pub host_ips: Vec<IpAddr>,
    /// Addresses of the pod, primary first.
    pub pod_ips: Vec<IpAddr>,
    /// When the agent first saw the pod.
    pub start_time: Option<Timestamp>,
    /// QoS class.
    pub qos: QosClass,
    /// Whether its runtime makes mounts read-only with all that is mounted below them.
    pub recursive_read_only: bool,
    /// What it takes as a whole; of one that was rejected nothing.
    pub resources: Option<PodResources>,
    /// Init containers and sidecars, in spec order.
    pub init_containers: Vec<ContainerStatus>,
    /// Main containers, by name.
    pub containers: Vec<ContainerStatus>,
    /// Ephemeral containers, by name.
    pub ephemeral_containers: Vec<ContainerStatus>,
}

impl PodStatus {
    /// The statuses of all containers.
    pub fn all_containers(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.init_containers.iter().chain(&self.containers).chain(&self.ephemeral_containers)
    }
}

/// What a pod takes as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodResources {
    /// What is set aside for it: `status.allocatedResources`.
    pub allocated: Quantities,
    /// What it has: `status.resources`.
    pub has: Resources,
}

/// Addresses of a wired pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkStatus {
    /// Primary address first.
    pub ips: Vec<IpAddr>,
}

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not everything has started.
    Pending,
    /// Something runs, or will again.
    Running,
    /// All containers ended with 0 and will not start again.
    Succeeded,
    /// All containers ended, one of them badly.
    Failed,
}

impl Phase {
    /// Whether a pod in it has ended.
    #[must_use]
    pub fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Running => false,
            Self::Succeeded | Self::Failed => true,
        }
    }

    /// As in `status.phase`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Which.
    pub kind: ConditionKind,
    /// Whether it holds.
    pub holds: bool,
    /// Reason, when it does not.
    pub reason: String,
    /// For people.
    pub message: String,
    /// When it last changed.
    pub since: Timestamp,
    /// The generation that it is about, where that is not the newest that was seen.
    pub generation: Option<i64>,
}

/// The conditions that the node owns, in the order in which they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionKind {
    /// Other resources are asked for than the pod has.
    PodResizePending,
    /// Other resources were allocated than are in force.
    PodResizeInProgress,
    /// The node ended the pod for the sake of others.
    DisruptionTarget,
    /// Sandbox and network are there.
    PodReadyToStartContainers,
    /// All init containers have ended well, all sidecars have started.
    Initialized,
    /// The pod can serve.
    Ready,
    /// All containers are ready.
    ContainersReady,
    /// The pod is on a node.
    PodScheduled,
    /// All containers are being stopped to begin anew.
    AllContainersRestarting,
}

impl ConditionKind {
    /// As in `status.conditions[].type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PodReadyToStartContainers => "PodReadyToStartContainers",
            Self::Initialized => "Initialized",
            Self::Ready => "Ready",
            Self::ContainersReady => "ContainersReady",
            Self::PodScheduled => "PodScheduled",
            Self::AllContainersRestarting => "AllContainersRestarting",
            Self::DisruptionTarget => "DisruptionTarget",
            Self::PodResizePending => "PodResizePending",
            Self::PodResizeInProgress => "PodResizeInProgress",
        }
    }
}

/// Status of one container.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerStatus {
    /// Name.
    pub name: ContainerName,
    /// Role.
    pub kind: ContainerKind,
    /// Image, resolved where it is known.
    pub image: String,
    /// `repository@digest` or image id.
    pub image_id: String,
    /// Id of the current or last run; shown as `containerd://<id>`.
    pub id: Option<ContainerId>,
    /// Current state.
    pub state: ContainerState,
    /// How the run before ended.
    pub last_state: Option<Terminated>,
    /// Whether it can serve.
    pub ready: bool,
    /// Whether it has started (startup probe passed, or none, and running).
    pub started: bool,
    /// Runs before this one.
    pub restart_count: u32,
    /// The user that the current or last run began as, where it is known.
    pub user: Option<RunUser>,
    /// What it has while it runs, where that is not what its spec says.
    pub actuated: Option<CpuMemory>,
}

/// The user of a container's first process: `user.linux` of its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunUser {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Further groups.
    pub supplemental_groups: Vec<u32>,
}

impl Terminated {
    /// The end of a container that nobody located (`ContainerReasonStatusUnknown` of `pkg/kubelet/container/runtime.go`).
    pub(crate) fn unlocated(message: &str) -> Self {
        Self {
            exit_code: 137,
            reason: "ContainerStatusUnknown".to_owned(),
            message: message.to_owned(),
            started_at: None,
            finished_at: None,
            id: None,
        }
    }
}

/// State of a container.
#[derive(Debug, Clone, PartialEq)]
pub enum ContainerState {
    /// Not running yet, or not again.
    Waiting {
        /// Such as `ContainerCreating` or `CrashLoopBackOff`.
        reason: String,
        /// For people.
        message: String,
    },
    /// Running.
    Running {
        /// Since when.
        started_at: Timestamp,
    },
    /// Ended.
    Terminated(Terminated),
}

/// An ended run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terminated {
    /// Exit code.
    pub exit_code: u32,
    /// `Completed`, `Error`, `OOMKilled`, `StartError`, `RestartingAllContainers`, `ContainerStatusUnknown`.
    pub reason: String,
    /// Termination message.
    pub message: String,
    /// When it started, where known.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Which run; of a container that nobody located there is none.
    pub id: Option<ContainerId>,
}

/// Something worth telling, and of which pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The pod.
    pub name: PodName,
    /// [`Pod::version`](crate::spec::Pod::version).
    pub version: Option<String>,
    /// The part of it that is meant, such as `spec.containers{web}`; empty for all of it.
    pub field_path: String,
    /// What.
    pub event: PodEvent,
}

/// Something worth telling about a pod: a Kubernetes event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEvent {
    /// The container it is about: `spec.containers{name}`.
    pub container: Option<ContainerName>,
    /// Whether somebody should look.
    pub severity: Severity,
    /// Reason, such as `Pulled`.
    pub reason: Cow<'static, str>,
    /// For people.
    pub message: String,
}

/// `type` of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Nothing to worry about.
    Normal,
    /// Somebody should look.
    Warning,
}
