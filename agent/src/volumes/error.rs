//! Why a volume cannot be given.

use std::{io, path::PathBuf};

/// Why a volume could not be made, mounted or removed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A hostPath is not what the pod says.
    #[error("hostPath type check failed: {path} is not {expected}")]
    WrongType {
        /// The path.
        path: PathBuf,
        /// What it should be, in the kubelet's words.
        expected: &'static str,
    },
    /// What a claim has brought is not there (`GetFileType` of `pkg/volume/util/hostutil/hostutil_linux.go`).
    #[error("path {path:?} does not exist")]
    NoSuchPath {
        /// The path.
        path: PathBuf,
    },
    /// It is neither (`getGlobalLocalPath` of `pkg/volume/local/local.go`).
    #[error("only directory and block device are supported")]
    NoDirectory {
        /// The path.
        path: PathBuf,
    },
    /// It is a device that is to be shown as a directory.
    #[error(
        "{path:?} is a device: this version mounts no file system that is on one, use volumeMode Block or a directory"
    )]
    FileSystemOfDevice {
        /// The path.
        path: PathBuf,
    },
    /// It is to be a device.
    #[error("{path:?} is not a block device")]
    NoBlockDevice {
        /// The path.
        path: PathBuf,
    },
    /// Another pod has it alone.
    #[error("volume uses the ReadWriteOncePod access mode and is already in use by another pod")]
    InUse,
    /// Another pod has not got it whole yet.
    #[error("it is being given to the group of another pod, which is to have it at {by}")]
    BeingGiven {
        /// Where that pod has it.
        by: PathBuf,
    },
    /// A path that content is not to be written to. The words are upstream's (`validatePath` of `atomic_writer.go`).
    #[error("invalid path: {why}: {path}")]
    WrongPath {
        /// What is wrong with it.
        why: &'static str,
        /// The path, cut when it is long.
        path: String,
    },
    /// A call failed.
    #[error("{act} {path}")]
    Io {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

/// Says what was tried on what.
pub(super) fn io_error<E: Into<io::Error>>(
    act: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(E) -> VolumeError {
    let path = path.into();
    move |error| VolumeError::Io { act, path, source: error.into() }
}
