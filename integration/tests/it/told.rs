//! What containers tell a test: lines of a file in a directory of the node that is a volume of theirs.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

/// A directory that containers of a pod write into at `/told`.
pub(crate) struct Told(PathBuf);

impl Told {
    /// One of this test of a group.
    pub(crate) fn new(group: &str, test: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("berth-it-{group}-{test}-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// The volume `told`.
    pub(crate) fn volume(&self) -> Value {
        json!({ "name": "told", "hostPath": { "path": self.0 } })
    }

    /// All that was told, in its order.
    pub(crate) fn all(&self) -> Result<Vec<String>> {
        match fs::read_to_string(self.0.join("all")) {
            Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
            Err(missing) if missing.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a door that a script waits at.
    pub(crate) fn open(&self, door: &str) -> Result<()> {
        Ok(fs::write(self.0.join(door), "")?)
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // What is left is in a directory for what is temporary.
        drop(fs::remove_dir_all(&self.0));
    }
}
