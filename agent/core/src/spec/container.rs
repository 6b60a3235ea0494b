//! A container.

use super::{ContainerSecurity, Lifecycle, ObjectKind, Probes, ResourceSelector, Resources, RestartPolicy};
use crate::id::{ContainerName, ImageRef, VolumeName};

/// One container of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// Name within the pod.
    pub name: ContainerName,
    /// Main, init, sidecar or ephemeral.
    pub kind: ContainerKind,
    /// Of an ephemeral container: the one whose processes it sees.
    pub target: Option<ContainerName>,
    /// What it says itself of being started again.
    pub restarts: OwnRestarts,
    /// Image as written.
    pub image: ImageRef,
    /// When to ask the registry.
    pub pull_policy: ImagePullPolicy,
    /// Replaces the image's entry point when not empty.
    pub command: Vec<String>,
    /// Replaces the image's arguments when not empty.
    pub args: Vec<String>,
    /// Objects whose keys are variables, in order: of one name the later value counts, and `env` after them.
    pub env_from: Vec<EnvFrom>,
    /// Environment in order; later names may refer to earlier ones as `$(NAME)`.
    pub env: Vec<EnvVar>,
    /// Working directory; the image's when absent.
    pub working_dir: Option<String>,
    /// Ports.
    pub ports: Vec<Port>,
    /// Requests and limits.
    pub resources: Resources,
    /// What a change of them means while it runs.
    pub resize_policy: ResizePolicy,
    /// Volume mounts, in order.
    pub mounts: Vec<Mount>,
    /// Volumes that are block devices, in order.
    pub devices: Vec<VolumeDevice>,
    /// Standard streams.
    pub stdio: Stdio,
    /// Security settings of this container.
    pub security: ContainerSecurity,
    /// Probes; none for init and ephemeral containers.
    pub probes: Probes,
    /// Hooks and the stop signal; none for init and ephemeral containers.
    pub lifecycle: Lifecycle,
    /// Where the container leaves its termination message.
    pub termination_message: TerminationMessage,
    /// Changes when the container must be replaced to follow its spec.
    pub hash: u64,
}

/// `resizePolicy`: whether a change of a resource restarts the container (`RestartContainer`) or not (`NotRequired`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResizePolicy {
    /// One of CPU does.
    pub cpu_restarts: bool,
    /// One of memory does.
    pub memory_restarts: bool,
}

/// What role a container plays in the life of its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerKind {
    /// `spec.containers`.
    Main,
    /// `spec.initContainers`: runs to its end before the next starts.
    Init,
    /// `spec.initContainers` with `restartPolicy: Always` (KEP-753).
    Sidecar,
    /// `spec.ephemeralContainers`: comes to a pod that is there, runs once, and counts for nothing (KEP-277).
    Ephemeral,
}

/// `restartPolicy` and `restartPolicyRules` of a container (KEP-5307). A sidecar has no policy here: it always runs again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnRestarts {
    /// Takes the place of the pod's policy.
    pub policy: Option<RestartPolicy>,
    /// The first that matches an exit code decides, before the policy.
    pub rules: Vec<RestartRule>,
}

/// One entry of `restartPolicyRules`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestartRule {
    /// Exit codes.
    pub codes: Vec<u32>,
    /// Whether it matches these codes (`In`) or all others (`NotIn`).
    pub is_in: bool,
    /// What follows.
    pub action: RestartAction,
}

/// What follows an exit code that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartAction {
    /// The container runs again.
    Restart,
    /// All containers of the pod begin anew, init containers too (KEP-5532).
    RestartAllContainers,
}

/// `imagePullPolicy`, with the default already applied (`Always` for `:latest` or no tag, else `IfNotPresent`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImagePullPolicy {
    /// Ask the registry before each start.
    Always,
    /// Only when the node does not have it.
    IfNotPresent,
    /// Never.
    Never,
}

/// One environment variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVar {
    /// Name.
    pub name: String,
    /// Where its value comes from.
    pub source: EnvSource,
}

/// Where the value of a variable comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvSource {
    /// Written in the pod; `$(NAME)` is expanded.
    Value(String),
    /// `fieldRef.fieldPath`, such as `status.podIP` or `metadata.labels['x']`.
    Field(String),
    /// `resourceFieldRef`.
    Resource(ResourceSelector),
    /// `configMapKeyRef` or `secretKeyRef`.
    Key(ObjectKeyRef),
    /// `fileKeyRef`.
    File(FileKeyRef),
}

