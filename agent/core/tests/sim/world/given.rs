//! What cgroups have of CPU and memory.

use std::sync::Arc;

use berth_core::{cgroup::CgroupValues, event::Outcome, id::PodUid, pod::port::resize::ResizeRequest, spec};

use super::World;

/// Bounds of a cgroup: of what it may use, `None` is without bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Given {
    /// µs in a period.
    pub(crate) quota: Option<u64>,
    /// Bytes.
    pub(crate) memory: Option<u64>,
}

impl Given {
    /// What is right for a container.
    pub(crate) fn of(container: &spec::Container) -> Self {
        let limits = &container.resources.limits;
        Self { quota: limits.cpu_milli.map(|milli| milli * 100), memory: limits.memory_bytes }
    }

    pub(super) fn of_level(values: &CgroupValues) -> Self {
        Self { quota: values.cpu_quota_us, memory: values.memory_bytes_max }
    }

    /// What all of these may use together.
    pub(crate) fn sum(all: &[Self]) -> Self {
        Self { quota: all.iter().map(|one| one.quota).sum(), memory: all.iter().map(|one| one.memory).sum() }
    }

    /// Whether it is enough for what others may use.
    pub(crate) fn is_enough_for(self, other: Self) -> bool {
        let is_enough = |bound: Option<u64>, used: Option<u64>| match (bound, used) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(bound), Some(used)) => used <= bound,
        };
        is_enough(self.quota, other.quota) && is_enough(self.memory, other.memory)
    }
}

impl World {
    /// A container that runs is given other resources.
    pub(super) fn resize(&mut self, pod: &PodUid, request: &ResizeRequest) -> Outcome {
        let allocated = self.allocated(pod).and_then(|spec| {
            let container = spec.fixed_containers().find(|one| one.name == request.name)?;
            Some(Given::of(container))
        });
        let bound = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok());
        let Some(container) = self.containers.get_mut(&request.id) else { return Outcome::Done };
        let mut given = container.given;
        if let Some(cpu) = request.resources.cpu() {
            given.quota = bound(cpu.quota());
        }
        if let Some(memory) = request.resources.memory() {
            given.memory = bound(memory.limit());
        }
        container.given = given;
        let is_of_cpu = request.resources.cpu().is_some();
        let allocated = allocated.map(|allocated| match is_of_cpu {
            true => Given { memory: given.memory, ..allocated },
            false => Given { quota: given.quota, ..allocated },
        });
        self.judge(|oracle| oracle.given(pod, given, allocated));
        self.check_level(pod);
        Outcome::Done
    }

    /// What is allocated to a pod by its record on disk.
    pub(crate) fn allocated(&self, pod: &PodUid) -> Option<Arc<spec::Pod>> {
        let record = self.records.get(pod)?;
        let manifest = record.resize.as_ref().map_or(&record.manifest, |resize| &resize.allocated);
        self.specs.get(manifest).cloned()
    }

    /// What runs in a pod has room in its cgroup.
    pub(super) fn check_level(&mut self, pod: &PodUid) {
        let running = self.containers.values().filter(|one| one.pod == *pod && one.is_running());
        let running: Vec<Given> = running
            .filter(|one| !["init-", "debug-"].iter().any(|kind| one.name.as_str().starts_with(kind)))
            .map(|one| one.given)
            .collect();
        let level = self.levels.get(pod).copied().filter(|_| self.cgroups.contains_key(pod));
        self.judge(|oracle| oracle.level(pod, level.unwrap_or_default(), &running));
    }
}
