//! Descriptors that come from outside: by number, or over a socket.
#![expect(unsafe_code, reason = "a raw descriptor becomes an owned one here, once")]

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::cmsg_space;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

/// Takes over a descriptor that the parent left open, and keeps it from children.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: fcntl takes numbers only.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: called once, at the start of the process, with the number from its own argument list: it is open, as was
    // just seen, and nothing else owns a descriptor above 2 by then.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes every descriptor of a copy of the shim but the standard ones: a copy that waits for a disk would keep sockets and
/// pipes open that the shim has closed, or has died with.
pub(crate) fn close_all() {
    // SAFETY: called in a copy of the shim that never drops what it has of it, so that no number is closed twice.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// Gives the calling thread descriptors of its own, of which it has the standard ones and this one. What it opens from now
/// on is unknown to the others, and they to it.
pub(crate) fn own_descriptors(kept: impl AsFd) -> io::Result<()> {
    let number = libc::c_uint::try_from(kept.as_fd().as_raw_fd()).map_err(io::Error::other)?;
    let close = |first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint| {
        // SAFETY: closes numbers of the thread's own table alone, from the first call on, in which nothing but `kept` is used.
        let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    close(number + 1, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    if number > 3 { close(3, number - 1, 0) } else { Ok(()) }
}

/// The descriptor that the other end has sent.
pub(crate) fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0_u8; 4096];
    let mut slices = [IoSliceMut::new(&mut byte)];
    let mut control = cmsg_space!([RawFd; 4]);
    let message =
        recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut received = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = part {
            // SAFETY: the kernel has just made these descriptors for us, and nobody else knows of them.
            received.extend(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    received.into_iter().next().ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
}

/// Starts a command whose descriptors 3, 4, … are these, in order; returns its pid.
pub(crate) fn spawn_with<const N: usize>(
    command: &mut Command,
    descriptors: [OwnedFd; N],
) -> io::Result<u32> {
    // Out of the way of the numbers that they are to have, so that no copy overwrites another one's source.
    let high = descriptors.map(|fd| fcntl(&fd, FcntlArg::F_DUPFD_CLOEXEC(64)));
    let mut sources = [0; N];
    for (source, fd) in sources.iter_mut().zip(high) {
        *source = fd?;
    }
    let place = move || {
        for (number, source) in (3..).zip(sources) {
            // SAFETY: dup2 is async-signal-safe, and both numbers are the child's own.
            if unsafe { libc::dup2(source, number) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec and calls dup2 only.
    unsafe { command.pre_exec(place) };
    let result = command.spawn().map(|child| child.id());
    for source in sources {
        // SAFETY: made by the fcntl above and known to nobody else in this process.
        drop(unsafe { OwnedFd::from_raw_fd(source) });
    }
    result
}
