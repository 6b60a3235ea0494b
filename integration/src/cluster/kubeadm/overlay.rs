//! What is written below a directory of the machine, and is gone with the lab.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::files;

/// A directory over which what is written is in another one.
#[derive(Debug)]
pub(super) struct Overlay(PathBuf);

impl Overlay {
    pub(super) fn mount(over: &Path, kept: &Path) -> Result<Self> {
        let (upper, work) = (kept.join("upper"), kept.join("work"));
        files::make_dir(&upper)?;
        files::make_dir(&work)?;
        let options =
            format!("lowerdir={},upperdir={},workdir={}", over.display(), upper.display(), work.display());
        mount(Some("overlay"), over, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
            .with_context(|| format!("mount an overlay over {}", over.display()))?;
        Ok(Self(over.to_owned()))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        // The lab tells of a mount that stays.
        _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}
