//! Volumes that are images: a snapshot of the image for each, mounted below the pod's directory.
//!
//! A lease of the pod keeps the snapshots from containerd's garbage collection and names them, whatever the settings are by the time at which
//! they go. It is there before the first of them and goes after the last (decision 0041).

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use berth_core::{
    event::Outcome,
    failure::Failure,
    id::{PodUid, volume_snapshot, volumes_lease},
    paths,
    pod::port::volume::VolumeRequest,
    record::VolumeImage,
};
use containerd_client::services::v1::{CreateRequest, ListRequest, ListResourcesRequest};

use super::{
    failure::unknown,
    files::{
        volumes,
        work::{Called, FILES, Work},
    },
    host::Host,
    kinds::{Lane, RUNTIME},
    lease::{self, Leaves, under},
    snapshot::{self, Prepared, Snapshot, prepare},
};
use crate::{
    runtime::labels::{POD_UID, VOLUME},
    workers::Sort,
};

/// Type of a lease's resource that is a snapshot, before the name of its snapshotter (`plugins/services/leases` of containerd).
const SNAPSHOTS: &str = "snapshots/";

/// How long the agent's start may wait until what is left of pods that have gone is removed. It is before the first pod begins, since one of the
/// same UID has the same lease.
const LEFT_WITHIN: Duration = Duration::from_secs(5);

/// Mounts the image that a volume is made of, or finds it mounted.
pub(in crate::effects) async fn ensure(
    host: &Arc<Host>,
    pod: &PodUid,
    request: &VolumeRequest,
    image: &VolumeImage,
) -> Result<Outcome, Failure> {
    let (node, name) = (&host.node().paths, &request.volume.name);
    let lease = volumes_lease(&node.run, pod);
    let key = volume_snapshot(&node.run, pod, name, &image.chain_id, request.ids);
    let snapshotter = host.settings().snapshotter.clone();
    let labels = [(POD_UID, pod.to_string()), (VOLUME, name.to_string())];
    let labels = labels.map(|(label, value)| (label.to_owned(), value));
    let place = host.lanes.enter(Lane::Layers, RUNTIME).await?;
    take_lease(host, pod, &lease).await?;
    host.failpoint.reach("image-volume.lease-taken");
    let snapshot = Snapshot {
        snapshotter: &snapshotter,
        key: &key,
        parent: &image.chain_id,
        ids: request.ids,
        labels: HashMap::from(labels),
    };
    let mounts = match prepare(host, "prepare volume", snapshot, |request| under(&lease, request)).await? {
        Prepared::New(mounts) => mounts,
        Prepared::Found => snapshot::mounts(&host.containerd, "find volume", &snapshotter, &key).await?,
    };
    drop(place);
    host.failpoint.reach("image-volume.snapshot-made");
    let path = paths::volume(node, pod, name, &request.volume.source);
    let path = path.ok_or_else(|| unknown(format!("volume {name} is of no image")))?;
    let what = format!("volume {name}");
    let called = Called { what: &what, path: &path, sort: Sort::Own, within: FILES };
    let layers = mounts.iter().map(Into::into).collect();
    let scratch = format!("{}/image", node.run);
    host.work(pod.as_str(), called, &Work::MountImage { layers, scratch, path: path.clone() }).await?;
    host.failpoint.reach("image-volume.mounted");
    Ok(Outcome::Volume { path, again_in: None })
}

async fn take_lease(host: &Host, pod: &PodUid, lease: &str) -> Result<(), Failure> {
    let labels = HashMap::from([(POD_UID.to_owned(), pod.to_string())]);
    let create = CreateRequest { id: lease.to_owned(), labels };
    let mut client = host.containerd.leases();
    match host.containerd.call("take lease", lease, client.create(create)).await {
        Err(error) if !error.is_already_exists() => Err(error.into()),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Unmounts and removes all volumes of a pod, and what containerd has of those that are images.
pub(in crate::effects) async fn remove_all(host: &Arc<Host>, pod: &PodUid) -> Result<Outcome, Failure> {
    let removed = volumes::remove_all(host, pod).await?;
    end_lease(host, &volumes_lease(&host.node().paths.run, pod)).await?;
    Ok(removed)
}

/// Ends leases of pods of which this agent has nothing else, as after its root directory was wiped. What fails is tried when the next agent
/// begins.
pub async fn end_left(host: &Host, known: &BTreeSet<PodUid>) {
    match tokio::time::timeout(LEFT_WITHIN, try_to_end_left(host, known)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(why = error.message, "snapshots of volumes whose pods have gone stay for now");
        }
        Err(_elapsed) => tracing::warn!("not all snapshots of volumes whose pods have gone are removed yet"),
    }
}

async fn try_to_end_left(host: &Host, known: &BTreeSet<PodUid>) -> Result<(), Failure> {
    let run = &host.node().paths.run;
    let list = ListRequest { filters: vec![format!("labels.{POD_UID:?}")] };
    let mut client = host.containerd.leases();
    let leases = host.containerd.call("list leases of volumes of", run, client.list(list)).await?.leases;
    for lease in leases {
        let pod = lease.labels.get(POD_UID).map(PodUid::new);
        // Its id tells whose it is: other agents' are computed of other run directories.
        let is_ours = pod.as_ref().is_some_and(|pod| lease.id == volumes_lease(run, pod));
        if let Some(pod) = pod.filter(|pod| is_ours && !known.contains(pod)) {
            tracing::info!(%pod, lease = lease.id, "snapshots of volumes of a pod that has gone");
            if let Err(error) = end_lease(host, &lease.id).await {
                tracing::warn!(%pod, lease = lease.id, why = error.message, "they stay for now");
            }
        }
    }
    Ok(())
}

async fn end_lease(host: &Host, lease: &str) -> Result<(), Failure> {
    for (snapshotter, key) in kept_by(host, lease).await? {
        snapshot::remove(host, "remove volume", &snapshotter, &key).await?;
        host.failpoint.reach("image-volume.snapshot-removed");
    }
    Ok(lease::end(&host.containerd, lease, Leaves::Kept).await?)
}

/// The snapshots of a lease, each with its snapshotter. One that is not there keeps none.
async fn kept_by(host: &Host, lease: &str) -> Result<Vec<(String, String)>, Failure> {
    let list = ListResourcesRequest { id: lease.to_owned() };
    let mut client = host.containerd.leases();
    let answer = match host.containerd.call("read lease", lease, client.list_resources(list)).await {
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        answer => answer?,
    };
    let snapshot = |(kind, key): (String, String)| Some((kind.strip_prefix(SNAPSHOTS)?.to_owned(), key));
    Ok(answer.resources.into_iter().filter_map(|one| snapshot((one.r#type, one.id))).collect())
}
