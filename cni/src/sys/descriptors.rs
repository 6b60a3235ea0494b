//! Keeping inherited descriptors away from plugins.
#![expect(unsafe_code, reason = "close_range has no safe wrapper in the crates used")]

use std::io;

/// Marks every descriptor above standard error as closed on exec. Call it once at the start of the program.
///
/// Rust opens everything that way itself; this covers what the program was started with, such as sockets of systemd.
/// It costs nothing per plugin, where closing in each child would force a fork instead of a vfork.
///
/// # Errors
/// The kernel is older than Linux 5.11.
pub fn close_inherited_on_exec() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    let flags = libc::CLOSE_RANGE_CLOEXEC.cast_signed();
    // SAFETY: takes three numbers, and with this flag only changes what exec does with descriptors.
    let done = unsafe { libc::close_range(FIRST, libc::c_uint::MAX, flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
