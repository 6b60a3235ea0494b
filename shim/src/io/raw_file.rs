//! A file that output is appended to as it is: `file://`.
//!
//! The process writes to a pipe and not to the file, as with the runc shim: a process could truncate the file, read it
//! back or write it anywhere. When the disk fails, what does not fit is dropped and counted, and the process goes on.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use berth_shim_core::Now;
use berth_shim_core::log::{Attempt, Sink, Stream};
use nix::libc;

use super::log_file::{as_u64, write_all};

/// Which outputs go to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outputs {
    Only(Stream),
    Both,
}

#[derive(Debug)]
pub(crate) struct RawFile {
    path: PathBuf,
    outputs: Outputs,
    file: File,
    sink: Sink,
}

impl RawFile {
    /// Opens the file, and makes it and the directories above it where they are missing.
    pub(crate) fn open(path: PathBuf, outputs: Outputs) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let file = open(&path)?;
        Ok(Self { path, outputs, file, sink: Sink::new(0, None) })
    }

    /// Appends what one of the process's outputs has brought, if it is one of those.
    pub(crate) fn push(&mut self, now: Now, stream: Stream, bytes: &[u8]) {
        if matches!(self.outputs, Outputs::Only(only) if only != stream) {
            return;
        }
        let len = bytes.len();
        match self.sink.offer(now, as_u64(len)) {
            Attempt::Write | Attempt::WriteOnNewLine => self.write(now, bytes),
            Attempt::Drop => {}
            Attempt::Reopen => match self.reopen() {
                Ok(()) => self.write(now, bytes),
                Err(_still_failing) => self.sink.failed(now, 0, as_u64(len)),
            },
        }
    }

    /// Opens the file anew, because someone moved it.
    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        self.file = open(&self.path)?;
        self.sink.opened(0);
        Ok(())
    }

    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.sink.dropped_bytes()
    }

    fn write(&mut self, now: Now, bytes: &[u8]) {
        match write_all(&mut self.file, bytes) {
            Ok(()) => self.sink.wrote(as_u64(bytes.len())),
            Err((written, error)) => {
                let path = self.path.display();
                crate::log::warning!("failed to write {path}, dropping what does not fit: {error}");
                self.sink.failed(now, as_u64(written), as_u64(bytes.len() - written));
            }
        }
    }
}

/// Non-blocking, so that a FIFO or a device in its place cannot stop the shim.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().append(true).create(true).mode(0o644).custom_flags(flags).open(path)
}
