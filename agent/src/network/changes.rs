//! What may change whether pods can be wired.

use std::path::PathBuf;

use berth_cni::Watch;
use tokio::sync::watch;

use crate::{causes::with_causes, config::CurrentRuntime};

/// The configuration, where it and plugins are, and ranges of addresses for pods.
#[derive(Debug)]
pub(super) struct Changes {
    conf_dir: PathBuf,
    watch: Option<Watch>,
    moved: watch::Receiver<CurrentRuntime>,
    cidrs: watch::Receiver<Vec<String>>,
    is_conf_changed: bool,
}

impl Changes {
    pub(super) fn new(moved: watch::Receiver<CurrentRuntime>, cidrs: watch::Receiver<Vec<String>>) -> Self {
        Self { conf_dir: PathBuf::new(), watch: None, moved, cidrs, is_conf_changed: false }
    }

    /// Watches configurations where they are now: to be called before they are read.
    pub(super) async fn follow(&mut self, conf_dir: PathBuf) {
        if self.conf_dir != conf_dir {
            (self.conf_dir, self.watch) = (conf_dir, None);
        }
        if self.watch.is_none() {
            self.watch = Watch::new(&self.conf_dir).await.ok();
        }
    }

    /// Waits for the next change. Cancel safe: one that was not told is told by the same watch.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            is_changed = changed(&mut self.watch) => self.is_conf_changed |= is_changed,
            // One that was moved is read anew.
            Ok(()) = self.moved.changed() => {}
            Ok(()) = self.cidrs.changed() => {}
        }
    }

    /// Ranges of addresses that the cluster gives the node now.
    pub(super) fn cidrs(&mut self) -> Vec<String> {
        self.cidrs.borrow_and_update().clone()
    }

    /// Whether a change of the configuration was seen since this was asked last.
    pub(super) fn take_conf_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_conf_changed)
    }
}

/// Waits for a change of the configuration; whether there was one. A watch that breaks is given up.
async fn changed(watch: &mut Option<Watch>) -> bool {
    let Some(watching) = watch else { return std::future::pending().await };
    match watching.changed().await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(
                error = with_causes(&error),
                "changes of the network configuration are not seen at once"
            );
            *watch = None;
            false
        }
    }
}
