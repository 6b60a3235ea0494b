//! The shim's own log: one line per entry to standard error, which is the `log` FIFO of the bundle.
//!
//! The FIFO is open for both directions and non-blocking, so a reader that is gone or slow costs lines, never time.

use std::fmt::Arguments;
use std::io::Write;

/// Writes one line, or loses it.
pub(crate) fn line(level: &str, message: Arguments<'_>) {
    let line = format!("level={level} msg={:?}\n", message.to_string());
    // One write(2): lines of up to a page are not mixed with those of other processes. Not through the standard library's
    // lock: a copy of the shim that is made while a thread holds it would wait for it without end.
    let _lost = nix::unistd::write(std::io::stderr(), line.as_bytes()).is_err();
}

macro_rules! warning {
    ($($argument:tt)*) => { $crate::log::line("warning", format_args!($($argument)*)) };
}

pub(crate) use warning;

/// Writes text as it is, for containerd to show as the reason of a failed start.
pub(crate) fn plain(text: &str) {
    let _lost = writeln!(std::io::stderr(), "{text}").is_err();
}
