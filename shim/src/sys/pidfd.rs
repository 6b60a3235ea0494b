//! Processes as descriptors: pidfd_open(2).
#![expect(unsafe_code, reason = "the call has no safe form in nix")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::process::Child;

use nix::libc;

/// A descriptor that becomes readable when the child ends.
pub(crate) fn pidfd_of(child: &Child) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only. The child was not waited for, so the number is still its own.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
