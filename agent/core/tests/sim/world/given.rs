//! What cgroups have of CPU and memory.

use std::sync::Arc;

use berth_core::{
    cgroup::CgroupValues,
    event::Outcome,
    failure::{Failure, FailureKind},
    id::PodUid,
    pod::port::resize::{MemoryBound, MemoryCheck, ResizeRequest},
    spec::{self, Pod, Resources},
    status::ConditionKind,
};
use oci_spec::runtime::{LinuxCpu, LinuxMemory, LinuxResources, Spec};

use super::{World, failure};

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
    /// What is right for a container: "when a container has no limit of its own, that of its pod bounds it" (Assign Pod-level CPU and memory
    /// resources).
    pub(crate) fn of(pod: &Pod, container: &spec::Container) -> Self {
        let own = &container.resources;
        let whole = pod.resources.clone().unwrap_or_default().limits;
        let milli = own.limits.cpu_milli.or(whole.cpu_milli);
        Self {
            quota: milli.map(|milli| milli * 100),
            memory: own.limits.memory_bytes.or(whole.memory_bytes),
            shares: Some(shares(own.requests.cpu_milli.or(milli).unwrap_or(0))),
        }
    }

    /// What a pod names for itself.
    pub(crate) fn of_pod(pod: &Pod) -> Self {
        let Resources { requests, limits } = pod.resources.clone().unwrap_or_default();
        Self {
            quota: limits.cpu_milli.map(|milli| milli * 100),
            memory: limits.memory_bytes,
            shares: requests.cpu_milli.map(shares),
        }
    }

    /// What a container is made with.
    pub(super) fn made(spec: &Spec) -> Self {
        let resources = spec.linux().as_ref().and_then(|linux| linux.resources().as_ref());
        resources.map(|resources| Self::default().with(resources)).unwrap_or_default()
    }

    /// The same with what is named. What is not stays as it is.
    fn with(self, resources: &LinuxResources) -> Self {
        let bound = |value: i64| u64::try_from(value).ok();
        let (cpu, memory) = (resources.cpu().as_ref(), resources.memory().as_ref());
        Self {
            quota: cpu.and_then(LinuxCpu::quota).map_or(self.quota, bound),
            memory: memory.and_then(LinuxMemory::limit).map_or(self.memory, bound),
            shares: cpu.and_then(LinuxCpu::shares).or(self.shares),
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

/// What the cgroup of a pod is to be enough for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    /// All of its containers together.
    All,
    /// Each of them: they share what the pod names for itself.
    Each,
}

impl World {
    /// A container that runs is given other resources.
    pub(super) fn resize(&mut self, pod: &PodUid, request: &ResizeRequest) -> Result<Outcome, Failure> {
        self.has_room(pod, &request.lowered)?;
        let allocated = self.allocated(pod).and_then(|spec| {
            let container = spec.fixed_containers().find(|one| one.name == request.name)?;
            Some(Given::of(&spec, container))
        });
        let Some(container) = self.containers.get_mut(&request.id) else { return Ok(Outcome::Done) };
        let given = container.given.with(&request.resources);
        container.given = given;
        let is_of_cpu = request.resources.cpu().is_some();
        let allocated = allocated.map(|allocated| match is_of_cpu {
            true => Given { memory: given.memory, ..allocated },
            false => Given { memory: allocated.memory, ..given },
        });
        self.judge(|oracle| oracle.given(pod, given, allocated));
        self.check_level(pod);
        Ok(Outcome::Done)
    }

    /// The cgroup of a pod has this from now on. A memory limit at or below what is used is refused, as by cgroups of version 1.
    pub(super) fn set_level(&mut self, pod: &PodUid, level: Given) -> Result<(), Failure> {
        // No limit is more than any.
        let order = |level: Given| level.memory.unwrap_or(u64::MAX);
        let before = self.levels.get(pod).copied().filter(|_| self.cgroups.contains_key(pod));
        if let Some(before) = before.filter(|before| order(level) < order(*before)) {
            let enough = self.found_enough.get(pod).copied();
            self.judge(|oracle| oracle.lowered(pod, order(level), enough));
            if self.used.get(pod).is_some_and(|used| *used >= order(level)) {
                self.levels.insert(pod.clone(), Given { memory: before.memory, ..level });
                return Err(failure(FailureKind::Transient, "device or resource busy"));
            }
        }
        if before.is_some_and(|before| order(level) > order(before)) {
            self.found_enough.remove(pod);
        }
        self.levels.insert(pod.clone(), level);
        Ok(())
    }

    /// Whether the limit of a pod can become lower.
    pub(super) fn check_memory(&mut self, pod: &PodUid, request: &MemoryCheck) -> Result<Outcome, Failure> {
        self.has_room(pod, request)?;
        for bound in request.bounds.iter().filter(|bound| bound.container.is_none()) {
            let enough = self.found_enough.entry(pod.clone()).or_insert(u64::MAX);
            *enough = bound.limit.min(*enough);
        }
        Ok(Outcome::Done)
    }

    fn has_room(&self, pod: &PodUid, request: &MemoryCheck) -> Result<(), Failure> {
        let used = self.used.get(pod).copied().unwrap_or_default();
        let limit = |bound: &MemoryBound| match &bound.container {
            None => self.levels.get(pod)?.memory,
            Some((_, id)) => self.containers.get(id)?.given.memory,
        };
        let is_broken =
            |bound: &MemoryBound| bound.limit < limit(bound).unwrap_or(u64::MAX) && used >= bound.limit;
        match request.bounds.iter().any(is_broken) {
            true => Err(failure(FailureKind::Transient, "cannot decrease memory limits")),
            false => Ok(()),
        }
    }

    /// What is allocated to a pod by its record on disk.
    pub(crate) fn allocated(&self, pod: &PodUid) -> Option<Arc<Pod>> {
        let record = self.records.get(pod)?;
        let manifest = record.resize.as_ref().map_or(&record.manifest, |resize| &resize.allocated);
        self.specs.get(manifest).cloned()
    }

    /// What runs has what the record on disk allocates to it, now that nothing changes any more.
    pub(crate) fn check_given(&mut self, pod: &PodUid) {
        let Some(spec) = self.allocated(pod) else { return };
        let is_told = self.records[pod].resizing.is_some();
        for container in spec.fixed_containers() {
            let runs = self.containers.values().filter(|one| one.pod == *pod && one.name == container.name);
            let given: Vec<Given> = runs.filter(|one| one.is_running()).map(|one| one.given).collect();
            for given in given {
                self.judge(|oracle| oracle.given_at_rest(pod, given, Given::of(&spec, container), is_told));
            }
        }
        let level = self.levels.get(pod).copied().unwrap_or_default();
        self.judge(|oracle| oracle.level_at_rest(pod, level, Given::of_pod(&spec)));
    }

    /// What is asked for of a pod and is not allocated waits, as the pod tells, and does not fit beside the others.
    pub(crate) fn check_waits(&mut self, asked: &Pod) {
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
        let running: Vec<Given> =
            running.filter(|one| !one.name.as_str().starts_with("debug-")).map(|one| one.given).collect();
        let level = self.levels.get(pod).copied().filter(|_| self.cgroups.contains_key(pod));
        let names_its_own = self.allocated(pod).is_some_and(|spec| spec.resources.is_some());
        let bound = match names_its_own {
            true => Bound::Each,
            false => Bound::All,
        };
        self.judge(|oracle| oracle.level(pod, level.unwrap_or_default(), &running, bound));
    }
}

/// 1024 for each core; the kernel knows none below 2.
fn shares(milli: u64) -> u64 {
    (milli * 1024 / 1000).max(2)
}
