//! The owners of namespaces, and their rights.
#![expect(unsafe_code, reason = "ioctl_ns(2) returns a raw descriptor")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::libc;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

/// The user namespace that owns a namespace.
pub(crate) fn owner_of(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the request takes no argument.
    let owner = unsafe { libc::ioctl(namespace.as_raw_fd(), libc::NS_GET_USERNS) };
    if owner < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, close-on-exec, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(owner) })
}

/// Makes the calling process root of the user namespace that it is in.
pub(crate) fn become_root() -> io::Result<()> {
    let (user, group) = (Uid::from_raw(0), Gid::from_raw(0));
    setgroups(&[])?;
    setresgid(group, group, group)?;
    Ok(setresuid(user, user, user)?)
}
