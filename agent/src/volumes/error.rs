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
