//! Volumes of pods.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use berth_core::{
    derived::content::nested_mount_points,
    event::Outcome,
    failure::{Failure, FailureKind},
    id::PodUid,
    paths,
    pod::port::volume::VolumeRequest,
    spec::{HostPathType, VolumeSource},
};

use super::{
    failure::failed,
    host::Host,
    work::{Called, FILES, PATH, TREE, Work},
};
use crate::{
    objects::{self, ObjectError},
    volumes::{self, ContentFile, EmptyDir, VolumeError},
    workers::Sort,
};

/// Makes and mounts one volume.
pub(in crate::effects) async fn ensure(
    host: &Arc<Host>,
    pod: &PodUid,
    request: VolumeRequest,
) -> Result<Outcome, Failure> {
    let VolumeRequest { pod: spec, volume, fs_group, tmpfs_size_bytes } = request;
    let mut again_in = None;
    let path = paths::volume(&host.node().paths, pod, &volume.name, &volume.source);
    let (sort, within, work) = match &volume.source {
        // Nothing is looked at, so nothing can hang.
        VolumeSource::HostPath { kind: HostPathType::Unset, .. } => {
            return Ok(Outcome::Volume { path, again_in });
        }
        VolumeSource::HostPath { kind, .. } => {
            (Sort::Chosen, PATH, Work::HostPath { path: path.clone(), kind: (*kind).into() })
        }
        VolumeSource::EmptyDir { medium, .. } => {
            let empty = EmptyDir { medium: *medium, size_bytes_max: tmpfs_size_bytes, fs_group };
            let within = if fs_group.is_some() { TREE } else { FILES };
            let mark = paths::empty_dir_ready(&host.node().paths, pod, &volume.name);
            (Sort::Own, within, Work::EmptyDir { path: path.clone(), mark, request: empty.into() })
        }
        VolumeSource::Content(content) => {
            let medium = content.kind.medium();
            let empty = EmptyDir { medium, size_bytes_max: tmpfs_size_bytes, fs_group };
            let gathered = objects::gather(&host.objects, host.node(), &spec, content).await;
            let payload = gathered.map_err(|error| missing(&error))?;
            host.failpoint.reach("content.gathered");
            again_in = payload.again_in;
            let mark = paths::content_ready(&host.node().paths, pod, &volume.name);
            let nested = nested_mount_points(&spec, &volume.name);
            let files = payload.files;
            (
                Sort::Own,
                FILES,
                Work::Content { path: path.clone(), mark, request: empty.into(), files, nested },
            )
        }
    };
    let what = format!("volume {}", volume.name);
    host.work(pod.as_str(), Called { what: &what, path: &path, sort, within }, &work).await?;
    host.failpoint.reach("volume.directory-made");
    if matches!(volume.source, VolumeSource::Content(_)) {
        host.failpoint.reach("content.written");
    }
    Ok(Outcome::Volume { path, again_in })
}

/// What a volume shows may come, or come back: its objects are watched.
fn missing(error: &ObjectError) -> Failure {
    failed(FailureKind::Transient, error)
}

/// Unmounts and removes all volumes of a pod, and the parts of them that were bound for containers.
pub(in crate::effects) async fn remove_all(host: &Arc<Host>, pod: &PodUid) -> Result<Outcome, Failure> {
    let dir = host.pod_dir(pod);
    let called = Called { what: "removal of volumes", path: &dir, sort: Sort::Ends, within: TREE };
    host.work(pod.as_str(), called, &Work::Unmount(dir.clone())).await?;
    host.failpoint.reach("volumes.unmounted");
    let trees = ["volume-subpaths", "volumes"].map(|below| format!("{dir}/{below}")).to_vec();
    host.work(pod.as_str(), called, &Work::Remove(trees)).await?;
    host.objects.release(pod);
    Ok(Outcome::Done)
}

/// In a worker: makes an emptyDir.
pub(in crate::effects) fn empty_dir(path: &str, mark: &str, request: EmptyDir) -> Result<(), Failure> {
    volumes::ensure_empty_dir(Path::new(path), Path::new(mark), &request).map_err(failure)
}

/// In a worker: makes a volume with content, or exchanges what is in it.
pub(in crate::effects) fn content(
    path: &str,
    mark: &str,
    request: EmptyDir,
    files: &[ContentFile],
    nested: &BTreeSet<String>,
) -> Result<(), Failure> {
    volumes::ensure_empty_dir(Path::new(path), Path::new(mark), &request).map_err(failure)?;
    volumes::write_content(Path::new(path), files, nested, request.fs_group).map_err(failure)
}

/// In a worker: looks at a hostPath, or makes it.
pub(in crate::effects) fn host_path(path: &str, kind: HostPathType) -> Result<(), Failure> {
    volumes::ensure_host_path(Path::new(path), kind).map_err(failure)
}

pub(in crate::effects) fn failure(error: VolumeError) -> Failure {
    let kind = match &error {
        VolumeError::WrongType { .. } | VolumeError::WrongPath { .. } => FailureKind::Config,
        VolumeError::Io { .. } => FailureKind::Transient,
    };
    failed(kind, &error)
}
