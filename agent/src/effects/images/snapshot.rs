//! Writable snapshots of images.

use std::{collections::HashMap, time::Duration};

use berth_core::{
    failure::{Failure, FailureKind},
    users::HostIds,
};
use containerd_client::{
    services::v1::snapshots::{
        MountsRequest, PrepareSnapshotRequest, RemoveSnapshotRequest, StatSnapshotRequest,
    },
    types::Mount,
};
use tonic::{Code, Request};

use super::{
    failure::{config, failed},
    host::Host,
};
use crate::{
    absent::absent_is_fine,
    causes::with_causes,
    runtime::{
        CallError, Containerd, REMAP_IDS,
        labels::{GID_MAPPING, UID_MAPPING},
    },
};

/// What containerd gets to tell of a snapshotter, which it does from memory.
const ASKED_WITHIN: Duration = Duration::from_secs(10);

/// A snapshot to prepare.
#[derive(Debug)]
pub(super) struct Snapshot<'a> {
    pub(super) snapshotter: &'a str,
    pub(super) key: &'a str,
    /// Chain id of the image's layers.
    pub(super) parent: &'a str,
    /// Ids for which owners of its files are shifted.
    pub(super) ids: Option<HostIds>,
    pub(super) labels: HashMap<String, String>,
}

/// How a snapshot is mounted.
#[derive(Debug)]
pub(super) enum Prepared {
    /// It was made now.
    New(Vec<Mount>),
    /// There is one of that key.
    Found,
}

/// Prepares a snapshot. `send` makes a request of it.
pub(super) async fn prepare(
    host: &Host,
    act: &'static str,
    snapshot: Snapshot<'_>,
    send: impl FnOnce(PrepareSnapshotRequest) -> Request<PrepareSnapshotRequest>,
) -> Result<Prepared, Failure> {
    let Snapshot { snapshotter, key, parent, ids, mut labels } = snapshot;
    if let Some(HostIds { first, count }) = ids {
        can_shift_owners(host, act, snapshotter).await?;
        let map = format!("0:{first}:{count}");
        labels.extend([UID_MAPPING, GID_MAPPING].map(|label| (label.to_owned(), map.clone())));
    }
    let (asked, layers) = (snapshotter, parent);
    let (snapshotter, parent) = (snapshotter.to_owned(), parent.to_owned());
    let request = PrepareSnapshotRequest { snapshotter, key: key.to_owned(), parent, labels };
    let mut client = host.containerd.snapshots();
    match host.containerd.call(act, key, client.prepare(send(request))).await {
        Ok(answer) => Ok(Prepared::New(answer.mounts)),
        Err(error) if error.is_already_exists() => Ok(Prepared::Found),
        Err(error) if error.is_not_found() && !is_there(&host.containerd, asked, layers).await? => {
            Err(failed(FailureKind::LayersGone, &error))
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether containerd has an image's layers: nobody removed it since it was looked at.
async fn is_there(containerd: &Containerd, snapshotter: &str, chain_id: &str) -> Result<bool, CallError> {
    let stat = StatSnapshotRequest { snapshotter: snapshotter.to_owned(), key: chain_id.to_owned() };
    let mut client = containerd.snapshots();
    match containerd.call("look for layers", chain_id, client.stat(stat)).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a snapshotter has a layer's files belong to others, without a copy of the image for each pod.
async fn can_shift_owners(host: &Host, act: &str, snapshotter: &str) -> Result<(), Failure> {
    if host.containerd.shifts_owners(snapshotter, ASKED_WITHIN).await? {
        return Ok(());
    }
    Err(config(format!(
        "{act} of a pod with a user namespace: snapshotter {snapshotter} cannot shift owners \
        (capability {REMAP_IDS}); overlayfs can since Linux 5.19"
    )))
}

/// Removes a snapshot. That of a snapshotter which containerd does not have any more is left to its garbage collection.
pub(in crate::effects) async fn remove(
    host: &Host,
    act: &'static str,
    snapshotter: &str,
    key: &str,
) -> Result<(), Failure> {
    let request = RemoveSnapshotRequest { snapshotter: snapshotter.to_owned(), key: key.to_owned() };
    let mut client = host.containerd.snapshots();
    let is_of_settings = snapshotter == host.settings().snapshotter;
    match absent_is_fine(host.containerd.call(act, key, client.remove(request)).await) {
        Err(error) if !is_of_settings && error.code() == Some(Code::InvalidArgument) => {
            tracing::warn!(
                snapshotter,
                key,
                why = with_causes(&error),
                "no such snapshotter: a snapshot stays"
            );
            Ok(())
        }
        removed => Ok(removed?),
    }
}

/// How a snapshot is mounted that is there.
pub(super) async fn mounts(
    containerd: &Containerd,
    act: &'static str,
    snapshotter: &str,
    key: &str,
) -> Result<Vec<Mount>, CallError> {
    let request = MountsRequest { snapshotter: snapshotter.to_owned(), key: key.to_owned() };
    let mut client = containerd.snapshots();
    Ok(containerd.call(act, key, client.mounts(request)).await?.mounts)
}
