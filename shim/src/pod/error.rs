//! Why a pod's namespaces could not be had.

use std::io;
use std::path::PathBuf;

use berth_shim_core::namespace::{IdMapError, ModesError, ShmSizeError, SysctlError};
use berth_shim_core::{Code, Failure};
use thiserror::Error;

#[derive(Debug, Error)]
pub(crate) enum PodError {
    #[error("read the sandbox's options: namespace mode {0} is unknown")]
    Mode(i32),
    #[error(transparent)]
    Modes(#[from] ModesError),
    #[error(transparent)]
    Maps(#[from] IdMapError),
    #[error(transparent)]
    ShmSize(#[from] ShmSizeError),
    #[error(transparent)]
    SysctlName(#[from] SysctlError),
    #[error(
        "enter the network namespace {path}: nothing is there; make it again, and hold it for as long as the sandbox lives",
        path = path.display()
    )]
    NetnsGone { path: PathBuf },
    #[error(
        "enter {path}: it is no network namespace, or not any more; make it again, and hold it for as long as the sandbox lives",
        path = path.display()
    )]
    NoNetns { path: PathBuf },
    #[error("open the network namespace {path}", path = path.display())]
    OpenNetns { path: PathBuf, source: io::Error },
    #[error("enter the network namespace {path}", path = path.display())]
    EnterNetns { path: PathBuf, source: io::Error },
    #[error(
        "give the pod a user namespace: the network namespace {path} belongs to the node's; make it in a user namespace \
         with the pod's maps, or give none for the node's network",
        path = path.display()
    )]
    NodesNetns { path: PathBuf },
    #[error(
        "give the pod a user namespace: the one that the network namespace is owned by maps ids as {found:?}, not as \
         {asked:?}; make it with the pod's maps"
    )]
    OtherMaps { asked: String, found: String },
    #[error("make the pod's user namespace")]
    MakeUser(#[source] io::Error),
    #[error("look into the pod's user namespace")]
    LookUser(#[source] io::Error),
    #[error("find the node's namespaces")]
    Node(#[source] io::Error),
    #[error("make the pod's IPC and UTS namespaces")]
    Unshare(#[source] io::Error),
    #[error("set the host name {name:?}")]
    HostName { name: String, source: nix::Error },
    #[error("set sysctl {file:?}")]
    Sysctl { file: String, source: io::Error },
    #[error("make the pod's /dev/shm at {path}", path = path.display())]
    ShmDirectory { path: PathBuf, source: io::Error },
    #[error("mount the pod's /dev/shm")]
    ShmMount(#[source] nix::Error),
    #[error("label the pod's /dev/shm as {label:?}")]
    ShmLabel { label: String, source: io::Error },
    #[error("start the pod's PID 1")]
    Pid1(#[source] io::Error),
    #[error("read the container's {list}: it is no list of containerID, hostID and size")]
    MemberMaps { list: &'static str },
    #[error(
        "put the container into the pod's user namespace: its {list} are not the pod's; leave them out, or say the same"
    )]
    MemberOtherMaps { list: &'static str },
}

impl PodError {
    fn code(&self) -> Code {
        match self {
            Self::Mode(_)
            | Self::Modes(_)
            | Self::Maps(_)
            | Self::ShmSize(_)
            | Self::SysctlName(_)
            | Self::MemberMaps { .. }
            | Self::MemberOtherMaps { .. } => Code::InvalidArgument,
            Self::NetnsGone { .. }
            | Self::NoNetns { .. }
            | Self::NodesNetns { .. }
            | Self::OtherMaps { .. } => Code::FailedPrecondition,
            Self::OpenNetns { .. }
            | Self::EnterNetns { .. }
            | Self::MakeUser(_)
            | Self::LookUser(_)
            | Self::Node(_)
            | Self::Unshare(_)
            | Self::HostName { .. }
            | Self::Sysctl { .. }
            | Self::ShmDirectory { .. }
            | Self::ShmMount(_)
            | Self::ShmLabel { .. }
            | Self::Pid1(_) => Code::Internal,
        }
    }
}

impl From<PodError> for Failure {
    fn from(error: PodError) -> Self {
        Self::new(error.code(), format!("failed to {}", crate::with_causes(&error)))
    }
}
