//! The records on disk.
//!
//! Two directories below the cache directory, mode 0700, files 0600:
//!
//! * `attachments/<network>@<container>@<interface>`: our own, written before the first plugin of ADD runs and removed
//!   after the last of DEL. It holds the configuration, so that DEL can undo an ADD that never came back.
//! * `results/<network>-<container>-<interface>`: libcni's cache, written when ADD has succeeded, read by plugins and
//!   tools, and shared with other runtimes of the node.
//!
//! Files appear by rename, so a reader sees a whole one. Nothing is synced: a power loss ends the containers as well.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::name::ContainerId;
use crate::record::{Key, Record, RecordError};

/// The largest record that is read, in bytes.
pub(crate) const RECORD_MAX: u64 = 8 << 20;

/// The records of one cache directory.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    results: PathBuf,
    attachments: PathBuf,
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
    pub(crate) fn new(cache_dir: &Path) -> Self {
        Self { results: cache_dir.join("results"), attachments: cache_dir.join("attachments") }
    }

    /// Writes the intent to attach.
    pub(crate) fn write_intent(&self, record: &Record) -> Result<(), StoreError> {
        self.write(record, &self.attachments.join(own_name(&record.key)))
    }

    /// Writes the result of an attachment for libcni's readers.
    pub(crate) fn write_result(&self, record: &Record) -> Result<(), StoreError> {
        make_dir(&self.results)?;
        self.write(record, &self.results.join(libcni_name(&record.key)))
    }

    /// The record of one attachment, whichever directory has it.
    pub(crate) fn read(&self, key: &Key) -> Option<Record> {
        let own = read_record(&self.attachments.join(own_name(key)));
        own.or_else(|| read_record(&self.results.join(libcni_name(key)))).filter(|record| record.key == *key)
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
        let mut found = self.scan(|name| name.contains(id.as_str()))?;
        found.retain(|key, _record| key.container_id == *id);
        Ok(found.into_values().collect())
    }

    /// All our attachments, and the cached ones of any runtime; `true` marks ours.
    pub(crate) fn all(&self) -> Result<Vec<(Record, Owner)>, StoreError> {
        let own = |key: &Key| self.attachments.join(own_name(key)).exists();
        let records = self.scan(|_name| true)?;
        Ok(records
            .into_iter()
            .map(|(key, record)| (record, if own(&key) { Owner::Us } else { Owner::Unknown }))
            .collect())
    }

    /// Forgets an attachment. What is not there is already forgotten.
    pub(crate) fn remove(&self, key: &Key) -> Result<(), StoreError> {
        let own = own_name(key);
        let result = self.results.join(libcni_name(key));
        // Our own last: it is the reason to try again.
        for path in [result, self.attachments.join(format!(".{own}")), self.attachments.join(own)] {
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(StoreError::Io { action: "remove", path, source }),
            }
        }
        Ok(())
    }

    fn write(&self, record: &Record, path: &Path) -> Result<(), StoreError> {
        let bytes = record.encode().map_err(|source| StoreError::Encode { path: path.to_owned(), source })?;
        make_dir(&self.attachments)?;
        // Never in the results directory, whose readers take every file for a result.
        let draft = self.attachments.join(format!(".{}", own_name(&record.key)));
        let write = || {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
            file.write_all(&bytes)?;
            fs::rename(&draft, path)
        };
        write().map_err(|source| StoreError::Io { action: "write", path: path.to_owned(), source })
    }

    fn scan(&self, wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<Key, Record>, StoreError> {
        let mut found = BTreeMap::new();
        // Ours second, so that they win.
        for dir in [&self.results, &self.attachments] {
            let entries = match fs::read_dir(dir) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(StoreError::Io { action: "list", path: dir.clone(), source }),
            };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let Some(name) = name.to_str().filter(|name| !name.starts_with('.') && wanted(name)) else {
                    continue;
                };
                let named_after = |key: &Key| name == libcni_name(key) || name == own_name(key);
                if let Some(record) = read_record(&entry.path()).filter(|record| named_after(&record.key)) {
                    found.insert(record.key.clone(), record);
                }
            }
        }
        Ok(found)
    }
}

/// Who made an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This runtime.
    Us,
    /// This or another runtime that shares the cache directory.
    Unknown,
}

/// `@` occurs in no network or container name, so unlike libcni's names these cannot collide.
fn own_name(key: &Key) -> String {
    format!("{}@{}@{}", key.network, key.container_id, key.ifname)
}

fn libcni_name(key: &Key) -> String {
    format!("{}-{}-{}", key.network, key.container_id, key.ifname)
}

/// A record that cannot be read is as good as none, as in libcni: DEL falls back to the current configuration.
fn read_record(path: &Path) -> Option<Record> {
    let bytes = match read_capped(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "ignoring an unreadable attachment record");
            return None;
        }
    };
    Record::decode(&bytes)
        .inspect_err(
            |error| tracing::warn!(path = %path.display(), %error, "ignoring a bad attachment record"),
        )
        .ok()
}

fn read_capped(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path)?.take(RECORD_MAX + 1).read_to_end(&mut bytes)?;
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
