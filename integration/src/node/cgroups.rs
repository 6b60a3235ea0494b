//! Where the cgroups of pods are: the kubelet's names, of the driver that the agent chooses on this machine.

use crate::lab::World;
use crate::systemd;

/// The cgroup of a pod below the mount point of a hierarchy; `class` is `burstable`, `besteffort` or, for Guaranteed,
/// empty.
#[must_use]
pub fn of_pod(world: &World, class: &str, uid: &str) -> String {
    let levels = ["kubepods", class, &format!("pod{uid}")];
    path(world, &levels.map(str::to_owned))
}

/// The cgroup of a class; of all pods when `class` is empty.
#[must_use]
pub fn of_class(world: &World, class: &str) -> String {
    path(world, &["kubepods", class].map(str::to_owned))
}

/// The name of a container's cgroup in its pod's.
#[must_use]
pub fn name_of_container(id: &str) -> String {
    if systemd::is_here() { format!("cri-containerd-{id}.scope") } else { id.to_owned() }
}

fn path(world: &World, levels: &[String]) -> String {
    let root = world.cgroup_root().trim_start_matches('/').to_owned();
    let levels = levels.iter().filter(|level| !level.is_empty());
    if !systemd::is_here() {
        return levels.fold(root, |path, level| format!("{path}/{level}"));
    }
    let (mut slice, mut path) = (root.clone(), format!("{root}.slice"));
    for level in levels {
        slice = format!("{slice}-{}", level.replace('-', "_"));
        path = format!("{path}/{slice}.slice");
    }
    path
}
