//! Signals: those that nix has no names for, and handlers that leave nothing to children.
#![expect(unsafe_code, reason = "kill(2) and waitpid(2) by number, and signal handlers")]

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;
use nix::libc;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// The descriptor that a SIGCHLD makes readable.
static CHILDREN: AtomicI32 = AtomicI32::new(-1);

/// Sends a signal by number; whether the process was there.
pub(crate) fn kill(pid: i32, signal: i32) -> bool {
    // SAFETY: kill takes numbers only.
    unsafe { libc::kill(pid, signal) == 0 }
}

/// A child that has exited, and its code: 128 and the signal's number for one that was killed, whichever signal it was.
pub(crate) fn reap() -> Option<(u32, u32)> {
    let mut status = 0;
    loop {
        // SAFETY: waitpid writes one status, which outlives the call.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        match u32::try_from(pid) {
            Ok(0) => return None,
            Ok(pid) if libc::WIFSIGNALED(status) => return Some((pid, 128 + code(libc::WTERMSIG(status)))),
            Ok(pid) => return Some((pid, code(libc::WEXITSTATUS(status)))),
            Err(_) if Errno::last() == Errno::EINTR => {}
            Err(_no_children) => return None,
        }
    }
}

/// What a status holds is a few bits.
fn code(bits: libc::c_int) -> u32 {
    u32::try_from(bits).unwrap_or_default()
}

/// Makes a descriptor readable whenever a child may have exited, and the signals that end other daemons harmless.
///
/// By handlers: a blocked or ignored signal would stay so in every child, and so in containers; a handler does not.
pub(crate) fn handle_signals() -> nix::Result<EventFd> {
    let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    CHILDREN.store(event.as_fd().as_raw_fd(), Ordering::Relaxed);
    let action = |handler| SigAction::new(SigHandler::Handler(handler), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler calls write(2) only, on a descriptor that lives as long as the process.
    unsafe { sigaction(Signal::SIGCHLD, &action(child_exited)) }?;
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        // SAFETY: the handler does nothing.
        unsafe { sigaction(signal, &action(nothing)) }?;
    }
    Ok(event)
}

/// Has a copy of the shim tell nobody of its own children: in it, the descriptor is the shim's, or none.
pub(crate) fn keep_children_to_oneself() {
    CHILDREN.store(-1, Ordering::Relaxed);
}

extern "C" fn child_exited(_signal: libc::c_int) {
    let one = 1_u64;
    let fd: RawFd = CHILDREN.load(Ordering::Relaxed);
    // What the handler interrupts must not see another value.
    let errno = Errno::last_raw();
    // SAFETY: write is async-signal-safe and reads the eight bytes of a local.
    unsafe { libc::write(fd, (&raw const one).cast(), size_of::<u64>()) };
    Errno::set_raw(errno);
}

extern "C" fn nothing(_signal: libc::c_int) {}
