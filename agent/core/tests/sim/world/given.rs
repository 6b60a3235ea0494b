//! What cgroups have of CPU and memory.

use std::sync::Arc;

use berth_core::{
    cgroup::CgroupValues,
    event::Outcome,
    id::PodUid,
    pod::port::resize::ResizeRequest,
    spec::{self, ContainerKind},
    status::ConditionKind,
};

use super::World;

/// What a cgroup has: of what it may use, `None` is without bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Given {
    /// µs in a period.
    pub(crate) quota: Option<u64>,
    /// Bytes.
    pub(crate) memory: Option<u64>,
    /// What it has of CPU time where there is not enough, in comparison with others: 1024 for each core that is requested.
    pub(crate) shares: Option<u64>,
}

impl Given {
    /// What is right for a container.
    pub(crate) fn of(container: &spec::Container) -> Self {
        let spec::Resources { requests, limits } = &container.resources;
        let requested = requests.cpu_milli.or(limits.cpu_milli).unwrap_or(0);
        Self {
            quota: limits.cpu_milli.map(|milli| milli * 100),
            memory: limits.memory_bytes,
            // The kernel knows none below 2.
            shares: Some((requested * 1024 / 1000).max(2)),
        }
    }

    pub(super) fn of_level(values: &CgroupValues) -> Self {
        Self { quota: values.cpu_quota_us, memory: values.memory_bytes_max, shares: values.cpu_shares }
    }

    /// What all of these may use together.
    pub(crate) fn sum(all: &[Self]) -> Self {
        Self {
            quota: all.iter().map(|one| one.quota).sum(),
            memory: all.iter().map(|one| one.memory).sum(),
            shares: all.iter().map(|one| one.shares).sum(),
        }
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
        let bound = |value: i64| u64::try_from(value).ok();
        let Some(container) = self.containers.get_mut(&request.id) else { return Outcome::Done };
        let mut given = container.given;
        // What is not named stays as it is.
        if let Some(cpu) = request.resources.cpu() {
            given.quota = cpu.quota().map_or(given.quota, bound);
            given.shares = cpu.shares().or(given.shares);
        }
        if let Some(memory) = request.resources.memory() {
            given.memory = memory.limit().map_or(given.memory, bound);
        }
        container.given = given;
        let is_of_cpu = request.resources.cpu().is_some();
        let allocated = allocated.map(|allocated| match is_of_cpu {
            true => Given { memory: given.memory, ..allocated },
            false => Given { memory: allocated.memory, ..given },
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

    /// What runs has what the record on disk allocates to it, now that nothing changes any more.
    pub(crate) fn check_given(&mut self, pod: &PodUid) {
        let Some(spec) = self.allocated(pod) else { return };
        let is_told = self.records[pod].resizing.is_some();
        for container in spec.fixed_containers().filter(|one| is_resizable(one)) {
            let runs = self.containers.values().filter(|one| one.pod == *pod && one.name == container.name);
            let given: Vec<Given> = runs.filter(|one| one.is_running()).map(|one| one.given).collect();
            for given in given {
                self.judge(|oracle| oracle.given_at_rest(pod, given, Given::of(container), is_told));
            }
        }
    }

    /// What is asked for of a pod and is not allocated waits, as the pod tells, and does not fit beside the others.
    pub(crate) fn check_waits(&mut self, asked: &spec::Pod) {
        let Some(has) = self.allocated(&asked.uid) else { return };
        let others = self.records.values().filter(|one| one.uid != asked.uid && one.terminal.is_none());
        let others: Vec<_> = others.filter_map(|one| self.allocated(&one.uid)).collect();
        let told = self.statuses[&asked.uid].conditions.iter();
        let told = told.filter(|one| one.kind == ConditionKind::PodResizePending);
        let told = told.map(|one| one.reason.clone()).next();
        self.judge(|oracle| oracle.waits_at_rest(asked, &has, &others, told.as_deref()));
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

/// Of init and ephemeral containers nothing changes while they run.
fn is_resizable(container: &spec::Container) -> bool {
    matches!(container.kind, ContainerKind::Main | ContainerKind::Sidecar)
}
