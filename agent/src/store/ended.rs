//! How pods of files and URLs have ended, where a reboot does not reach it: `<root>/berth/ended/<uid>.manifest` and
//! `<uid>.state`, as in the records.
//!
//! The record of a pod is gone with `/run`; without this, a pod that ran to its end and is not to run again would. Not
//! forced to the disk: a power cut soon after may lose it, and then the pod runs again, as it would without.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use berth_core::{id::PodUid, record::PodRecord};

use super::{
    DecodeError, MANIFEST, STATE, StoreError, io_error, is_a_lack, make_dir, read_text, remove, replace,
    set_aside, wire,
};

/// What is kept of pods that have ended.
#[derive(Debug, Clone)]
pub struct EndedPods {
    dir: PathBuf,
    boot: String,
}

impl EndedPods {
    pub(super) fn at(root: &Path, boot: &str) -> Self {
        Self { dir: root.join("berth/ended"), boot: boot.to_owned() }
    }

    /// Keeps how a pod has ended; does nothing when that is there.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn keep(&self, record: &PodRecord) -> Result<(), StoreError> {
        make_dir(&self.dir)?;
        let files = [
            (MANIFEST, record.manifest.to_string()),
            // Last: without it the other is nothing.
            (STATE, wire::encode(record, &self.boot)),
        ];
        for (extension, text) in files {
            let path = self.path(&record.uid, extension);
            if !read_text(&path).is_ok_and(|there| there == text) {
                replace(&path, &text).map_err(io_error("write", &path))?;
            }
        }
        Ok(())
    }

    /// Drops what is kept of a pod.
    ///
    /// # Errors
    /// When it is there and cannot be removed.
    pub fn drop(&self, uid: &PodUid) -> Result<(), StoreError> {
        [STATE, MANIFEST].into_iter().try_for_each(|extension| remove(&self.path(uid, extension)))
    }

    /// Everything that is kept. What cannot be understood is moved aside and warned about: its pod runs again.
    ///
    /// # Errors
    /// When the directory cannot be listed, or a later agent wrote in it.
    pub fn load(&self) -> Result<Vec<PodRecord>, StoreError> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(io_error("list", &self.dir))?,
        };
        let mut records = Vec::new();
        for entry in entries {
            let path = entry.map_err(io_error("list", &self.dir))?.path();
            if path.extension().is_none_or(|extension| extension != STATE) {
                continue;
            }
            let texts = self.texts(&path).map_err(io_error("read", &path))?;
            match self.read(texts) {
                Ok(record) if record.terminal.is_some() => records.push(record),
                Ok(record) => self.drop(&record.uid)?,
                Err(DecodeError::Later(version)) => return Err(StoreError::Later { path, version }),
                Err(error) => set_aside(&path, &crate::causes::with_causes(&error)),
            }
        }
        Ok(records)
    }

    /// State and manifest, as far as they can be read; an error where the agent lacks what it takes.
    fn texts(&self, path: &Path) -> io::Result<[Option<String>; 2]> {
        let text = |path: &Path| match read_text(path) {
            Err(error) if is_a_lack(&error) => Err(error),
            text => Ok(text.ok()),
        };
        Ok([text(path)?, text(&path.with_extension(MANIFEST))?])
    }

    fn read(&self, [state, manifest]: [Option<String>; 2]) -> Result<PodRecord, DecodeError> {
        wire::decode(&state.unwrap_or_default(), manifest.as_deref(), &self.boot)
    }

    fn path(&self, uid: &PodUid, extension: &str) -> PathBuf {
        self.dir.join(format!("{uid}.{extension}"))
    }
}
