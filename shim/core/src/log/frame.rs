//! What a container writes, cut into log lines.

use std::num::NonZeroUsize;

use super::time::{STAMP_LEN, stamp};
use crate::event::Now;

/// Age at which an unfinished line is written as a part, so that a crash loses at most this much of it.
pub const IDLE_FLUSH_MS: u64 = 100;

/// Bytes of `<time> stdout F `, what comes before a line's content.
const PREFIX_LEN: usize = STAMP_LEN + 10;

/// Most bytes of log for one byte read: a line of its own. The line that was pending comes on top.
pub const EXPANSION_MAX: usize = PREFIX_LEN + 2;

/// Which of a process's outputs a line came from. A terminal has one, [`Stream::Stdout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output, or a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

#[derive(Clone, Copy)]
enum Tag {
    Full,
    Partial,
}

/// Cuts one stream into log lines.
///
/// A `\n` ends a line and one `\r` before it is dropped. A line longer than the maximum is written in parts of that
/// length. The lines that one [`push`](Framer::push) completes share a time and go into one buffer, for one write.
#[derive(Debug)]
pub struct Framer {
    stream: Stream,
    line_bytes_max: usize,
    /// The unfinished line since its last part, at most `line_bytes_max` long.
    pending: Vec<u8>,
    /// A `\r` after `pending` that is content unless a `\n` follows.
    held_return: bool,
    /// When the oldest pending byte came.
    since_ms: u64,
}

impl Framer {
    /// A framer of `stream` whose lines carry at most `line_bytes_max` bytes of content.
    pub fn new(stream: Stream, line_bytes_max: NonZeroUsize) -> Self {
        let line_bytes_max = line_bytes_max.get();
        Self { stream, line_bytes_max, pending: Vec::new(), held_return: false, since_ms: 0 }
    }

    /// Takes what was read and appends the lines that it completes to `out`.
    pub fn push(&mut self, now: Now, input: &[u8], out: &mut Vec<u8>) {
        let prefix = self.prefix(now);
        let mut rest = input;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let line = &rest[..end];
            rest = &rest[end + 1..];
            let (line, ended_by_return) = match line {
                [content @ .., b'\r'] => (content, true),
                content => (content, false),
            };
            if !line.is_empty() || ended_by_return {
                self.release_return(&prefix, out);
            }
            self.held_return = false;
            let tail = self.parts(&prefix, line, out);
            record(&prefix, Tag::Full, &self.pending, tail, out);
            self.pending.clear();
        }
        self.keep(now, &prefix, rest, out);
    }

    /// The [`Now::mono_ms`] at which [`flush`](Framer::flush) has something to write, unless more is read first.
    pub fn flush_at_ms(&self) -> Option<u64> {
        (!self.pending.is_empty()).then(|| self.since_ms + IDLE_FLUSH_MS)
    }

    /// Appends the unfinished line to `out` as a part, once it is [`IDLE_FLUSH_MS`] old.
    pub fn flush(&mut self, now: Now, out: &mut Vec<u8>) {
        if self.flush_at_ms().is_some_and(|at| at <= now.mono_ms) {
            self.write_pending(now, out);
        }
    }

    /// Appends what is left at the end of the stream to `out`, as a part.
    pub fn finish(&mut self, now: Now, out: &mut Vec<u8>) {
        let prefix = self.prefix(now);
        self.release_return(&prefix, out);
        if !self.pending.is_empty() {
            self.write_pending(now, out);
        }
    }

    fn write_pending(&mut self, now: Now, out: &mut Vec<u8>) {
        record(&self.prefix(now), Tag::Partial, &self.pending, &[], out);
        self.pending = Vec::new();
    }

    /// Keeps the unfinished end of what was read.
    fn keep(&mut self, now: Now, prefix: &[u8; PREFIX_LEN], rest: &[u8], out: &mut Vec<u8>) {
        if rest.is_empty() {
            return;
        }
        self.release_return(prefix, out);
        let content = rest.strip_suffix(b"\r");
        self.held_return = content.is_some();
        let was_empty = self.pending.is_empty();
        let tail = self.parts(prefix, content.unwrap_or(rest), out);
        if was_empty || self.pending.is_empty() {
            self.since_ms = now.mono_ms;
        }
        self.pending.extend_from_slice(tail);
    }

    /// Makes a held `\r` content, now that something other than a `\n` follows.
    fn release_return(&mut self, prefix: &[u8; PREFIX_LEN], out: &mut Vec<u8>) {
        if std::mem::take(&mut self.held_return) {
            let tail = self.parts(prefix, b"\r", out);
            self.pending.extend_from_slice(tail);
        }
    }

    /// Writes parts while the pending line and `content` are too long for one, and returns the rest of `content`.
    fn parts<'c>(&mut self, prefix: &[u8; PREFIX_LEN], content: &'c [u8], out: &mut Vec<u8>) -> &'c [u8] {
        let mut rest = content;
        while self.pending.len() + rest.len() > self.line_bytes_max {
            let (part, after) = rest.split_at(self.line_bytes_max - self.pending.len());
            record(prefix, Tag::Partial, &self.pending, part, out);
            self.pending.clear();
            rest = after;
        }
        rest
    }

    fn prefix(&self, now: Now) -> [u8; PREFIX_LEN] {
        let mut prefix = [b' '; PREFIX_LEN];
        prefix[..STAMP_LEN].copy_from_slice(&stamp(now.unix_ns));
        prefix[STAMP_LEN + 1..STAMP_LEN + 7].copy_from_slice(match self.stream {
            Stream::Stdout => b"stdout",
            Stream::Stderr => b"stderr",
        });
        prefix
    }
}

/// Appends one log line whose content is `head` and `tail`.
fn record(prefix: &[u8; PREFIX_LEN], tag: Tag, head: &[u8], tail: &[u8], out: &mut Vec<u8>) {
    out.reserve(PREFIX_LEN + head.len() + tail.len() + 1);
    out.extend_from_slice(prefix);
    if let Some(place) = out.len().checked_sub(2).and_then(|at| out.get_mut(at)) {
        *place = match tag {
            Tag::Full => b'F',
            Tag::Partial => b'P',
        };
    }
    out.extend_from_slice(head);
    out.extend_from_slice(tail);
    out.push(b'\n');
}
