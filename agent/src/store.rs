//! Records of pods on disk: `<run>/pods/<uid>.manifest`, written once, and `<uid>.state`.
//!
//! Written before the first act for a pod and removed after the last thing of it is gone (decisions 0003 and 0022). A new
//! state replaces the old one by rename, without fsync: what must survive a power loss is elsewhere, and `/run` does not.
//! Only one agent at a time owns the directory. Version 1 had both in one file, `<uid>.json`.

mod ended;
mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_core::{id::PodUid, record::PodRecord};
use nix::fcntl::Flock;

use crate::{causes::with_causes, document::BYTES_MAX, lock};

pub use ended::EndedPods;
pub use wire::DecodeError;

/// Largest record that is read back, in bytes: the largest manifest, escaped as in a record of version 1, and the runs of its
/// containers.
const RECORD_MAX: u64 = 4 * BYTES_MAX as u64;

/// What is in the manifest's file: as it came from the pod's source, in JSON.
const MANIFEST: &str = "manifest";
/// What changes in the life of a pod.
const STATE: &str = "state";
/// Both, as version 1 had them.
const VERSION_1: &str = "json";
/// A file that is being written.
const HALF: &str = "new";

/// The records, and the right to write them.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    boot: String,
    /// Manifests that are on disk, shared with their pods.
    manifests: BTreeMap<PodUid, Arc<str>>,
    /// Pods whose states on disk say of which manifest their resources are.
    resized: BTreeSet<PodUid>,
    /// Pods that have a record of version 1.
    of_version_1: BTreeSet<PodUid>,
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
    /// A later version of the agent wrote a record, and what it says is not to be lost.
    #[error(
        "read {path}: it is of version {version}, made by a later agent; this one knows versions up to {}. Start that \
         agent again, or let it remove its pods before this one is started",
        wire::VERSION
    )]
    Later {
        /// The record.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// There is no room for a record.
    #[error("write {path} (free space in {run})")]
    Full {
        /// The record.
        path: PathBuf,
        /// The directory of the agent, in whose file system it is to be.
        run: PathBuf,
        /// What the kernel said: no space, no inodes, or a quota.
        source: io::Error,
    },
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
        make_dir(&dir)?;
        let path = run.join("agent.lock");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io_error("open", &path))?;
        let lock = lock::exclusive(file).map_err(|(file, errno)| {
            if errno == nix::Error::EWOULDBLOCK {
                StoreError::Taken(path.clone(), owner(file))
            } else {
                io_error("lock", &path)(errno.into())
            }
        })?;
        if let Err(error) = sign(&lock) {
            // The lock is held all the same: only an agent that is refused cannot say by whom.
            tracing::warn!(file = %path.display(), error = with_causes(&error), "the owner of the lock is not written down");
        }
        let boot_file = Path::new("/proc/sys/kernel/random/boot_id");
        let boot = fs::read_to_string(boot_file).map_err(io_error("read", boot_file))?.trim().to_owned();
        Ok(Self {
            dir,
            boot,
            manifests: BTreeMap::new(),
            resized: BTreeSet::new(),
            of_version_1: BTreeSet::new(),
            _lock: lock,
        })
    }

    /// Where the records are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What is kept of pods below `root` that have ended.
    #[must_use]
    pub fn ended(&self, root: &Path) -> EndedPods {
        EndedPods::at(root, &self.boot)
    }

    /// Writes a pod's record: the manifest when it is not there as it is, then the state. A state that says that the pod has the resources of
    /// an earlier manifest, or that those of this one are not in force yet, comes before the manifest, unless the one that is there says what
    /// the pod has: without it, what a manifest asks for would be taken for what was allocated.
    ///
    /// # Errors
    /// When a file cannot be written. What is there then is the old record, or has one file of each.
    pub fn save(&mut self, record: &PodRecord) -> Result<(), StoreError> {
        let uid = &record.uid;
        let is_told = record.resize.is_some() || record.resizing.is_some();
        if is_told && self.manifests.contains_key(uid) && !self.resized.contains(uid) {
            self.save_state(record)?;
            self.save_manifest(record)?;
        } else {
            self.save_manifest(record)?;
            self.save_state(record)?;
        }
        if self.of_version_1.contains(&record.uid) {
            remove(&self.path(&record.uid, VERSION_1))?;
            self.of_version_1.remove(&record.uid);
        }
        Ok(())
    }

    fn save_manifest(&mut self, record: &PodRecord) -> Result<(), StoreError> {
        let uid = &record.uid;
        let known = self.manifests.get(uid);
        if !known.is_some_and(|known| Arc::ptr_eq(known, &record.manifest) || *known == record.manifest) {
            self.replace(&self.path(uid, MANIFEST), &record.manifest)?;
            self.manifests.insert(uid.clone(), Arc::clone(&record.manifest));
        }
        Ok(())
    }

    fn save_state(&mut self, record: &PodRecord) -> Result<(), StoreError> {
        self.replace(&self.path(&record.uid, STATE), &wire::encode(record, &self.boot))?;
        self.state_is_there(record);
        Ok(())
    }

    fn state_is_there(&mut self, record: &PodRecord) {
        if record.resize.is_some() {
            self.resized.insert(record.uid.clone());
        } else {
            self.resized.remove(&record.uid);
        }
    }

    fn replace(&self, path: &Path, text: &str) -> Result<(), StoreError> {
        replace(path, text).map_err(|source| self.not_written(path, source))
    }

    fn not_written(&self, path: &Path, source: io::Error) -> StoreError {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                let run = self.dir.parent().unwrap_or(&self.dir).to_owned();
                StoreError::Full { path: path.to_owned(), run, source }
            }
            _ => io_error("write", path)(source),
        }
    }

    /// Removes a pod's record.
    ///
    /// # Errors
    /// When it is there and cannot be removed.
    pub fn remove(&mut self, uid: &PodUid) -> Result<(), StoreError> {
        // The state first: a manifest alone is no record.
        for extension in [VERSION_1, STATE, MANIFEST] {
            remove(&self.path(uid, extension))?;
        }
        self.of_version_1.remove(uid);
        self.manifests.remove(uid);
        self.resized.remove(uid);
        Ok(())
    }

    /// Reads every record; those of version 1 are written anew. One that cannot be understood is moved aside and warned
    /// about: what runs of its pod is found by observation, and goes on when the pod is wanted.
    ///
    /// # Errors
    /// When the directory cannot be listed, or when a record is of a later version: without it, its pod would be taken
    /// for left over.
    pub fn load(&mut self) -> Result<Vec<PodRecord>, StoreError> {
        let files = self.files()?;
        let has_version_1 = |path: &Path| files.contains(&path.with_extension(VERSION_1));
        let mut records = Vec::new();
        for path in &files {
            match path.extension().and_then(OsStr::to_str) {
                Some(STATE) if has_version_1(path) => {
                    // An agent of version 1 had the pod after the one that wrote this.
                    tracing::info!(record = %path.display(), "record is older than the one of version 1 beside it");
                }
                Some(STATE | VERSION_1) => records.extend(self.take_in(path)?),
                Some(MANIFEST) if files.contains(&path.with_extension(STATE)) => {}
                // The record beside it was taken in just now, and has it.
                Some(MANIFEST) if has_version_1(path) => {}
                // The agent ended before the state was written, and so before anything was begun.
                Some(MANIFEST | HALF) => remove(path)?,
                Some(_) | None => {}
            }
        }
        records.sort_by(|one, other| one.uid.cmp(&other.uid));
        Ok(records)
    }

    /// Moves a record aside that was read and cannot be used.
    pub fn set_aside(&mut self, uid: &PodUid, why: &str) {
        self.manifests.remove(uid);
        self.resized.remove(uid);
        self.of_version_1.remove(uid);
        for extension in [VERSION_1, STATE, MANIFEST] {
            set_aside(&self.path(uid, extension), why);
        }
    }

    fn files(&self) -> Result<BTreeSet<PathBuf>, StoreError> {
        let entries = fs::read_dir(&self.dir).map_err(io_error("list", &self.dir))?;
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        paths.collect::<io::Result<_>>().map_err(io_error("list", &self.dir))
    }

    fn take_in(&mut self, path: &Path) -> Result<Option<PodRecord>, StoreError> {
        let record = match self.read(path) {
            Ok(record) => record,
            Err(ReadError::Decode(DecodeError::Later(version))) => {
                return Err(StoreError::Later { path: path.to_owned(), version });
            }
            Err(ReadError::Io(source)) if is_a_lack(&source) => return Err(io_error("read", path)(source)),
            Err(error) => {
                set_aside(path, &with_causes(&error));
                set_aside(&path.with_extension(MANIFEST), "its record is unusable");
                return Ok(None);
            }
        };
        if path.extension().is_some_and(|extension| extension == VERSION_1) {
            self.of_version_1.insert(record.uid.clone());
            if let Err(error) = self.save(&record) {
                // It is still there, and written anew with its next change.
                tracing::warn!(pod = %record.name, error = with_causes(&error), "record stays of version 1");
            }
        } else {
            self.manifests.insert(record.uid.clone(), Arc::clone(&record.manifest));
            self.state_is_there(&record);
        }
        Ok(Some(record))
    }

    fn read(&self, path: &Path) -> Result<PodRecord, ReadError> {
        let manifest = match read_text(&path.with_extension(MANIFEST)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            manifest => manifest.ok(),
        };
        let record = wire::decode(&read_text(path)?, manifest.as_deref(), &self.boot)?;
        let is_here = path.file_stem().is_some_and(|stem| stem == record.uid.as_str());
        if is_here { Ok(record) } else { Err(ReadError::Misplaced(record.uid)) }
    }

    fn path(&self, uid: &PodUid, extension: &str) -> PathBuf {
        self.dir.join(format!("{uid}.{extension}"))
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

/// Whether a file could not be read for what the agent lacks, descriptors or memory: that says nothing of the file.
fn is_a_lack(error: &io::Error) -> bool {
    let lacks = [nix::Error::EMFILE, nix::Error::ENFILE, nix::Error::ENOMEM].map(|errno| errno as i32);
    error.raw_os_error().is_some_and(|errno| lacks.contains(&errno))
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(RECORD_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn make_dir(dir: &Path) -> Result<(), StoreError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io_error("create", dir))
}

/// Puts a whole file in the place of another. One that is being written has a name that nobody reads.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_added_extension(HALF);
    let write = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&new, path)
    };
    // What was half written takes room that others need; the next try begins anew anyway.
    write().inspect_err(|_| drop(fs::remove_file(&new)))
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn set_aside(path: &Path, why: &str) {
    if !path.exists() {
        return;
    }
    let aside = path.with_added_extension("corrupt");
    let moved = fs::rename(path, &aside);
    tracing::warn!(
        record = %path.display(),
        aside = %aside.display(),
        moved = moved.is_ok(),
        why,
        "record of a pod is unusable, moved aside; what runs of it is found by observation"
    );
}

fn sign(mut lock: &File) -> io::Result<()> {
    lock.set_len(0)?;
    writeln!(lock, "{}", std::process::id())
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
