//! Signals that nix has no names for.
#![expect(unsafe_code, reason = "kill(2) by number")]

use nix::libc;

/// Sends a signal by number; whether the process was there.
pub(crate) fn kill(pid: i32, signal: i32) -> bool {
    // SAFETY: kill takes numbers only.
    unsafe { libc::kill(pid, signal) == 0 }
}
