//! Layers of containers that were never made, of pods that nobody knows any more.
//!
//! A layer is there before its container has a record in containerd, and is kept by a label of its own. When the records of pods are lost, as in a
//! reboot, nothing else leads to it.

use std::{collections::BTreeSet, time::Duration};

use berth_core::id::PodUid;
use containerd_client::services::v1::snapshots::{Info, ListSnapshotsRequest, RemoveSnapshotRequest};
use tokio::time::timeout;

use super::{
    CallError, Containerd,
    labels::{POD_UID, RUN_DIR, VOLUME},
};
use crate::causes::with_causes;

/// How long all of it may take: nothing else of the node goes on meanwhile.
const WITHIN: Duration = Duration::from_secs(5);

/// Removes those of the agent of a run directory whose pod is not `recorded` and that no container is `made` of. A pod that is wanted all the
/// same has them made anew. What is not removed in time is found by the next agent.
pub async fn remove_left(
    containerd: &Containerd,
    snapshotter: &str,
    run_dir: &str,
    recorded: &BTreeSet<PodUid>,
    made: &BTreeSet<&str>,
) {
    let removed = async {
        match list(containerd, snapshotter, run_dir).await {
            Ok(found) => {
                let left = found.into_iter().filter(|layer| is_left(layer, recorded, made));
                remove(containerd, snapshotter, left).await;
            }
            Err(error) => {
                tracing::warn!(why = with_causes(&error), "layers that lost their pods are not looked for");
            }
        }
    };
    if timeout(WITHIN, removed).await.is_err() {
        tracing::warn!(snapshotter, "layers that lost their pods stay: the snapshotter takes too long");
    }
}

async fn remove(containerd: &Containerd, snapshotter: &str, layers: impl Iterator<Item = Info>) {
    for Info { name, .. } in layers {
        let request = RemoveSnapshotRequest { snapshotter: snapshotter.to_owned(), key: name.clone() };
        let mut client = containerd.snapshots();
        match containerd.call("remove layer", &name, client.remove(request)).await {
            Ok(_) => tracing::info!(layer = name, "a layer that lost its pod is removed"),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                tracing::warn!(layer = name, why = with_causes(&error), "a layer that lost its pod stays");
            }
        }
    }
}

async fn list(containerd: &Containerd, snapshotter: &str, run_dir: &str) -> Result<Vec<Info>, CallError> {
    let filters = vec![format!("kind==active,labels.{RUN_DIR:?}=={run_dir:?}")];
    let request = ListSnapshotsRequest { snapshotter: snapshotter.to_owned(), filters };
    let mut client = containerd.snapshots();
    let mut stream = containerd.call("list layers", snapshotter, client.list(request)).await?;
    let mut all = Vec::new();
    while let Some(some) = containerd.next("list layers", snapshotter, stream.message()).await? {
        all.extend(some.info);
    }
    Ok(all)
}

fn is_left(layer: &Info, recorded: &BTreeSet<PodUid>, made: &BTreeSet<&str>) -> bool {
    let pod = layer.labels.get(POD_UID).filter(|_| !layer.labels.contains_key(VOLUME));
    pod.is_some_and(|uid| !recorded.contains(&PodUid::new(uid.as_str())))
        && !made.contains(layer.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pod_or_a_container_still_has_is_not_left() {
        let recorded = BTreeSet::from([PodUid::new("known")]);
        let made = BTreeSet::from(["made"]);
        for (name, labels, expected) in [
            ("a", &[(POD_UID, "gone")][..], true),
            ("a", &[(POD_UID, "known")], false),
            ("made", &[(POD_UID, "gone")], false),
            ("a", &[(POD_UID, "gone"), (VOLUME, "v")], false),
            ("a", &[], false),
        ] {
            let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let layer = Info { name: name.to_owned(), labels, ..Info::default() };
            assert_eq!(is_left(&layer, &recorded, &made), expected, "{layer:?}");
        }
    }
}
