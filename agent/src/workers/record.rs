//! What is on record of a worker: which process it is, and what it is at.
//!
//! The worker makes its own record, a file in a directory of the agent's state (a tmpfs: nothing of this waits for a
//! disk), and holds a lock on it for as long as it lives. So a record without a lock is of one that has ended. The file is
//! empty and has the process in its name; what the worker is at is in its memory, where it needs no room.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use nix::fcntl::{Flock, FlockArg};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

/// Name of the memory in which a worker tells what it is at.
const CONTENT: &str = "berth-worker";

/// Largest content that is read back: a few names and one path.
const CONTENT_MAX: u64 = 64 << 10;

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

/// A worker's own record. Removed when it ends well.
#[derive(Debug)]
pub(super) struct Record {
    _held: Flock<File>,
    path: PathBuf,
    content: File,
}

impl Record {
    /// Makes it and takes the lock. What the worker is at is told in `content`, which the agent made with
    /// [`content`].
    pub(super) fn begin(path: &Path, content: OwnedFd) -> io::Result<Self> {
        let path = path_of(path, std::process::id());
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)?;
        let record = Self { _held: held, path, content: content.into() };
        record.set(None)?;
        Ok(record)
    }

    /// Tells what the worker is at; `None` between pieces of work.
    pub(super) fn set(&self, busy: Option<&Busy>) -> io::Result<()> {
        let text = serde_json::to_vec(&busy)?;
        // A reader in between finds no JSON, and looks again when it is asked again.
        self.content.write_all_at(&text, 0)?;
        self.content.set_len(text.len() as u64)
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

/// The record of a worker, by the path that it was given and its process.
pub(super) fn path_of(given: &Path, process: u32) -> PathBuf {
    let mut path = given.as_os_str().to_owned();
    path.push(format!("-{process}"));
    path.into()
}

/// Where a worker tells what it is at: its standard output. In memory of its own, since a directory may have no room
/// left when pods are removed to make some.
pub(super) fn content() -> io::Result<OwnedFd> {
    Ok(memfd_create(CONTENT, MemfdFlags::CLOEXEC)?)
}

/// What the record of a worker tells of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WorkerState {
    /// Its worker has ended; the record was removed.
    Ended,
    /// It lives, as this process.
    Lives(u32),
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
        Err((_, nix::Error::EWOULDBLOCK)) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let process = name.rsplit('-').next().and_then(|process| process.parse().ok());
            process
                .map(WorkerState::Lives)
                .ok_or_else(|| io::Error::other(format!("the name {name} tells no process")))
        }
        Err((_, errno)) => Err(errno.into()),
    }
}

/// What a worker that lives is at. `None` between pieces of work, and while it is being told.
pub(super) fn busy(process: u32) -> Option<Busy> {
    let output = PathBuf::from(format!("/proc/{process}/fd/1"));
    // Nothing else is opened, since that could wait.
    fs::read_link(&output).ok()?.to_str()?.strip_prefix("/memfd:")?.strip_prefix(CONTENT)?;
    let mut text = Vec::new();
    File::open(output).ok()?.take(CONTENT_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()?
}
