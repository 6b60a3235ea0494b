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
use super::writer::{Target, Writer, Writing};

/// Which outputs go to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outputs {
    Only(Stream),
    Both,
}

/// A file that outputs are copied to.
#[derive(Debug)]
pub(crate) struct Copy {
    outputs: Outputs,
    pub(crate) writer: Writer,
}

impl Copy {
    /// Begins to copy.
    pub(crate) fn start(writing: &Writing, path: PathBuf, outputs: Outputs) -> io::Result<Self> {
        let file = RawFile { path, file: None, sink: Sink::new(0, None) };
        Ok(Self { outputs, writer: Writer::start(writing, Target::Raw(file))? })
    }

    /// Appends what one of the process's outputs has brought, if it is one of those.
    pub(crate) fn push(&mut self, stream: Stream, bytes: &[u8]) {
        if !matches!(self.outputs, Outputs::Only(only) if only != stream) {
            self.writer.push(|queue| queue.extend_from_slice(bytes));
        }
    }
}

#[derive(Debug)]
pub(crate) struct RawFile {
    path: PathBuf,
    file: Option<File>,
    sink: Sink,
}

impl RawFile {
    /// Opens the file.
    pub(crate) fn open(&mut self, now: Now) {
        if let Err(error) = self.reopen(now) {
            crate::log::warning!("failed to open {}: {error}", self.path.display());
        }
    }

    /// Appends bytes as they are.
    pub(crate) fn write(&mut self, now: Now, bytes: &[u8]) {
        match self.sink.offer(now, as_u64(bytes.len())) {
            Attempt::Write | Attempt::WriteOnNewLine => self.append(now, bytes),
            Attempt::Drop => {}
            Attempt::Reopen => match self.reopen(now) {
                Ok(()) => self.append(now, bytes),
                Err(_still_failing) => self.sink.failed(now, 0, as_u64(bytes.len())),
            },
        }
    }

    /// Opens the file anew, because someone moved it.
    pub(crate) fn reopen(&mut self, now: Now) -> io::Result<()> {
        match check(&self.path) {
            Ok(file) => {
                self.file = Some(file);
                self.sink.opened(0);
                Ok(())
            }
            Err(error) => {
                self.file = None;
                self.sink.failed(now, 0, 0);
                Err(error)
            }
        }
    }

    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.sink.dropped_bytes()
    }

    fn append(&mut self, now: Now, bytes: &[u8]) {
        let none = || Err((0, io::Error::from(io::ErrorKind::NotFound)));
        match self.file.as_mut().map_or_else(none, |file| write_all(file, bytes)) {
            Ok(()) => self.sink.wrote(as_u64(bytes.len())),
            Err((written, error)) => {
                let path = self.path.display();
                crate::log::warning!("failed to write {path}, dropping what does not fit: {error}");
                self.sink.failed(now, as_u64(written), as_u64(bytes.len() - written));
            }
        }
    }
}

/// Opens a file for its output, and makes it and the directories above it where they are missing. May wait for a disk.
pub(crate) fn check(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    open(path)
}

/// Non-blocking, so that a FIFO or a device in its place cannot stop the shim.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().append(true).create(true).mode(0o644).custom_flags(flags).open(path)
}
