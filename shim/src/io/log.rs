//! A container's log: lines are made of its output here, in the loop, since they tell when they came.

use std::io;
use std::path::PathBuf;

use berth_shim_core::Now;
use berth_shim_core::log::{Framer, Stream};

use super::writer::{Target, Writer, Writing};
use super::{LogFile, LogOptions};

#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) path: PathBuf,
    stdout: Framer,
    stderr: Framer,
    pub(crate) writer: Writer,
}

impl Log {
    /// Begins a log.
    pub(crate) fn start(writing: &Writing, options: LogOptions) -> io::Result<Self> {
        let stdout = Framer::new(Stream::Stdout, options.line_bytes_max);
        let stderr = Framer::new(Stream::Stderr, options.line_bytes_max);
        let path = options.path.clone();
        let writer = Writer::start(writing, Target::Log(LogFile::new(options)))?;
        Ok(Self { path, stdout, stderr, writer })
    }

    /// Queues the lines that these bytes complete.
    pub(crate) fn push(&mut self, now: Now, stream: Stream, bytes: &[u8]) {
        let Self { stdout, stderr, writer, .. } = self;
        writer.push(|queue| match stream {
            Stream::Stdout => stdout.push(now, bytes, queue),
            Stream::Stderr => stderr.push(now, bytes, queue),
        });
    }

    /// Writes what is left of a stream that has ended.
    pub(crate) fn finish(&mut self, now: Now, stream: Stream) {
        let Self { stdout, stderr, writer, .. } = self;
        writer.push(|queue| match stream {
            Stream::Stdout => stdout.finish(now, queue),
            Stream::Stderr => stderr.finish(now, queue),
        });
        writer.kick();
    }

    /// When [`flush`](Self::flush) is due.
    pub(crate) fn flush_at_ms(&self) -> Option<u64> {
        self.stdout.flush_at_ms().into_iter().chain(self.stderr.flush_at_ms()).min()
    }

    /// Writes unfinished lines that are old enough.
    pub(crate) fn flush(&mut self, now: Now) {
        let Self { stdout, stderr, writer, .. } = self;
        writer.push(|queue| {
            stdout.flush(now, queue);
            stderr.flush(now, queue);
        });
        writer.kick();
    }
}
