//! Container logs in the CRI format: framing of what a container writes, rotation, and what to do when the disk fails.
//!
//! A log line is `<time> <stream> <tag> <content>\n`, with the time in RFC 3339 with nine digits, the stream `stdout` or
//! `stderr`, and the tag `F` for the end of a line or `P` for a part of one (`internal/cri/io/logger.go` of containerd,
//! read by `pkg/kubelet/kuberuntime/logs`). Everything here is bounded: a framer keeps at most one line, and what it
//! writes for one read is at most that line and [`EXPANSION_MAX`] bytes for each byte read.

mod frame;
mod rotate;
mod sink;
#[cfg(test)]
mod tests;
mod time;

pub use frame::{EXPANSION_MAX, Framer, IDLE_FLUSH_MS, Stream};
pub use rotate::{Names, Step, compression, excess, rotated, rotated_name};
pub use sink::{Attempt, REOPEN_AFTER_MS, Sink};
pub use time::{STAMP_LEN, stamp};
