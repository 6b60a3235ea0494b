//! What is in force of a pod's resources, while that is not what is allocated.

use std::sync::Arc;

use crate::{
    cgroup,
    pod::{
        actual::{Life, Run},
        plan::is_resizable,
    },
    record::Actuated,
    spec::{Container, CpuMemory, Pod, Resizable},
};

/// What a container that may run has, where that is not for sure what is allocated to it.
pub(in crate::pod) fn actuated(life: &Life, container: &Container) -> Option<Actuated> {
    if !is_resizable(container) || !may_have_cgroup(life, container) {
        return None;
    }
    let actuated = life.record.containers.get(&container.name)?.actuated?;
    let wanted = CpuMemory::of(&life.spec, container);
    let is_in_force = [Resizable::Memory, Resizable::Cpu].into_iter().all(|one| actuated.is(one, wanted));
    (!is_in_force).then_some(actuated)
}

/// Whether a container that is not removed may have a cgroup.
pub(super) fn may_have_cgroup(life: &Life, container: &Container) -> bool {
    match life.run(&container.name) {
        // One that was stopped for it is shown to run until its end is known whole.
        Run::Starting(_) | Run::Running(_) | Run::Ended(_) => true,
        // What an earlier try left is what the next one begins with.
        Run::Preparing(_) => life.record.run_here(&container.name).is_some(),
        Run::Idle | Run::BackingOff => false,
    }
}

/// What the pod as a whole may have, where that is not what is allocated to it.
pub(in crate::pod) fn whole(life: &Life) -> Option<CpuMemory> {
    life.record.resizing.as_ref()?.whole.filter(|has| *has != CpuMemory::of_pod(&life.spec))
}

/// Bytes of memory that the pod's cgroup is to keep for now, where that is more than its limit is to be; 0 is no limit.
pub(in crate::pod) fn memory_held(life: &Life) -> Option<u64> {
    let has = life.record.resizing.as_ref()?.memory?;
    let limit = cgroup::memory_max(&life.spec)?;
    (!life.actual.is_memory_enough && (has == 0 || limit < has)).then_some(has)
}

/// Bytes of memory that the pod's cgroup may have now; 0 is no limit.
pub(in crate::pod) fn memory_now(life: &Life) -> u64 {
    let limit = |pod: &Pod| cgroup::memory_max(pod).unwrap_or(0);
    let had = life.record.resizing.as_ref().and_then(|resizing| resizing.memory);
    let all = [Some(limit(&life.spec)), in_force(life).as_ref().map(limit), had];
    all.into_iter().flatten().reduce(larger).unwrap_or(0)
}

/// Remembers how much memory the pod's cgroup may have for what its containers may have: more than what was allocated, where it is not known what
/// they were given.
pub(in crate::pod) fn remember_memory(life: &mut Life) {
    let Some(limit) = in_force(life).map(|pod| cgroup::memory_max(&pod).unwrap_or(0)) else { return };
    if let Some(has) = life.record.resizing.as_mut().and_then(|resizing| resizing.memory.as_mut()) {
        *has = larger(*has, limit);
    }
}

/// The larger of two limits: none, which is 0, is more than any.
fn larger(one: u64, other: u64) -> u64 {
    one.wrapping_sub(1).max(other.wrapping_sub(1)).wrapping_add(1)
}

/// The pod with what it and its containers have at most; `None` where that is what is allocated.
pub(in crate::pod) fn in_force(life: &Life) -> Option<Pod> {
    with(life, |actuated, _| actuated)
}

/// The pod with what it takes of the node: the larger of what is allocated to it and what it has. Source: `PodRequests` of
/// `k8s.io/component-helpers/resource` with `UseStatusResources`, by which admission counts.
#[must_use]
pub(crate) fn taken(life: &Life) -> Arc<Pod> {
    with(life, CpuMemory::max).map_or_else(|| Arc::clone(&life.spec), Arc::new)
}

fn with(life: &Life, join: impl Fn(CpuMemory, CpuMemory) -> CpuMemory) -> Option<Pod> {
    let whole = whole(life);
    let is_other =
        whole.is_some() || life.spec.fixed_containers().any(|container| actuated(life, container).is_some());
    is_other.then(|| {
        let has = |all: &[Arc<Container>]| -> Vec<Arc<Container>> {
            let has = |one: &Arc<Container>| match actuated(life, one) {
                Some(actuated) => {
                    let resources =
                        join(actuated.most(), CpuMemory::of(&life.spec, one)).in_place_of(&one.resources);
                    Arc::new(Container { resources, ..Container::clone(one) })
                }
                None => Arc::clone(one),
            };
            all.iter().map(has).collect()
        };
        let resources = match whole {
            Some(whole) => {
                let named = life.spec.resources.clone().unwrap_or_default();
                Some(join(whole, CpuMemory::of_pod(&life.spec)).in_place_of(&named))
            }
            None => life.spec.resources.clone(),
        };
        Pod {
            resources,
            init_containers: has(&life.spec.init_containers),
            containers: has(&life.spec.containers),
            ..Pod::clone(&life.spec)
        }
    })
}

/// What one has that is given other resources while it runs and goes on.
pub(in crate::pod) fn changes_running(life: &Life, container: &Container) -> Option<Actuated> {
    let record = life.record.containers.get(&container.name)?;
    let goes_on = matches!(life.run(&container.name), Run::Running(_)) && record.stopping.is_none();
    actuated(life, container).filter(|_| goes_on && !restarts_to_resize(life, container))
}

/// Whether one may still run that is to begin anew.
pub(in crate::pod) fn is_ending_to_resize(life: &Life, container: &Container) -> bool {
    may_run(life, container) && restarts_to_resize(life, container)
}

/// Whether one that ends, or is not known to run, may have what is not allocated to it: others get no more before it has gone, since what the
/// pod's cgroup has is enough for what all had or for what all are to have.
pub(in crate::pod) fn is_leaving(life: &Life, container: &Container) -> bool {
    may_run(life, container)
        && actuated(life, container).is_some()
        && changes_running(life, container).is_none()
}

fn may_run(life: &Life, container: &Container) -> bool {
    match life.run(&container.name) {
        Run::Starting(_) | Run::Running(_) | Run::Ended(_) => true,
        Run::Idle | Run::BackingOff | Run::Preparing(_) => false,
    }
}

/// Whether a container is to begin anew to have what is allocated to it: its policy for a resource that changes says so.
pub(in crate::pod) fn restarts_to_resize(life: &Life, container: &Container) -> bool {
    let Some(has) = actuated(life, container) else { return false };
    let wanted = CpuMemory::of(&life.spec, container);
    let policy = container.resize_policy;
    [(Resizable::Cpu, policy.cpu_restarts), (Resizable::Memory, policy.memory_restarts)]
        .into_iter()
        .any(|(resource, restarts)| restarts && !has.is(resource, wanted))
}
