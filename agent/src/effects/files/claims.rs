//! Volumes of claims: what the API server says they are, bound below the pod's directory or looked at.

use std::{path::Path, sync::Arc, time::Duration};

use berth_core::{
    derived::claim::{Asked, ClaimError, Claimed, LocalVolume},
    event::Outcome,
    failure::{Failure, FailureKind},
    id::PodUid,
    paths,
    pod::port::volume::VolumeRequest,
    spec::{ClaimVolume, FsGroupChange, HostPathType},
};

use super::{
    host::Host,
    volumes::failure,
    work::{Answer, Called, FILES, PATH, TREE, Work},
};
use crate::{
    objects,
    volumes::{self, ForGroup, LocalDir, VolumeError},
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
            let steps = [NEW_MOUNTER, SET_UP];
            let step = Step { steps, name: local.name, looks_at: local.path, within };
            (path, Some((step, Work::Local(dir.into()))))
        }
        Claimed::Path { path, kind: HostPathType::Unset, .. } => (path, None),
        Claimed::Path { name, path, kind } => {
            let step = Step { steps: [SET_UP; 2], name, looks_at: path.clone(), within: PATH };
            (path.clone(), Some((step, Work::HostPath { path, kind: kind.into() })))
        }
        Claimed::Device { name, path } => {
            let step = Step { steps: [EVAL_LINKS, MAP], name, looks_at: path.clone(), within: PATH };
            (path.clone(), Some((step, Work::BlockDevice(path))))
        }
    };
    if let Some((step, work)) = step {
        perform(host, pod, step, &work).await?;
    }
    Ok(Outcome::Volume { path, again_in: None })
}

const NEW_MOUNTER: &str = "MountVolume.NewMounter initialization failed";
const EVAL_LINKS: &str = "MapVolume.EvalHostSymlinks failed";
const SET_UP: &str = "MountVolume.SetUp failed";
const MAP: &str = "MapVolume.MapBlockVolume failed";

/// What is done for a PersistentVolume.
struct Step {
    /// What has failed when the PersistentVolume is not what it says, and when it cannot be had.
    steps: [&'static str; 2],
    /// Name of the PersistentVolume.
    name: String,
    looks_at: String,
    within: Duration,
}

async fn perform(host: &Host, pod: &PodUid, step: Step, work: &Work) -> Result<(), Failure> {
    let Step { steps: [not_there, step], name, looks_at, within } = step;
    // Two volumes of a pod may have one claim.
    let what = format!("persistent volume {name}");
    let called = Called { what: &what, path: &looks_at, sort: Sort::Chosen, within };
    let (kind, step, why) = match host.work(pod.as_str(), called, work).await {
        Ok(Answer::NotThere(why)) => (FailureKind::Config, not_there, why),
        Ok(_) => return Ok(()),
        Err(Failure { kind, message }) => (kind, step, message),
    };
    Err(Failure::new(kind, ClaimError::Refused { step, name, why }.to_string()))
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
pub(in crate::effects) fn bind(wanted: &LocalDir) -> Result<Answer, Failure> {
    match volumes::ensure_local(wanted) {
        Ok(()) => Ok(Answer::Done),
        Err(error @ (VolumeError::NoSuchPath { .. } | VolumeError::NoDirectory { .. })) => {
            Ok(Answer::NotThere(error.to_string()))
        }
        Err(error) => Err(failure(error)),
    }
}

/// In a worker: looks whether a path is a block device.
pub(in crate::effects) fn look_at_device(path: &str) -> Result<Answer, Failure> {
    match volumes::check_block_device(Path::new(path)) {
        Ok(()) => Ok(Answer::Done),
        Err(VolumeError::NoSuchPath { path }) => {
            Ok(Answer::NotThere(format!("lstat {}: no such file or directory", path.display())))
        }
        Err(error) => Err(failure(error)),
    }
}
