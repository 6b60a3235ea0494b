//! Why a root file system could not be mounted.

use std::io;
use std::path::PathBuf;

use berth_shim_core::mount::PlanError;
use berth_shim_core::{Code, Failure};
use thiserror::Error;

/// Why a root file system could not be mounted.
#[derive(Debug, Error)]
pub(crate) enum MountError {
    #[error("plan the root file system")]
    Plan(#[from] PlanError),
    #[error("mount {what} of type {kind}")]
    Mount { what: String, kind: String, source: nix::Error },
    #[error("set the flags of the mount of {what}")]
    Flags { what: String, source: nix::Error },
    #[error("mount an overlay: its options take {0} bytes, more than the kernel's page; use fewer layers")]
    TooLong(usize),
    #[error("prepare {path} for mounts", path = path.display())]
    Layers { path: PathBuf, source: nix::Error },
    #[error("open {0:?}: a component of it is a symbolic link, which an image may not have there")]
    Link(String),
    #[error("open {path:?}")]
    Open { path: String, source: nix::Error },
    #[error("make the directory {path:?}")]
    Directory { path: String, source: nix::Error },
    #[error("make the image {path:?}")]
    Image { path: String, source: nix::Error },
    #[error("set up a loop device for {image:?}")]
    Loop { image: String, source: io::Error },
    #[error("make a user namespace to map ids with")]
    UserNamespace(#[source] io::Error),
    #[error(
        "map the ids of {what:?}: the kernel or its file system cannot (Linux 5.12 for ext4 and xfs, 5.15 for btrfs, \
         5.19 for erofs and layers of overlays, 6.3 for tmpfs)"
    )]
    CannotMapIds { what: String, source: io::Error },
    #[error("attach the mount of {what:?}")]
    Attach { what: String, source: io::Error },
    #[error("run {program}")]
    Tool { program: String, source: io::Error },
    #[error("run {program}: {how}: {output}")]
    ToolFailed { program: String, how: String, output: String },
}

impl MountError {
    fn code(&self) -> Code {
        match self {
            Self::Plan(PlanError::Verity(_)) | Self::CannotMapIds { .. } => Code::FailedPrecondition,
            Self::Plan(_) | Self::TooLong(_) | Self::Link(_) => Code::InvalidArgument,
            Self::Mount { .. }
            | Self::Flags { .. }
            | Self::Layers { .. }
            | Self::Open { .. }
            | Self::Directory { .. }
            | Self::Image { .. }
            | Self::Loop { .. }
            | Self::UserNamespace(_)
            | Self::Attach { .. }
            | Self::Tool { .. }
            | Self::ToolFailed { .. } => Code::Internal,
        }
    }
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        Self::new(error.code(), format!("failed to {}", crate::with_causes(&error)))
    }
}
