//! Volumes of pods.

use std::sync::Arc;

use berth_core::{
    effect::VolumeRequest,
    event::{Failure, FailureKind, Outcome},
    id::PodUid,
    paths,
    spec::{FsGroupChange, VolumeSource},
};

use super::{
    failure::failed,
    host::{Host, blocking},
};
use crate::volumes::{self, EmptyDir, VolumeError};

/// Makes and mounts one volume.
pub(super) async fn ensure(
    host: &Arc<Host>,
    pod: &PodUid,
    request: VolumeRequest,
) -> Result<Outcome, Failure> {
    let (host, pod) = (Arc::clone(host), pod.clone());
    blocking(move || {
        let VolumeRequest { volume, fs_group, fs_group_change, tmpfs_size_bytes } = request;
        let path = paths::volume(&host.node().paths, &pod, &volume.name, &volume.source);
        let made = match &volume.source {
            VolumeSource::EmptyDir { medium, .. } => {
                let empty = EmptyDir {
                    medium: *medium,
                    size_bytes_max: tmpfs_size_bytes,
                    fs_group,
                    is_recursive: fs_group_change == FsGroupChange::Always,
                };
                volumes::ensure_empty_dir(path.as_ref(), &empty)
            }
            VolumeSource::HostPath { path, kind } => volumes::ensure_host_path(path.as_ref(), *kind),
        };
        made.map_err(failure)?;
        host.failpoint.reach("volume.directory-made");
        Ok(Outcome::Volume { path })
    })
    .await
}

/// Unmounts and removes all volumes of a pod, and the parts of them that were bound for containers.
pub(super) async fn remove_all(host: &Arc<Host>, pod: &PodUid) -> Result<Outcome, Failure> {
    let (host, pod) = (Arc::clone(host), pod.clone());
    blocking(move || {
        let dir = host.pod_dir(&pod);
        volumes::unmount_below(dir.as_ref()).map_err(failure)?;
        host.failpoint.reach("volumes.unmounted");
        for below in ["volume-subpaths", "volumes"] {
            let path = format!("{dir}/{below}");
            volumes::remove_tree(path.as_ref()).map_err(super::failure::local("remove", &path))?;
        }
        Ok(Outcome::Done)
    })
    .await
}

fn failure(error: VolumeError) -> Failure {
    let kind = match &error {
        VolumeError::WrongType { .. } => FailureKind::Config,
        VolumeError::Io { .. } => FailureKind::Transient,
    };
    failed(kind, &error)
}
