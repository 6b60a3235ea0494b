//! Records of pods on disk: `<run>/pods/<uid>.json`.
//!
//! Written before the first act for a pod and removed after the last thing of it is gone (decision 0003). A new version
//! replaces the old one by rename, without fsync: what must survive a power loss is elsewhere, and `/run` does not.
//! Only one agent at a time owns the directory.

mod wire;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use berth_core::{id::PodUid, record::PodRecord};
use nix::fcntl::{Flock, FlockArg};

pub use wire::DecodeError;

/// Largest record that is read back, in bytes: a manifest of 1 MiB, escaped, and the runs of its containers.
const RECORD_MAX: u64 = 8 << 20;

/// The records, and the right to write them.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    boot: String,
    _lock: Flock<File>,
}

/// Why the records cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another agent has them.
    #[error(
        "lock {0}: another agent (process {1}) runs on this directory; stop it, or give this one another stateDir"
    )]
    Taken(PathBuf, String),
    /// A file or directory cannot be used.
    #[error("{act} {path}")]
    Io {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl Store {
    /// Takes the records below `run`, which is made when it is missing.
    ///
    /// # Errors
    /// When another agent has them, or the directory cannot be used.
    pub fn open(run: &Path) -> Result<Self, StoreError> {
        let dir = run.join("pods");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(io_error("create", &dir))?;
        let path = run.join("agent.lock");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io_error("open", &path))?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(file, errno)| {
            if errno == nix::Error::EWOULDBLOCK {
                StoreError::Taken(path.clone(), owner(file))
            } else {
                io_error("lock", &path)(errno.into())
            }
        })?;
        lock.set_len(0).map_err(io_error("write", &path))?;
        writeln!(&*lock, "{}", std::process::id()).map_err(io_error("write", &path))?;
        let boot_file = Path::new("/proc/sys/kernel/random/boot_id");
        let boot = fs::read_to_string(boot_file).map_err(io_error("read", boot_file))?.trim().to_owned();
        Ok(Self { dir, boot, _lock: lock })
    }

    /// Writes a pod's record.
    ///
    /// # Errors
    /// When the file cannot be written; the old record is then still there.
    pub fn save(&self, record: &PodRecord) -> Result<(), StoreError> {
        let path = self.path(&record.uid);
        let new = path.with_extension("new");
        let text = wire::encode(record, &self.boot);
        let write = || {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&new, &path)
        };
        write().map_err(io_error("write", &path))
    }

    /// Removes a pod's record.
    ///
    /// # Errors
    /// When it is there and cannot be removed.
    pub fn remove(&self, uid: &PodUid) -> Result<(), StoreError> {
        let path = self.path(uid);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", &path)(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Reads every record. One that cannot be read is moved aside and warned about; what it described is then found by
    /// observation.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn load(&self) -> Result<Vec<PodRecord>, StoreError> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(io_error("list", &self.dir))? {
            let path = entry.map_err(io_error("list", &self.dir))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match self.read(&path) {
                Ok(record) => records.push(record),
                Err(error) => set_aside(&path, &error),
            }
        }
        records.sort_by(|one, other| one.uid.cmp(&other.uid));
        Ok(records)
    }

    fn read(&self, path: &Path) -> Result<PodRecord, ReadError> {
        let mut text = String::new();
        File::open(path)?.take(RECORD_MAX).read_to_string(&mut text)?;
        let record = wire::decode(&text, &self.boot)?;
        if self.path(&record.uid) == path { Ok(record) } else { Err(ReadError::Misplaced(record.uid)) }
    }

    fn path(&self, uid: &PodUid) -> PathBuf {
        self.dir.join(format!("{uid}.json"))
    }
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("read it")]
    Io(#[from] io::Error),
    #[error("understand it")]
    Decode(#[from] DecodeError),
    #[error("use it: it is the record of pod {0}")]
    Misplaced(PodUid),
}

fn set_aside(path: &Path, error: &ReadError) {
    let aside = path.with_extension("corrupt");
    let moved = fs::rename(path, &aside);
    tracing::warn!(
        record = %path.display(),
        aside = %aside.display(),
        moved = moved.is_ok(),
        error = crate::chain::chain(error),
        "record of a pod is unusable, moved aside"
    );
}

fn owner(mut file: File) -> String {
    let mut text = String::new();
    match file.read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        Ok(_) | Err(_) => "unknown".to_owned(),
    }
}

fn io_error(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { act, path, source }
}

#[cfg(test)]
mod tests;
