//! Where the control groups of this machine are, on version 1 and 2.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const ROOT: &str = "/sys/fs/cgroup";

/// Whether there is one hierarchy for all controllers: version 2, and no version 1 beside it.
#[must_use]
pub fn is_unified() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

/// The top of the hierarchy that has a controller.
#[must_use]
pub fn of_controller(name: &str) -> PathBuf {
    if is_unified() { ROOT.into() } else { Path::new(ROOT).join(name) }
}

/// The top of every hierarchy.
///
/// # Errors
/// They cannot be listed.
pub fn hierarchies() -> Result<Vec<PathBuf>> {
    if is_unified() {
        return Ok(vec![ROOT.into()]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(ROOT).with_context(|| format!("read {ROOT}"))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && entry.path().join("cgroup.procs").exists() {
            found.push(entry.path());
        }
    }
    Ok(found)
}
