//! What is on record of a worker: which process it is, and what it is at.
//!
//! The worker writes its own record, a file in a directory of the agent's state (a tmpfs: nothing of this waits for a
//! disk), and holds a lock on it for as long as it lives. So a record without a lock is of one that has ended.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

/// Largest record that is read back: a few names and one path.
const RECORD_MAX: u64 = 64 << 10;

/// A piece of work, as people and the next agent are told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Busy {
    /// UID of the pod it is for.
    pub(super) pod: String,
    /// What is being done; with the pod, what is done only once at a time.
    pub(super) what: String,
    /// On what.
    pub(super) path: String,
    /// Since when.
    pub(super) since: Timestamp,
}

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Written {
    /// The process.
    pub(super) process: u32,
    /// When it started, in the kernel's ticks since boot: with the number, which process is meant.
    pub(super) started: u64,
    /// What it is at; `None` between pieces of work.
    pub(super) busy: Option<Busy>,
}

/// A worker's own record. Removed when it ends well.
#[derive(Debug)]
pub(super) struct Record {
    file: Flock<File>,
    path: PathBuf,
    process: u32,
    started: u64,
}

impl Record {
    /// Makes it and takes the lock.
    pub(super) fn begin(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)?;
        let process = std::process::id();
        let started = started(process).ok_or(io::ErrorKind::NotFound)?;
        let record = Self { file, path, process, started };
        record.set(None)?;
        Ok(record)
    }

    /// Tells what the worker is at.
    pub(super) fn set(&self, busy: Option<Busy>) -> io::Result<()> {
        let written = Written { process: self.process, started: self.started, busy };
        let text = serde_json::to_vec(&written)?;
        // A reader in between finds no JSON, and looks again when it is asked again.
        self.file.write_all_at(&text, 0)?;
        self.file.set_len(text.len() as u64)
    }
}

#[cfg(test)]
impl Record {
    /// As if it were of a process that is not this one.
    pub(super) fn set_as_another(&self, busy: Busy) -> io::Result<()> {
        let written = Written { process: u32::MAX, started: 0, busy: Some(busy) };
        let text = serde_json::to_vec(&written)?;
        self.file.write_all_at(&text, 0)?;
        self.file.set_len(text.len() as u64)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // Else the next agent does it.
        drop(fs::remove_file(&self.path));
    }
}

/// Makes the directory of records.
pub(super) fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// What the record of a worker tells of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WorkerState {
    /// Its worker has ended; the record was removed.
    Ended,
    /// It lives. The content is missing while it is being written.
    Lives(Option<Written>),
}

/// Looks at a record, and removes it when its worker has ended.
pub(super) fn look(path: &Path) -> io::Result<WorkerState> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(WorkerState::Ended),
        Err(error) => return Err(error),
    };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(_lock) => {
            fs::remove_file(path).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?;
            Ok(WorkerState::Ended)
        }
        Err((file, nix::Error::EWOULDBLOCK)) => {
            let mut text = Vec::new();
            io::Read::read_to_end(&mut io::Read::take(file, RECORD_MAX), &mut text)?;
            Ok(WorkerState::Lives(serde_json::from_slice(&text).ok()))
        }
        Err((_, errno)) => Err(errno.into()),
    }
}

/// When a process started, as `/proc/<pid>/stat` tells in its field 22 (proc(5)).
pub(super) fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}
