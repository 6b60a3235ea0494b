//! Why no spec can be made.

use thiserror::Error;

use crate::{
    derived::downward::DownwardError, derived::env::TooLong, derived::hostname::HostnameError,
    derived::resolv::ResolvError, selinux::LabelError,
};

/// What in a pod or an image cannot be met. The words are the kubelet's and containerd's where they have some: people
/// search for them.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Neither the container nor the image says what to run.
    #[error("no command specified")]
    NoCommand,
    /// An environment variable's value cannot be given.
    #[error(transparent)]
    Downward(#[from] DownwardError),
    /// What references in its texts come to.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The pod's host name.
    #[error(transparent)]
    Hostname(#[from] HostnameError),
    /// The node's resolv.conf.
    #[error(transparent)]
    Resolv(#[from] ResolvError),
    /// A volume that is a device and is not there.
    #[error("cannot find volume {volume:?} to pass into container {container:?}")]
    NoSuchDevice {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
    },
    /// A text that no process can be given. It may be secret.
    #[error("{what} contains a NUL character")]
    Nul {
        /// Where it stands.
        what: &'static str,
    },
    /// An environment variable whose name cannot be one.
    #[error("invalid environment variable name {name:?}")]
    EnvName {
        /// The name.
        name: String,
    },
    /// The working directory is not absolute, or is a descriptor of a process (CVE-2024-21626).
    #[error("invalid working directory {path:?}")]
    WorkingDir {
        /// The path.
        path: String,
    },
    /// `runAsNonRoot` with `runAsUser: 0`.
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RootAskedFor {
        /// Name, namespace and UID of the pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// `runAsNonRoot` and the image runs as root.
    #[error("container has runAsNonRoot and image will run as root (pod: {pod:?}, container: {container})")]
    ImageRunsAsRoot {
        /// Name, namespace and UID of the pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// `runAsNonRoot` and a user of the image that may be root by another name.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root \
         (pod: {pod:?}, container: {container})"
    )]
    NonNumericUser {
        /// The image's user.
        user: String,
        /// Name, namespace and UID of the pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// An id that runtimes cannot take (CVE-2024-40635).
    #[error("invalid USER value {user:?}: {which} out of range")]
    IdOutOfRange {
        /// The user as written.
        user: String,
        /// `uid` or `gid`.
        which: &'static str,
    },
    /// A user that is no name and no number.
    #[error("invalid USER value {user:?}")]
    UserSyntax {
        /// The user as written, cut when it is long.
        user: String,
    },
    /// A name that the image's account file does not have.
    #[error("unable to find user {name} in the image: no matching entries in passwd file")]
    NoSuchUser {
        /// The name.
        name: String,
    },
    /// A capability that the agent itself does not have.
    #[error("capability {name} is not available on this node")]
    CapabilityUnavailable {
        /// Name with `CAP_`.
        name: String,
    },
    /// A mount of a volume that the pod does not have, or that is not ready.
    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    NoSuchVolume {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
    },
    /// A container is to see the processes of one that has not begun.
    #[error("unable to find target container {name}")]
    NoTarget {
        /// The one that has not.
        name: String,
    },
    /// A container is to see the processes of one that does not run.
    #[error("invalid target container: container {name:?} is not running")]
    TargetNotRunning {
        /// The one that does not.
        name: String,
    },
    /// `subPathExpr` names variables that are not there or empty.
    #[error("missing value for {}", names.join(", "))]
    SubPathVariables {
        /// The variables.
        names: Vec<String>,
    },
    /// `subPath` is absolute.
    #[error("error SubPath `{path}` must not be an absolute path")]
    SubPathAbsolute {
        /// The path as written: expanded it may be secret.
        path: String,
    },
    /// `subPath` goes up.
    #[error("unable to provision SubPath `{path}`: must not contain '..'")]
    SubPathBacksteps {
        /// The path as written: expanded it may be secret.
        path: String,
    },
    /// `recursiveReadOnly: Enabled` under a runtime that cannot do it. Source: `resolveRecursiveReadOnly` of
    /// `pkg/kubelet/kubelet_pods.go`.
    #[error(
        "failed to resolve recursive read-only mode: volume {volume:?} requested recursive read-only mode, but it is \
         not supported by the runtime"
    )]
    RecursiveReadOnly {
        /// The volume.
        volume: String,
    },
    /// A `VOLUME` of the image that is no path below the root (CVE-2022-23648).
    #[error("image has an invalid volume path {path:?}")]
    ImageVolume {
        /// The path.
        path: String,
    },
    /// More `VOLUME`s than anyone needs.
    #[error("image has {count} volumes, more than {max}")]
    ImageVolumes {
        /// How many.
        count: usize,
        /// How many are taken.
        max: usize,
    },
    /// An AppArmor profile that cannot be given. Source: containerd `internal/cri/sputil/apparmor_linux.go`.
    #[error("failed to generate apparmor spec opts: {why}")]
    AppArmor {
        /// Why not.
        why: String,
    },
    /// The SELinux label.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// A seccomp profile that cannot be used (CVE-2023-2431).
    #[error("cannot load seccomp profile {path:?}: {why}")]
    Seccomp {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// Ids of the pod cannot be written.
    #[error("map the ids of the pod's user namespace: {0}")]
    Maps(String),
}

impl ConfigError {
    /// Reason of the container's waiting state: what the kubelet would find itself, or what containerd would answer.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Downward(_)
            | Self::TooLong(_)
            | Self::Hostname(_)
            | Self::Resolv(_)
            | Self::RootAskedFor { .. }
            | Self::ImageRunsAsRoot { .. }
            | Self::NonNumericUser { .. }
            | Self::NoSuchVolume { .. }
            | Self::NoSuchDevice { .. }
            | Self::NoTarget { .. }
            | Self::SubPathVariables { .. }
            | Self::SubPathAbsolute { .. }
            | Self::SubPathBacksteps { .. }
            | Self::RecursiveReadOnly { .. } => "CreateContainerConfigError",
            Self::NoCommand
            | Self::Nul { .. }
            | Self::EnvName { .. }
            | Self::WorkingDir { .. }
            | Self::IdOutOfRange { .. }
            | Self::UserSyntax { .. }
            | Self::NoSuchUser { .. }
            | Self::TargetNotRunning { .. }
            | Self::CapabilityUnavailable { .. }
            | Self::ImageVolume { .. }
            | Self::ImageVolumes { .. }
            | Self::AppArmor { .. }
            | Self::Label(_)
            | Self::Seccomp { .. }
            | Self::Maps(_) => "CreateContainerError",
        }
    }
}
