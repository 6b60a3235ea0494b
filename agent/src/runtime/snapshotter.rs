//! What a snapshotter says of itself.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use containerd_client::services::v1::{Plugin, PluginsRequest};
use tokio::sync::OnceCell;

use super::{CallError, Containerd};

/// Capability of one that has the files of a layer belong to others, for which nothing is copied (`core/snapshots/snapshotter.go`,
/// `client/snapshotter_opts_unix.go` of containerd).
pub const REMAP_IDS: &str = "remap-ids";

/// Where a snapshotter has its layers. `None` where it does not say so.
///
/// # Errors
/// See [`CallError`].
pub async fn layers_dir(
    containerd: &Containerd,
    snapshotter: &str,
    within: Duration,
) -> Result<Option<String>, CallError> {
    let plugin = ask(containerd, snapshotter, within).await?;
    let root = plugin.and_then(|mut plugin| plugin.exports.remove("root"));
    Ok(root.map(|root| root.trim_end_matches('/').to_owned()).filter(|root| root.starts_with('/')))
}

/// Which snapshotters can [shift owners](REMAP_IDS), asked once of each. Clones share what is known.
#[derive(Debug, Clone, Default)]
pub(super) struct Shifting(Arc<Mutex<BTreeMap<String, Arc<OnceCell<bool>>>>>);

impl Shifting {
    /// Another containerd may answer from now on. Whoever asks just now keeps the answer to himself.
    pub(super) fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn of(&self, snapshotter: &str) -> Arc<OnceCell<bool>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(known.entry(snapshotter.to_owned()).or_default())
    }
}

impl Containerd {
    /// Whether a snapshotter can [shift owners](REMAP_IDS), by the containerd that is connected.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn shifts_owners(&self, snapshotter: &str, within: Duration) -> Result<bool, CallError> {
        let can = |plugin: Plugin| plugin.capabilities.iter().any(|capability| capability == REMAP_IDS);
        let asking = || async { Ok(ask(self, snapshotter, within).await?.is_some_and(can)) };
        self.shifting().of(snapshotter).get_or_try_init(asking).await.copied()
    }
}

async fn ask(
    containerd: &Containerd,
    snapshotter: &str,
    within: Duration,
) -> Result<Option<Plugin>, CallError> {
    let filter = format!("type==io.containerd.snapshotter.v1,id=={snapshotter}");
    let request = PluginsRequest { filters: vec![filter] };
    let mut client = containerd.introspection();
    let asking = client.plugins(request);
    let answer = containerd.call_within(within, "ask for the snapshotter", snapshotter, asking).await?;
    Ok(answer.plugins.into_iter().next())
}
