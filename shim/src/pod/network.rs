//! The network namespace that the sandbox was given.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sched::{CloneFlags, setns};

use super::error::PodError;

/// An open file that should be a network namespace.
#[derive(Debug)]
pub(super) struct Netns {
    file: File,
    pub(super) path: PathBuf,
}

impl Netns {
    pub(super) fn open(path: &Path) -> Result<Self, PodError> {
        // Never to wait for whoever would write, if it is something else.
        match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
            Ok(file) => Ok(Self { file, path: path.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(PodError::NetnsGone { path: path.to_owned() })
            }
            Err(source) => Err(PodError::OpenNetns { path: path.to_owned(), source }),
        }
    }

    pub(super) fn enter(self) -> Result<(), PodError> {
        let Self { file, path } = self;
        setns(file, CloneFlags::CLONE_NEWNET).map_err(|error| match error {
            // The file under a mount that is gone is an empty one.
            nix::Error::EINVAL => PodError::NoNetns { path },
            error => PodError::EnterNetns { path, source: error.into() },
        })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
