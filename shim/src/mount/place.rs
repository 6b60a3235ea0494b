//! Places for mounts and sources of mounts, as descriptors.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

use super::MountError;

/// Opens a path of ordinary components beneath a directory, as a handle. Mounts may be crossed, links not: what lies
/// there may be an image's.
pub(super) fn open_beneath(directory: impl AsFd, path: &str) -> Result<OwnedFd, MountError> {
    open_beneath_as(directory, path, OFlag::O_PATH)
}

/// The same, with other flags of open(2).
pub(super) fn open_beneath_as(directory: impl AsFd, path: &str, flags: OFlag) -> Result<OwnedFd, MountError> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    let path = if path.is_empty() { "." } else { path };
    openat2(directory, path, how).map_err(|error| match error {
        Errno::ELOOP => MountError::Link(path.to_owned()),
        source => MountError::Open { path: path.to_owned(), source },
    })
}

/// Opens a path that the client names, as a handle.
pub(super) fn open_node(path: &str) -> Result<OwnedFd, MountError> {
    open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|source| MountError::Open { path: path.to_owned(), source })
}

/// Opens a directory to work in.
pub(super) fn open_directory(path: &Path) -> Result<OwnedFd, MountError> {
    open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|source| MountError::Open { path: path.display().to_string(), source })
}

/// A path by which the kernel finds what a descriptor is open for, in this process.
pub(super) fn path_of(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd())
}
