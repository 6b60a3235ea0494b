//! Writable snapshots of images.

use std::{collections::HashMap, time::Duration};

use berth_core::{
    failure::{Failure, FailureKind},
    users::HostIds,
};
use containerd_client::{
    services::v1::snapshots::{MountsRequest, PrepareSnapshotRequest},
    types::Mount,
};
use tonic::Request;

use super::{
    failure::{config, failed},
    host::Host,
};
use crate::runtime::{
    CallError, Containerd, REMAP_IDS,
    labels::{GID_MAPPING, UID_MAPPING},
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
    let (snapshotter, parent) = (snapshotter.to_owned(), parent.to_owned());
    let request = PrepareSnapshotRequest { snapshotter, key: key.to_owned(), parent, labels };
    let mut client = host.containerd.snapshots();
    match host.containerd.call(act, key, client.prepare(send(request))).await {
        Ok(answer) => Ok(Prepared::New(answer.mounts)),
        Err(error) if error.is_already_exists() => Ok(Prepared::Found),
        Err(error) => Err(not_prepared(error)),
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

/// What containerd does not find is the image's layers: somebody removed the image since it was looked at.
fn not_prepared(error: CallError) -> Failure {
    if error.is_not_found() { failed(FailureKind::LayersGone, &error) } else { error.into() }
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

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::runtime::Cause;

    #[test]
    fn layers_that_containerd_does_not_find_are_gone() {
        for (code, kind) in
            [(Code::NotFound, FailureKind::LayersGone), (Code::Internal, FailureKind::Transient)]
        {
            let cause = Cause::Refused { code, message: "parent snapshot x".to_owned() };
            assert_eq!(not_prepared(CallError::new("prepare", "c1", cause)).kind, kind);
        }
    }
}
