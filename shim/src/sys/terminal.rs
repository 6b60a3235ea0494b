//! Terminal sizes.
#![expect(unsafe_code, reason = "ioctl takes a pointer")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::libc;

/// Sets the size of the terminal behind a master, in characters.
pub(crate) fn resize(master: impl AsFd, columns: u16, rows: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads one winsize, which outlives the call.
    let result = unsafe { libc::ioctl(master.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
