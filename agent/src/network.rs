//! Networks of pods: CNI, its configuration as it changes, and what crashes left of it.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_cni::{
    Attachment, AttachmentError, CniError, ContainerId, LoadError, NetworkList, Runtime, RuntimeConfig,
    SetupError, ValidAttachment, Watch,
};
use berth_core::{event::Event, event::NetworkStatus, id::SandboxId};
use tokio::{sync::mpsc, time::Instant};

use crate::{chain::chain, config::Cni};

/// Longest chain of plugins.
const PLUGINS_WITHIN: Duration = Duration::from_secs(220);

/// How often a network that was not ready is looked at again, beside every change of its configuration.
const NOT_READY_EVERY: Duration = Duration::from_secs(10);

/// How often a network that was ready is asked whether it still is. Containerd's CRI asks with every status of the
/// kubelet, every 10 s; a plugin that says no also fails ADD, so a minute only delays the condition.
const READY_EVERY: Duration = Duration::from_secs(60);

/// How often attachments that nobody has any more are collected.
const COLLECT_EVERY: Duration = Duration::from_secs(3600);

/// The interface of a pod's first network.
const FIRST: usize = 0;

/// CNI. Clones share it.
#[derive(Debug, Clone)]
pub struct Network(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    runtime: Runtime,
    conf_dir: PathBuf,
    /// Sandboxes that are attached or may be: what collection must leave alone.
    attached: Mutex<BTreeSet<SandboxId>>,
}

/// Why a pod could not be wired or unwired.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// There is no usable configuration.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The pod's names do not fit.
    #[error(transparent)]
    Attachment(#[from] AttachmentError),
    /// A plugin failed.
    #[error(transparent)]
    Cni(#[from] CniError),
    /// The agent is stopping.
    #[error("load the network configuration: the agent is stopping")]
    Stopping,
}

impl Network {
    /// Takes directories, and the sandboxes that were attached before.
    ///
    /// # Errors
    /// When a directory cannot be used.
    pub fn new(config: &Cni, attached: BTreeSet<SandboxId>) -> Result<Self, SetupError> {
        let dirs = RuntimeConfig { bin_dirs: config.bin_dirs.clone(), cache_dir: config.cache_dir.clone() };
        let runtime = Runtime::new(dirs)?;
        let conf_dir = config.conf_dir.clone();
        Ok(Self(Arc::new(Inner { runtime, conf_dir, attached: Mutex::new(attached) })))
    }

    /// Attaches a sandbox, or finds what an earlier ADD that ended well brought.
    ///
    /// # Errors
    /// See [`NetworkError`].
    pub async fn attach(
        &self,
        sandbox: &SandboxId,
        attachment: Attachment,
    ) -> Result<NetworkStatus, NetworkError> {
        self.attached().insert(sandbox.clone());
        let runtime = &self.0.runtime;
        for record in runtime.recorded(&attachment.container_id).await? {
            let is_it = record.key.ifname == attachment.ifname && record.result.is_some();
            if is_it && let Ok(Some(result)) = runtime.result(&record.key).await {
                return Ok(NetworkStatus { ips: result.pod_ips(&attachment.ifname) });
            }
        }
        let list = self.load().await?;
        let result = runtime.add(&list, &attachment, Instant::now() + PLUGINS_WITHIN).await?;
        Ok(NetworkStatus { ips: result.pod_ips(&attachment.ifname) })
    }

    /// Detaches a sandbox with the configuration that it was attached with.
    ///
    /// # Errors
    /// See [`NetworkError`].
    pub async fn detach(&self, sandbox: &SandboxId, attachment: &Attachment) -> Result<(), NetworkError> {
        let current = self.load().await.ok();
        let deadline = Instant::now() + PLUGINS_WITHIN;
        let Attachment { container_id, netns, .. } = attachment;
        self.0.runtime.del_container(container_id, netns, current.as_ref(), deadline).await?;
        self.attached().remove(sandbox);
        Ok(())
    }

    /// Watches the configuration and tells whether pods can be wired; collects what is left, at start and every hour.
    /// Runs until the agent stops.
    pub async fn keep(self, events: mpsc::Sender<Event>) {
        let mut watch = Watch::new(&self.0.conf_dir).ok();
        let mut last = None;
        let mut collect_at = Instant::now();
        loop {
            let ready = self.status().await;
            if last.as_ref() != Some(&ready) {
                match &ready {
                    Ok(()) => tracing::info!("network is ready"),
                    Err(why) => tracing::warn!(why, "network is not ready"),
                }
                if events.send(Event::NetworkReady(ready.clone())).await.is_err() {
                    return;
                }
            }
            if ready.is_ok() && Instant::now() >= collect_at {
                self.collect().await;
                collect_at = Instant::now() + COLLECT_EVERY;
            }
            let again = if ready.is_ok() { READY_EVERY } else { NOT_READY_EVERY };
            last = Some(ready);
            watch = changed_or_elapsed(watch, again).await.or_else(|| Watch::new(&self.0.conf_dir).ok());
        }
    }

    async fn status(&self) -> Result<(), String> {
        let list = self.load().await.map_err(|error| chain(&error))?;
        let asked = self.0.runtime.status(&list, Instant::now() + PLUGINS_WITHIN).await;
        asked.map_err(|error| chain(&error))
    }

    async fn collect(&self) {
        let Ok(list) = self.load().await else { return };
        let valid = || self.attached().iter().filter_map(valid_attachment).collect();
        let report = self.0.runtime.gc(&[list], valid, Instant::now() + PLUGINS_WITHIN).await;
        if !report.removed.is_empty() {
            tracing::info!(removed = report.removed.len(), "attachments of pods that are gone were removed");
        }
        for failure in report.failures {
            tracing::warn!(
                error = chain(&failure),
                "an attachment of a pod that is gone could not be removed"
            );
        }
    }

    /// The first configuration by name, as containerd takes it.
    async fn load(&self) -> Result<NetworkList, NetworkError> {
        let dir = self.0.conf_dir.clone();
        let loaded = tokio::task::spawn_blocking(move || NetworkList::load(&dir)).await;
        Ok(loaded.map_err(|_cancelled| NetworkError::Stopping)??)
    }

    fn attached(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        self.0.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn valid_attachment(sandbox: &SandboxId) -> Option<ValidAttachment> {
    let ifname = berth_cni::InterfaceName::new(format!("eth{FIRST}")).ok()?;
    Some(ValidAttachment { container_id: ContainerId::new(sandbox.as_str()).ok()?, ifname })
}

/// Gives the watch back unless it broke.
async fn changed_or_elapsed(watch: Option<Watch>, again: Duration) -> Option<Watch> {
    let Some(mut watch) = watch else {
        tokio::time::sleep(again).await;
        return None;
    };
    match tokio::time::timeout(again, watch.changed()).await {
        Ok(Err(error)) => {
            tracing::warn!(
                error = chain(&error),
                "changes of the network configuration are not seen at once"
            );
            None
        }
        Ok(Ok(())) | Err(_) => Some(watch),
    }
}
