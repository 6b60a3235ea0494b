//! Processes as descriptors: pidfd_open(2), pidfd_send_signal(2).
#![expect(unsafe_code, reason = "the calls have no safe form in nix")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::Child;

use nix::libc;

/// Holds a process by its number, whoever has that now.
pub(crate) fn hold(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a signal by number to a process that is held; whether it was there.
pub(crate) fn signal_held(process: &OwnedFd, signal: i32) -> bool {
    // SAFETY: takes numbers, and a null pointer where a pointer may be missing.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    sent == 0
}

/// A descriptor that becomes readable when the child ends.
pub(crate) fn pidfd_of(child: &Child) -> io::Result<OwnedFd> {
    // The child was not waited for, so the number is still its own.
    hold(child.id())
}
