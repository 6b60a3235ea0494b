//! Where a log file stands: how full it is, and whether the disk takes it.
//!
//! A container is never held up by its log. When a write fails, what does not fit is dropped and counted, and the file
//! is opened anew after a while.

use std::num::NonZeroU64;

use crate::event::Now;

/// Time from a failed write or open to the next attempt.
pub const REOPEN_AFTER_MS: u64 = 1_000;

/// What to do with a batch of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// Write it, then report [`Sink::wrote`] or [`Sink::failed`].
    Write,
    /// Write a `\n` and then the batch: the line before it was cut off.
    WriteOnNewLine,
    /// Open the file again, report [`Sink::opened`] or [`Sink::failed`], and ask again.
    Reopen,
    /// Drop it: it is counted.
    Drop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Writing,
    Dropping { reopen_at_ms: u64 },
}

/// One log file, as far as writing to it is a decision.
#[derive(Debug)]
pub struct Sink {
    state: State,
    bytes: u64,
    bytes_max: Option<NonZeroU64>,
    dropped_bytes: u64,
    /// The file ends inside a line.
    torn: bool,
}

impl Sink {
    /// A file that was opened with `bytes` in it, to be rotated at `bytes_max`; `None` is never.
    pub fn new(bytes: u64, bytes_max: Option<NonZeroU64>) -> Self {
        Self { state: State::Writing, bytes, bytes_max, dropped_bytes: 0, torn: false }
    }

    /// A file that could not be opened.
    pub fn unopened(now: Now, bytes_max: Option<NonZeroU64>) -> Self {
        let mut sink = Self::new(0, bytes_max);
        sink.failed(now, 0, 0);
        sink
    }

    /// What to do with a batch of `len` bytes.
    pub fn offer(&mut self, now: Now, len: u64) -> Attempt {
        match self.state {
            State::Writing if self.torn => Attempt::WriteOnNewLine,
            State::Writing => Attempt::Write,
            State::Dropping { reopen_at_ms } if now.mono_ms >= reopen_at_ms => Attempt::Reopen,
            State::Dropping { .. } => {
                self.dropped_bytes += len;
                Attempt::Drop
            }
        }
    }

    /// A whole batch was written, `written` bytes in all.
    pub fn wrote(&mut self, written: u64) {
        self.bytes += written;
        self.torn = false;
    }

    /// A write failed of which `written` bytes stay in the file and `lost` bytes do not, or an open failed with a batch
    /// of `lost` bytes at hand. They are dropped.
    pub fn failed(&mut self, now: Now, written: u64, lost: u64) {
        self.bytes += written;
        self.torn &= written == 0;
        self.dropped_bytes += lost;
        self.state = State::Dropping { reopen_at_ms: now.mono_ms + REOPEN_AFTER_MS };
    }

    /// What stays of a failed write ends inside a line.
    pub fn torn(&mut self) {
        self.torn = true;
    }

    /// The file was opened, after a rotation or a failure or because someone moved it, with `bytes` in it.
    pub fn opened(&mut self, bytes: u64) {
        self.state = State::Writing;
        self.bytes = bytes;
        self.torn &= bytes > 0;
    }

    /// Whether the file is full: time to rename it and open a new one.
    pub fn is_full(&self) -> bool {
        self.state == State::Writing && self.bytes_max.is_some_and(|max| self.bytes >= max.get())
    }

    /// Bytes of log that were lost, since the container started.
    pub fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }
}
