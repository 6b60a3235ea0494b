//! Where plugins and configurations are, as it changes.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use berth_cni::Runtime;
use tokio::sync::watch;

use crate::{
    causes::with_causes,
    config::{CurrentRuntime, RuntimeSettings},
};

/// Directories that are kept for what was attached with them: far more than anybody moves plugins.
const FORMER_MAX: usize = 100;

/// The plugins of now, and where they have been.
#[derive(Debug)]
pub(super) struct Plugins {
    current: watch::Receiver<CurrentRuntime>,
    /// Directories of earlier settings of this life, oldest first.
    former: Mutex<Vec<PathBuf>>,
}

impl Plugins {
    pub(super) fn new(current: watch::Receiver<CurrentRuntime>) -> Self {
        let dirs = current.borrow().settings.cni_bin_dirs.clone();
        Self { current, former: Mutex::new(dirs) }
    }

    /// Where configurations are.
    pub(super) fn conf_dir(&self) -> PathBuf {
        self.settings().cni_conf_dir.clone()
    }

    /// Where plugins are.
    pub(super) fn bin_dirs(&self) -> Vec<PathBuf> {
        self.settings().cni_bin_dirs.clone()
    }

    /// What a configuration is made from where there is none.
    pub(super) fn conf_template(&self) -> Option<PathBuf> {
        self.settings().cni_conf_template.clone()
    }

    /// For being told of changes.
    pub(super) fn changes(&self) -> watch::Receiver<CurrentRuntime> {
        self.current.clone()
    }

    /// What attaches.
    pub(super) fn attaching(&self, runtime: &Runtime) -> Runtime {
        let dirs = self.settings().cni_bin_dirs.clone();
        self.remember(&dirs);
        searching(runtime, dirs)
    }

    /// What detaches: a plugin that attached may be found where it was then.
    pub(super) fn detaching(&self, runtime: &Runtime) -> Runtime {
        let mut dirs = self.settings().cni_bin_dirs.clone();
        let former = self.remember(&dirs);
        dirs.extend(former);
        searching(runtime, dirs)
    }

    /// Keeps directories, and gives those that were kept beside them.
    fn remember(&self, dirs: &[PathBuf]) -> Vec<PathBuf> {
        // The list is whole whenever the lock is free.
        let mut former = self.former.lock().unwrap_or_else(PoisonError::into_inner);
        for dir in dirs {
            if !former.contains(dir) && former.len() < FORMER_MAX {
                former.push(dir.clone());
            }
        }
        former.iter().filter(|dir| !dirs.contains(dir)).cloned().collect()
    }

    fn settings(&self) -> Arc<RuntimeSettings> {
        Arc::clone(&self.current.borrow().settings)
    }
}

fn searching(runtime: &Runtime, dirs: Vec<PathBuf>) -> Runtime {
    runtime.searching(dirs).unwrap_or_else(|error| {
        tracing::warn!(error = with_causes(&error), "plugins are searched where they were");
        runtime.clone()
    })
}
