//! The pod's volumes.

use crate::{
    cgroup,
    config::NodeConfig,
    effect::Act,
    event::Outcome,
    failure::Failure,
    id::VolumeName,
    pod::{
        fit,
        machine::{PodMachine, Shared},
        outcome::Slot,
        resource::{EndedEffect, Resource},
    },
    spec::{Medium, Pod, Volume, VolumeSource},
};

/// A volume to make.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeRequest {
    /// The volume.
    pub volume: Volume,
    /// Group that is to own it.
    pub fs_group: Option<u32>,
    /// Size of a memory medium in bytes; `None` for other mediums.
    pub tmpfs_size_bytes: Option<u64>,
}

/// A memory medium is no larger than what pods may use of the node, the pod's memory limit and its own (KEP-1967).
/// Source: `calculateEmptyDirMemorySize` of `pkg/volume/emptydir/empty_dir.go`.
fn request(pod: &Pod, name: &VolumeName, config: &NodeConfig) -> Option<VolumeRequest> {
    let volume = pod.volumes.iter().find(|volume| volume.name == *name)?.clone();
    let tmpfs_size_bytes = match &volume.source {
        VolumeSource::EmptyDir { medium: Medium::Memory, size_limit_bytes } => {
            let limit = cgroup::pod_values(pod, config).memory_bytes_max;
            let bounds = [config.allocatable.memory_bytes, limit, *size_limit_bytes];
            bounds.into_iter().flatten().filter(|bytes| *bytes > 0).min()
        }
        VolumeSource::EmptyDir { medium: Medium::Disk, .. } | VolumeSource::HostPath { .. } => None,
    };
    Some(VolumeRequest { volume, fs_group: pod.security.fs_group, tmpfs_size_bytes })
}

impl PodMachine {
    /// Asks for a volume.
    pub(in crate::pod) fn ensure_volume(&mut self, name: VolumeName, shared: &mut Shared<'_>) {
        let Some(request) = request(&self.life.spec, &name, shared.config) else { return };
        let tries = self.life.actual.volumes.get(&name).map_or(0, Resource::tries);
        let act = Act::EnsureVolume(Box::new(request));
        let op = self.ask(shared, Slot::Volume(name.clone()), tries, act);
        self.life.actual.volumes.insert(name, Resource::Ensuring(op));
    }

    /// Takes the outcome.
    pub(in crate::pod) fn volume_made(
        &mut self,
        name: &VolumeName,
        ended: EndedEffect,
        result: Result<Outcome, Failure>,
    ) {
        let prefix = format!("MountVolume.SetUp failed for volume {:?} : ", name.as_str());
        self.complain(&result, "FailedMount", &prefix);
        if let Some(state) = self.life.actual.volumes.get_mut(name) {
            state.settle(ended, path(result));
        }
    }
}

fn path(result: Result<Outcome, Failure>) -> Result<String, Failure> {
    let outcome = result?;
    if let Outcome::Volume { path } = outcome { Ok(path) } else { Err(fit::unfitting(&outcome)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures,
        spec::{QosClass, Volume},
    };

    #[test]
    fn memory_is_bounded_by_the_node_the_pod_and_the_volume() {
        const GIB: u64 = 1 << 30;
        let node = fixtures::node();
        let allocatable = node.allocatable.memory_bytes;
        for (pod_limit, volume_limit, expected) in [
            (0, None, allocatable),
            (0, Some(100 * GIB), allocatable),
            (0, Some(GIB), Some(GIB)),
            (2 * GIB, None, Some(2 * GIB)),
            (2 * GIB, Some(3 * GIB), Some(2 * GIB)),
            (2 * GIB, Some(GIB), Some(GIB)),
            (100 * GIB, None, allocatable),
        ] {
            let mut container = fixtures::container("main");
            container.resources = fixtures::resources((0, 0), (0, pod_limit));
            let name = VolumeName::new("data");
            let source = VolumeSource::EmptyDir { medium: Medium::Memory, size_limit_bytes: volume_limit };
            let volumes = vec![Volume { name: name.clone(), source }];
            let pod = Pod { volumes, qos: QosClass::Burstable, ..fixtures::pod(vec![container]) };
            let found = request(&pod, &name, &node).and_then(|request| request.tmpfs_size_bytes);
            assert_eq!(found, expected, "{pod_limit} {volume_limit:?}");
        }
    }
}
