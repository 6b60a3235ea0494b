//! What containerd is asked: where its layers are, once, and how large those of images are, once for each.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use containerd_client::services::v1::{
    PluginsRequest,
    snapshots::{Kind, ListSnapshotsRequest, UsageRequest},
};

use crate::runtime::{CallError, Containerd};

/// Layers whose sizes are known at most: far more than a disk has images for.
const LAYERS_MAX: usize = 1 << 16;

/// How long a request for statistics waits for it: they are told without.
const ASKED_WITHIN: Duration = Duration::from_secs(2);

/// Where a snapshotter has its layers. `None` where it does not say so.
///
/// # Errors
/// See [`CallError`].
pub(super) async fn layers_dir(
    containerd: &Containerd,
    snapshotter: &str,
) -> Result<Option<String>, CallError> {
    let filter = format!("type==io.containerd.snapshotter.v1,id=={snapshotter}");
    let request = PluginsRequest { filters: vec![filter] };
    let mut client = containerd.introspection();
    let asking = client.plugins(request);
    let answer = containerd.call_within(ASKED_WITHIN, "ask for the snapshotter", snapshotter, asking).await?;
    let root = answer.plugins.into_iter().find_map(|mut plugin| plugin.exports.remove("root"));
    Ok(root.map(|root| root.trim_end_matches('/').to_owned()).filter(|root| root.starts_with('/')))
}

/// Sizes of layers that do not change: bytes and inodes, by name.
#[derive(Debug, Default)]
pub(super) struct Layers(BTreeMap<String, (u64, u64)>);

impl Layers {
    /// What all of them use together. Those that were not known are asked for, one after another.
    ///
    /// # Errors
    /// See [`CallError`]. What was learned by then is kept.
    pub(super) async fn measure(
        &mut self,
        containerd: &Containerd,
        snapshotter: &str,
    ) -> Result<(u64, u64), CallError> {
        let there = list(containerd, snapshotter).await?;
        self.0.retain(|name, _| there.contains(name));
        for name in there {
            if self.0.contains_key(&name) {
                continue;
            }
            let request = UsageRequest { snapshotter: snapshotter.to_owned(), key: name.clone() };
            let mut client = containerd.snapshots();
            match containerd.call("measure layer", &name, client.usage(request)).await {
                Ok(usage) => {
                    let number = |number: i64| u64::try_from(number).unwrap_or(0);
                    self.0.insert(name, (number(usage.size), number(usage.inodes)));
                }
                // It was removed meanwhile.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let add = |(bytes, inodes): (u64, u64), more: &(u64, u64)| {
            (bytes.saturating_add(more.0), inodes.saturating_add(more.1))
        };
        Ok(self.0.values().fold((0, 0), add))
    }
}

/// Names of layers that do not change.
async fn list(containerd: &Containerd, snapshotter: &str) -> Result<BTreeSet<String>, CallError> {
    let request = ListSnapshotsRequest { snapshotter: snapshotter.to_owned(), ..Default::default() };
    let mut client = containerd.snapshots();
    let mut stream = containerd.call("list layers", snapshotter, client.list(request)).await?;
    let mut names = BTreeSet::new();
    while let Some(some) = containerd.next("list layers", snapshotter, stream.message()).await? {
        let lasting = some.info.into_iter().filter(|info| info.kind() == Kind::Committed);
        names.extend(lasting.map(|info| info.name));
        if names.len() > LAYERS_MAX {
            break;
        }
    }
    Ok(names)
}
