//! The records on disk.
//!
//! Two directories, mode 0700, files 0600:
//!
//! * `<records>/<network>@<container>@<interface>`: our own, written before the first plugin of ADD runs and removed after
//!   the last of DEL. It holds the configuration, so that DEL can undo an ADD that never came back. Nobody else writes
//!   here: that a record is in this directory is what proves that an attachment is ours (decision 0017).
//! * `<cache>/results/<network>-<container>-<interface>`: libcni's cache, written when ADD has succeeded, read by plugins
//!   and tools, and shared with other runtimes of the node. Whose a record in it is, nothing tells.
//!
//! `<cache>/attachments` is where agents before decision 0017 had their own records, several of them in one directory: a
//! record there is found by its container, and proves nothing.
//!
//! Files appear by rename, so a reader sees a whole one. Nothing is synced: a power loss ends the containers as well.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::name::ContainerId;
use crate::record::{Key, Record, RecordError};

/// The largest record that is read, in bytes.
pub(crate) const RECORD_MAX: u64 = 8 << 20;

/// The records.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    results: PathBuf,
    /// Where they were once.
    earlier: PathBuf,
    own: PathBuf,
}

/// Everything that the directories say about who is attached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cached {
    /// The attachments, whoever made them.
    pub keys: BTreeSet<Key>,
    /// Files that may be records and cannot be read.
    pub unreadable: Vec<PathBuf>,
}

/// Why the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file or directory cannot be used.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A record cannot be written as JSON.
    #[error("cannot encode the record {path}")]
    Encode {
        /// The file.
        path: PathBuf,
        /// Why.
        source: RecordError,
    },
}

/// The cached result of an attachment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CachedResult {
    /// There is none.
    Absent,
    /// There is one.
    Present(Map<String, Value>),
    /// There is a file that is not one; the text says why.
    Invalid(String),
}

impl Store {
    pub(crate) fn new(cache_dir: &Path, records_dir: &Path) -> Self {
        Self {
            results: cache_dir.join("results"),
            earlier: cache_dir.join("attachments"),
            own: records_dir.to_owned(),
        }
    }

    /// Where our own records are.
    pub(crate) fn dir(&self) -> &Path {
        &self.own
    }

    /// Writes the intent to attach.
    pub(crate) fn write_intent(&self, record: &Record) -> Result<(), StoreError> {
        make_dir(&self.own)?;
        // That the result will have a place is known before a plugin runs.
        make_dir(&self.results)?;
        let name = own_name(&record.key);
        Self::write(record, &self.own.join(format!(".{name}")), &self.own.join(name))
    }

    /// Writes the result of an attachment for libcni's readers.
    pub(crate) fn write_result(&self, record: &Record) -> Result<(), StoreError> {
        make_dir(&self.results)?;
        Self::write(record, &self.result_draft(&record.key), &self.results.join(libcni_name(&record.key)))
    }

    /// The record of one attachment, whichever directory has it.
    pub(crate) fn read(&self, key: &Key) -> Option<Record> {
        let (own, libcni) = (own_name(key), libcni_name(key));
        let paths = [self.own.join(&own), self.earlier.join(own), self.results.join(libcni)];
        paths.iter().find_map(|path| read_record(path).ok().flatten()).filter(|record| record.key == *key)
    }

    /// The cached result of one attachment, also in the bare form of old runtimes.
    pub(crate) fn read_result(&self, key: &Key) -> CachedResult {
        let path = self.results.join(libcni_name(key));
        let bytes = match read_capped(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return CachedResult::Absent,
            Err(error) => return CachedResult::Invalid(format!("{}: {error}", path.display())),
        };
        match Record::decode(&bytes) {
            // Another attachment with the same file name: `a-b` of `c` and `a` of `b-c`.
            Ok(record) if record.key != *key => CachedResult::Absent,
            Ok(record) => record.result.map_or(CachedResult::Absent, CachedResult::Present),
            Err(error) => match serde_json::from_slice(&bytes) {
                Ok(bare) => CachedResult::Present(bare),
                Err(_not_bare_either) => CachedResult::Invalid(format!("{}: {error}", path.display())),
            },
        }
    }

    /// Our attachments of a container and the cached ones that libcni would find, sorted.
    pub(crate) fn of_container(&self, id: &ContainerId) -> Result<Vec<Record>, StoreError> {
        let mut found = BTreeMap::new();
        // Ours last, so that they win.
        for dir in [&self.results, &self.earlier, &self.own] {
            let named = files(dir)?.into_iter().filter(|path| name_of(path).contains(id.as_str()));
            found.extend(
                named.filter_map(|path| named_record(&path)).map(|record| (record.key.clone(), record)),
            );
        }
        found.retain(|key, _record| key.container_id == *id);
        Ok(found.into_values().collect())
    }

