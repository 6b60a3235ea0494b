//! The ends of a process's streams that the shim keeps.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;

use berth_shim_core::log::Stream;

use super::{Copy, Log, Writer};
use crate::poll::Token;

/// Bytes that wait for a terminal's reader, before the terminal is not read.
pub(crate) const RELAY_BYTES_MAX: usize = 64 << 10;

/// A client of the shim's own service that streams with a process.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) conn: u64,
    pub(crate) stream: u32,
    pub(crate) role: Role,
}

/// What a client is to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The process exists for this client, and waits for it.
    Owner,
    /// A client that looks on. One that is slow is dropped.
    Guest { stdout: bool, stderr: bool },
}

impl Role {
    pub(crate) fn wants(self, stream: Stream) -> bool {
        match (self, stream) {
            (Self::Owner, _) => true,
            (Self::Guest { stdout, .. }, Stream::Stdout) => stdout,
            (Self::Guest { stderr, .. }, Stream::Stderr) => stderr,
        }
    }
}

/// Output kept for `ExecSync`, up to a limit per stream; the rest is read and dropped.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    max: usize,
}

impl Capture {
    pub(crate) fn new(max: usize) -> Self {
        Self { stdout: Vec::new(), stderr: Vec::new(), max }
    }

    pub(crate) fn push(&mut self, stream: Stream, bytes: &[u8]) {
        let kept = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let room = self.max.saturating_sub(kept.len()).min(bytes.len());
        kept.extend_from_slice(bytes.get(..room).unwrap_or_default());
    }
}

/// A pipe or terminal that the shim reads.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) fd: File,
    pub(crate) stream: Stream,
    /// Not watched, until a client or relay has taken what was read.
    pub(crate) stalled: bool,
}

/// A named pipe or logging program that a terminal's output is copied to. It is waited for, as a container's own write
/// to it would.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) fd: File,
    pub(crate) token: Token,
    pub(crate) watched: bool,
    pub(crate) pending: VecDeque<u8>,
}

/// A pipe or terminal that the shim writes.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) fd: File,
    pub(crate) token: Token,
    pub(crate) watched: bool,
    pub(crate) pending: VecDeque<u8>,
    /// Close it once everything is written.
    pub(crate) closing: bool,
}

/// What a client sends before its process is there.
#[derive(Debug, Default)]
pub(crate) struct Early {
    pub(crate) input: VecDeque<u8>,
    pub(crate) closed: bool,
    pub(crate) size: Option<(u16, u16)>,
}

impl ProcessIo {
    /// Whether any stream is the shim's to share with clients, or was; otherwise they lead past it.
    pub(crate) fn is_shims(&self) -> bool {
        let reads = !self.outputs.is_empty() || self.log.is_some() || !self.files.is_empty();
        reads || self.input.is_some() || self.master.is_some()
    }

    /// Who writes its logs and files.
    pub(crate) fn writers(&self) -> impl Iterator<Item = &Writer> {
        self.log.iter().map(|log| &log.writer).chain(self.files.iter().map(|file| &file.writer))
    }

    /// Whether a log or file is so far behind that the process should not be read from.
    pub(crate) fn is_behind(&self) -> bool {
        // Each of them is asked, so that each tells when it is not.
        self.writers().filter(|writer| writer.is_full()).count() > 0
    }

    /// Whether nothing more should be read of it now.
    pub(crate) fn is_held(&self) -> bool {
        let relay_is_full = self.relay.as_ref().is_some_and(|relay| relay.pending.len() >= RELAY_BYTES_MAX);
        self.is_behind() || self.client_is_behind || relay_is_full
    }

    /// Whether everything that was read is where it belongs.
    pub(crate) fn is_written(&self) -> bool {
        self.writers().filter(|writer| !writer.is_at_rest()).count() == 0
    }

    /// Bytes that the process has not taken yet.
    pub(crate) fn waiting_input(&self) -> usize {
        let early = self.early.as_ref().map_or(0, |early| early.input.len());
        early + self.input.as_ref().map_or(0, |input| input.pending.len())
    }
}

/// What is kept for one process.
#[derive(Debug, Default)]
pub(crate) struct ProcessIo {
    pub(crate) outputs: Vec<(Token, Output)>,
    /// Where a terminal's output is copied to, when it is not a log.
    pub(crate) relay: Option<Relay>,
    pub(crate) input: Option<Input>,
    /// Closed when the first client that may write goes.
    pub(crate) stdin_once: bool,
    /// A named pipe whose bytes go to a terminal.
    pub(crate) stdin_fifo: Option<(Token, File)>,
    /// The write end of a named pipe that is the process's input: without it, one client's leaving would end the input.
    pub(crate) stdin_keeper: Option<OwnedFd>,
    /// Read ends of named pipes that are the process's outputs: without them, a client's leaving would kill it, and what
    /// nobody has read by its end would be lost.
    #[expect(dead_code, reason = "held open, never used")]
    pub(crate) keepers: Vec<OwnedFd>,
    /// The terminal's master, for its size.
    pub(crate) master: Option<OwnedFd>,
    /// What its client sent before the process was there.
    pub(crate) early: Option<Early>,
    pub(crate) log: Option<Log>,
    /// Files that output is copied to.
    pub(crate) files: Vec<Copy>,
    /// The logging program, by pid: it goes with the process.
    pub(crate) logger: Option<u32>,
    pub(crate) capture: Option<Capture>,
    pub(crate) clients: Vec<Client>,
    /// The client that it exists for has not taken what it wrote.
    pub(crate) client_is_behind: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cve_2022_1708_exec_output_is_capped_per_stream() {
        let mut capture = Capture::new(10);
        for _ in 0..1000 {
            capture.push(Stream::Stdout, b"0123456");
            capture.push(Stream::Stderr, b"x");
        }
        assert_eq!(capture.stdout, b"0123456012");
        assert_eq!(capture.stderr.len(), 10);
        assert!(capture.stdout.capacity() <= 64);
    }
}
