//! Volumes of claims: what the API server says they are, bound below the pod's directory or looked at.

use std::{path::Path, sync::Arc, time::Duration};

use berth_core::{
    derived::claim::{Asked, ClaimError, Claimed, LocalVolume},
    event::Outcome,
    failure::Failure,
    id::PodUid,
    paths,
    pod::port::volume::VolumeRequest,
    spec::{ClaimVolume, FsGroupChange, HostPathType},
};

use super::{
    host::Host,
    volumes::failure,
    work::{Called, FILES, PATH, TREE, Work},
};
use crate::{
    objects,
    volumes::{self, ForGroup, LocalDir},
    workers::Sort,
};

/// Has what a claim has brought where containers find it.
pub(super) async fn ensure(
    host: &Arc<Host>,
    pod: &PodUid,
    request: &VolumeRequest,
    claim: &ClaimVolume,
) -> Result<Outcome, Failure> {
    let asked = Asked { pod: &request.pod, volume: &request.volume.name, claim };
    let (path, step) = match objects::claimed(host.node_object.as_ref(), asked).await? {
        Claimed::Local(local) => {
            let dir = local_dir(host, pod, request, &local);
            let path = dir.target.display().to_string();
            let within = if dir.group.is_some() { TREE } else { FILES };
            let step = Step { step: SET_UP, name: local.name, looks_at: local.path, within };
            (path, Some((step, Work::Local(dir.into()))))
        }
        Claimed::Path { path, kind: HostPathType::Unset, .. } => (path, None),
        Claimed::Path { name, path, kind } => {
            let step = Step { step: SET_UP, name, looks_at: path.clone(), within: PATH };
            (path.clone(), Some((step, Work::HostPath { path, kind: kind.into() })))
        }
        Claimed::Device { name, path } => {
            let step = Step { step: MAP, name, looks_at: path.clone(), within: PATH };
            (path.clone(), Some((step, Work::BlockDevice(path))))
        }
    };
    if let Some((step, work)) = step {
        perform(host, pod, step, &work).await?;
    }
    Ok(Outcome::Volume { path, again_in: None })
}

const SET_UP: &str = "MountVolume.SetUp failed";
const MAP: &str = "MapVolume.MapBlockVolume failed";

/// What is done for a PersistentVolume.
struct Step {
    /// What has failed when it does.
    step: &'static str,
    /// Name of the PersistentVolume.
    name: String,
    looks_at: String,
    within: Duration,
}

async fn perform(host: &Host, pod: &PodUid, step: Step, work: &Work) -> Result<(), Failure> {
    let Step { step, name, looks_at, within } = step;
    // Two volumes of a pod may have one claim.
    let what = format!("persistent volume {name}");
    let called = Called { what: &what, path: &looks_at, sort: Sort::Chosen, within };
    host.work(pod.as_str(), called, work).await.map(drop).map_err(|Failure { kind, message }| {
        let error = ClaimError::Refused { step, name, why: message };
        Failure::new(kind, error.to_string())
    })
}

fn local_dir(host: &Host, pod: &PodUid, request: &VolumeRequest, local: &LocalVolume) -> LocalDir {
    let node = &host.node().paths;
    let LocalVolume { name, path, read_only, options, is_of_one_pod } = local;
    let on_root_mismatch = request.pod.security.fs_group_change == FsGroupChange::OnRootMismatch;
    LocalDir {
        source: path.into(),
        target: paths::local_volume(node, pod, name).into(),
        mark: paths::local_volume_ready(node, pod, name).into(),
        pods: paths::pods_dir(node).into(),
        read_only: *read_only,
        options: options.clone(),
        is_of_one_pod: *is_of_one_pod,
        group: request.fs_group.map(|id| ForGroup { id, on_root_mismatch }),
    }
}

/// In a worker: binds a directory of the node.
pub(in crate::effects) fn bind(wanted: &LocalDir) -> Result<(), Failure> {
    volumes::ensure_local(wanted).map_err(failure)
}

/// In a worker: looks whether a path is a block device.
pub(in crate::effects) fn look_at_device(path: &str) -> Result<(), Failure> {
    volumes::check_block_device(Path::new(path)).map_err(failure)
}
