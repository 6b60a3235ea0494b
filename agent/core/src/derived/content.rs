//! What follows from the volumes of a pod that show content: which objects they name, who owns files, what is mounted within.
//!
//! Source: `pkg/volume/util/util.go` `FsUserFrom`, `pkg/volume/util/nested_volumes.go`.

use std::collections::BTreeSet;

use crate::{
    id::VolumeName,
    spec::{Container, ContentVolume, ObjectKey, Pod, Projection, SubPath, Volume, VolumeSource},
};

/// The objects that a volume of the pod shows.
pub fn objects<'a>(pod: &'a Pod, volume: &'a ContentVolume) -> impl Iterator<Item = ObjectKey> + 'a {
    volume.sources.iter().filter_map(|source| match source {
        Projection::Object(files) => Some(pod.object_key(files.kind, &files.name)),
        Projection::Downward(_) | Projection::Token(_) => None,
    })
}

/// Whether a volume of the pod shows an object.
#[must_use]
pub fn shows(pod: &Pod, volume: &Volume, object: &ObjectKey) -> bool {
    match &volume.source {
        VolumeSource::Content(content) => objects(pod, content).any(|key| key == *object),
        VolumeSource::EmptyDir { .. }
        | VolumeSource::HostPath { .. }
        | VolumeSource::Claim(_)
        | VolumeSource::Image { .. } => false,
    }
}

/// Whether a volume shows something of its pod, which may change.
#[must_use]
pub fn shows_pod(volume: &Volume) -> bool {
    match &volume.source {
        VolumeSource::Content(content) => {
            content.sources.iter().any(|source| matches!(source, Projection::Downward(_)))
        }
        VolumeSource::EmptyDir { .. }
        | VolumeSource::HostPath { .. }
        | VolumeSource::Claim(_)
        | VolumeSource::Image { .. } => false,
    }
}

/// The user that all containers of the pod run as by their spec: owner of its tokens. None where one says nothing, or another.
#[must_use]
pub fn fs_user(pod: &Pod) -> Option<u32> {
    let user = |container: &Container| container.security.run_as_user.or(pod.security.run_as_user);
    let mut users = pod.all_containers().map(|container| user(container));
    let first = users.next()??;
    users.all(|other| other == Some(first)).then_some(first)
}

/// Directories within a volume that something else is mounted at in the same container: they are made by the agent, since the
/// volume is read-only to whoever mounts. Relative, and sorted.
#[must_use]
pub fn nested_mount_points(pod: &Pod, volume: &VolumeName) -> BTreeSet<String> {
    pod.all_containers().flat_map(|container| nested_in(container, volume)).collect()
}

/// Only where the whole volume is mounted, there is a place in it for others.
fn nested_in(container: &Container, volume: &VolumeName) -> Vec<String> {
    let mounts = &container.mounts;
    let whole = |path: &str| format!("{}/", path.trim_end_matches('/'));
    let bases: Vec<String> = mounts
        .iter()
        .filter(|mount| mount.volume == *volume && mount.sub_path == SubPath::Root)
        .map(|mount| whole(&mount.path))
        .collect();
    let mut nested: Vec<String> = mounts
        .iter()
        .filter_map(|mount| {
            let rest = bases.iter().find_map(|base| mount.path.strip_prefix(base.as_str()))?;
            let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
            let is_plain = !parts.is_empty() && parts.iter().all(|part| !matches!(*part, "." | ".."));
            is_plain.then(|| parts.join("/"))
        })
        .collect();
    nested.sort();
    // One that is within another mount is made there.
    let outer = nested.clone();
    nested.retain(|path| !outer.iter().any(|other| path.starts_with(&format!("{other}/"))));
    nested
}

#[cfg(test)]
mod tests;