    /// All our attachments, sorted.
    pub(crate) fn own(&self) -> Result<Vec<Record>, StoreError> {
        let mut own: Vec<Record> = files(&self.own)?.iter().filter_map(|path| named_record(path)).collect();
        own.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(own)
    }

    /// Every attachment that is written down anywhere here.
    pub(crate) fn cached(&self) -> Result<Cached, StoreError> {
        let mut cached = Cached::default();
        for dir in [&self.results, &self.earlier, &self.own] {
            for path in files(dir)? {
                match read_record(&path) {
                    Ok(record) => cached.keys.extend(record.map(|record| record.key)),
                    Err(Unreadable) => cached.unreadable.push(path),
                }
            }
        }
        Ok(cached)
    }

    /// Forgets an attachment. What is not there is already forgotten.
    pub(crate) fn remove(&self, key: &Key) -> Result<(), StoreError> {
        let own = own_name(key);
        let result = self.results.join(libcni_name(key));
        let earlier = self.earlier.join(&own);
        // Our own last: it is the reason to try again.
        let drafts = [self.result_draft(key), self.own.join(format!(".{own}"))];
        for path in drafts.into_iter().chain([result, earlier, self.own.join(own)]) {
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(StoreError::Io { action: "remove", path, source }),
            }
        }
        Ok(())
    }

    /// Removes what is left of intents whose writer was killed: nothing was begun after them.
    pub(crate) fn remove_drafts(&self, id: &ContainerId) -> Result<(), StoreError> {
        let of_container = format!("@{id}@");
        for path in paths(&self.own)? {
            let name = name_of(&path);
            if !is_draft(&name) || !name.contains(&of_container) {
                continue;
            }
            match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(StoreError::Io { action: "remove", path, source });
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Writes `draft`, then renames it: both are on one file system.
    fn write(record: &Record, draft: &Path, path: &Path) -> Result<(), StoreError> {
        let bytes = record.encode().map_err(|source| StoreError::Encode { path: path.to_owned(), source })?;
        let write = || {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(draft)?;
            file.write_all(&bytes)?;
            fs::rename(draft, path)
        };
        write().map_err(|source| StoreError::Io { action: "write", path: path.to_owned(), source })
    }

    /// Where a result is written first: never in the results directory, whose readers take every file for a result.
    fn result_draft(&self, key: &Key) -> PathBuf {
        self.results.with_file_name(format!(".{}", own_name(key)))
    }
}

/// `@` occurs in no network or container name, so unlike libcni's names these cannot collide.
fn own_name(key: &Key) -> String {
    format!("{}@{}@{}", key.network, key.container_id, key.ifname)
}

fn libcni_name(key: &Key) -> String {
    format!("{}-{}-{}", key.network, key.container_id, key.ifname)
}

/// The files of a directory that may be records; none when it is not there.
fn files(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut files = paths(dir)?;
    files.retain(|path| !is_draft(&name_of(path)));
    Ok(files)
}

/// Ours begin with a dot until they are whole.
fn is_draft(name: &str) -> bool {
    name.starts_with('.')
}

fn paths(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let failed = |source| StoreError::Io { action: "list", path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
    };
    entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect()
}

fn name_of(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().map(std::ffi::OsStr::to_string_lossy).unwrap_or_default()
}

/// A record that cannot be read, or is in another's place, is as good as none, as in libcni: DEL falls back to the
/// current configuration.
fn named_record(path: &Path) -> Option<Record> {
    let record = read_record(path).ok()??;
    let name = name_of(path);
    (name == libcni_name(&record.key) || name == own_name(&record.key)).then_some(record)
}

/// A file that is no record; it was logged.
#[derive(Debug)]
struct Unreadable;

/// None when there is no file.
fn read_record(path: &Path) -> Result<Option<Record>, Unreadable> {
    let bad = |error: &dyn std::fmt::Display| {
        tracing::warn!(path = %path.display(), %error, "ignoring a bad attachment record");
        Unreadable
    };
    match read_capped(path) {
        Ok(bytes) => Record::decode(&bytes).map(Some).map_err(|error| bad(&error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(bad(&error)),
    }
}

fn read_capped(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // Others write here too: to open a pipe would wait for its other end.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let read = file.take(RECORD_MAX + 1).read_to_end(&mut bytes)?;
    if u64::try_from(read).is_ok_and(|len| len <= RECORD_MAX) {
        Ok(bytes)
    } else {
        Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {RECORD_MAX} bytes")))
    }
}

fn make_dir(dir: &Path) -> Result<(), StoreError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|source| StoreError::Io { action: "make directory", path: dir.to_owned(), source })
}

#[cfg(test)]
mod tests;
