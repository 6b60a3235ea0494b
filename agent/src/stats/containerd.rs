//! What containerd is asked: how large the layers of images are, once for each.

use std::collections::{BTreeMap, BTreeSet};

use containerd_client::services::v1::snapshots::{Kind, ListSnapshotsRequest, UsageRequest};

use crate::runtime::{CallError, Containerd};

/// Layers whose sizes are known at most: far more than a disk has images for.
const LAYERS_MAX: usize = 1 << 16;

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