/// One name of a file in a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileKeyRef {
    /// Which volume.
    pub volume: VolumeName,
    /// Where the file is in it: relative, without `..`.
    pub path: String,
    /// The name.
    pub key: String,
    /// Whether the file may be without it: then there is no such variable.
    pub optional: bool,
}

/// One key of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectKeyRef {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Its name, in the pod's namespace.
    pub name: String,
    /// The key.
    pub key: String,
    /// Whether the object, or the key, may be missing: then there is no such variable.
    pub optional: bool,
}

/// One entry of `envFrom`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvFrom {
    /// What is put before each key.
    pub prefix: String,
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Its name, in the pod's namespace.
    pub name: String,
    /// Whether the object may be missing.
    pub optional: bool,
}

/// One entry of `ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Name, when it has one.
    pub name: Option<String>,
    /// Port within the pod.
    pub container_port: u16,
    /// Port on the node, when asked for.
    pub host_port: Option<u16>,
    /// Address on the node; all when absent.
    pub host_ip: Option<String>,
    /// Protocol.
    pub protocol: Protocol,
}

/// Protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// Lower case, as CNI's portMappings wants it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// One entry of `volumeMounts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Which volume.
    pub volume: VolumeName,
    /// Absolute path in the container.
    pub path: String,
    /// Path within the volume.
    pub sub_path: SubPath,
    /// Mounted read-only.
    pub read_only: bool,
    /// Whether what is mounted below a read-only one is read-only too.
    pub recursive_read_only: RecursiveReadOnly,
    /// How mounts travel between node and container.
    pub propagation: MountPropagation,
}

/// One of `volumeDevices`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeDevice {
    /// Which volume.
    pub volume: VolumeName,
    /// Absolute path in the container.
    pub path: String,
}

/// `recursiveReadOnly` of a mount that is read-only and private (KEP-3857).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RecursiveReadOnly {
    /// What is mounted below stays as it is.
    #[default]
    Disabled,
    /// It is read-only where the pod's runtime can do that.
    IfPossible,
    /// It is read-only, or the container does not start.
    Enabled,
}

impl Mount {
    /// Whether it is read-only with all that is below, where `is_supported` tells whether the pod's runtime can do that; `None` when it
    /// must be and cannot. Source: `resolveRecursiveReadOnly` of `pkg/kubelet/kubelet_pods.go`.
    #[must_use]
    pub fn is_recursively_read_only(&self, is_supported: bool) -> Option<bool> {
        match self.recursive_read_only {
            RecursiveReadOnly::Disabled => Some(false),
            RecursiveReadOnly::IfPossible => Some(is_supported),
            RecursiveReadOnly::Enabled => is_supported.then_some(true),
        }
    }
}

/// Path within a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubPath {
    /// The volume's root.
    Root,
    /// `subPath`: relative, without `..`.
    Fixed(String),
    /// `subPathExpr`: as `Fixed` after `$(NAME)` is expanded from the container's environment.
    Expression(String),
}

/// `mountPropagation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountPropagation {
    /// `None`: private.
    Private,
    /// `HostToContainer`: rslave.
    HostToContainer,
    /// `Bidirectional`: rshared; privileged containers only.
    Bidirectional,
}

/// `stdin`, `stdinOnce` and `tty`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stdio {
    /// Standard input.
    pub stdin: Stdin,
    /// Whether a terminal is made.
    pub tty: bool,
}

/// Standard input of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdin {
    /// `/dev/null`.
    Closed,
    /// Open for attaching as long as the container runs.
    Open,
    /// Open until the first attached client goes.
    Once,
}

/// `terminationMessagePath` and `terminationMessagePolicy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminationMessage {
    /// Path in the container; empty for no file.
    pub path: String,
    /// Whether the log stands in for an empty file.
    pub policy: TerminationMessagePolicy,
}

/// `terminationMessagePolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TerminationMessagePolicy {
    /// Only the file.
    File,
    /// The end of the log when the file is empty and the exit code is not 0.
    FallbackToLogsOnError,
}
