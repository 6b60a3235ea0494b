//! Resources that a pod has, while its source asks for others.
//!
//! *Asked for* is what the newest version of it says. *Allocated* is what the node has set aside for it: that of its admission, until the
//! node judges that another version fits (`node/resizes.rs`). It is what [`Pod`] and the record's manifest say. *Actuated* is what the
//! cgroups of its containers have: the record tells where that may be something else than what is allocated ([`ContainerRecord::actuated`]).
//!
//! Source: `pkg/kubelet/allocation/allocation_manager.go`, KEP-1287.
//!
//! [`ContainerRecord::actuated`]: crate::record::ContainerRecord::actuated

mod in_force;
mod telling;

use std::{sync::Arc, time::Duration};

pub(crate) use self::in_force::taken;
pub(super) use self::in_force::{
    actuated, changes_running, in_force, is_ending_to_resize, is_leaving, memory_held, memory_now,
    remember_memory, restarts_to_resize, whole,
};
pub(super) use self::telling::pending_reason;
use self::telling::{Moment, allocated_manifest, asked, message};
use super::{
    actual::{Run, Stage},
    machine::PodMachine,
    plan::is_resizable,
    port::resize::without_usage,
    resource::Resource,
    text::about_pod,
};
use crate::{
    metrics::{ResizeMeasure, Trigger, requested},
    record::{Actuated, Resizing},
    spec::{Container, CpuMemory, Pod, Resize, Unallocated},
    status::{ConditionKind, Severity},
    time::Mono,
};

/// A version whose resources are asked for.
#[derive(Debug)]
pub(super) struct Asked {
    pod: Arc<Pod>,
    /// Whether it was judged never to be allocated.
    is_infeasible: bool,
}

/// The version of a pod that is wanted now, with the resources that it has: those of the version `before`, which may have kept them from
/// an earlier one.
#[must_use]
pub fn with_allocated(before: &Pod, wanted: Arc<Pod>) -> Arc<Pod> {
    if before.resources == wanted.resources
        && wanted.all_containers().all(|one| has_what_it_asks(before, one))
    {
        return wanted;
    }
    let resize = match &before.resize {
        Some(pending) if asked(&before.manifest) == asked(&wanted.manifest) => pending.clone(),
        Some(pending) => Resize { generation: wanted.generation, unallocated: None, ..pending.clone() },
        None => Resize {
            allocated: Arc::clone(&before.manifest),
            generation: wanted.generation,
            unallocated: None,
        },
    };
    with(before, &wanted, resize)
}

/// A pod as it is read back from its record: `wanted` is its newest version, `allocated` the one that [`Resize::allocated`] names.
#[must_use]
pub fn read_back(allocated: &Pod, wanted: &Pod, resize: Resize) -> Arc<Pod> {
    with(allocated, wanted, resize)
}

fn with(allocated: &Pod, wanted: &Pod, resize: Resize) -> Arc<Pod> {
    let keep = |all: &[Arc<Container>]| -> Vec<Arc<Container>> {
        let keep = |one: &Arc<Container>| match of_name(allocated, one) {
            Some(old) if old.resources != one.resources => {
                Arc::new(Container { resources: old.resources.clone(), ..Container::clone(one) })
            }
            Some(_) | None => Arc::clone(one),
        };
        all.iter().map(keep).collect()
    };
    Arc::new(Pod {
        resources: allocated.resources.clone(),
        qos: allocated.qos,
        init_containers: keep(&wanted.init_containers),
        containers: keep(&wanted.containers),
        resize: Some(resize),
        ..wanted.clone()
    })
}

fn of_name<'a>(pod: &'a Pod, container: &Container) -> Option<&'a Arc<Container>> {
    pod.all_containers().find(|one| one.name == container.name)
}

fn has_what_it_asks(before: &Pod, container: &Container) -> bool {
    of_name(before, container).is_none_or(|old| old.resources == container.resources)
}

impl PodMachine {
    /// Remembers what is asked for beyond what the pod has.
    pub(super) fn ask_for(&mut self, wanted: Arc<Pod>, resize: Option<&Resize>) {
        let is_judged = resize.is_some_and(|resize| resize.unallocated.is_some());
        let is_infeasible = is_judged && self.wanted.as_ref().is_some_and(|before| before.is_infeasible);
        self.wanted = resize.map(|_| Asked { pod: wanted, is_infeasible });
    }

    /// Counts what another version asks for. What waited when the agent before was killed was counted by that one.
    pub(super) fn measure_request(&mut self, spec: &Pod) {
        let was_waiting = self.wanted.is_none() && self.life.spec.resize.is_some();
        if !was_waiting || asked(&self.life.spec.manifest) != asked(&spec.manifest) {
            let asks: Vec<_> = requested(self.newest(), spec).collect();
            self.measured.extend(asks);
        }
    }

    /// The version that was told last.
    fn newest(&self) -> &Pod {
        self.wanted.as_ref().map_or(&self.life.spec, |asked| &asked.pod)
    }

    /// The version whose resources are to be allocated, if they can be. While the cgroup of a container is being changed, that comes first.
    pub(crate) fn asks_for(&self) -> Option<&Arc<Pod>> {
        let is_free = !matches!(self.life.actual.resize, Resource::Ensuring(_));
        let asked = self.wanted.as_ref().filter(|asked| !asked.is_infeasible)?;
        (self.life.stage() == Stage::Run && is_free).then_some(&asked.pod)
    }

    /// Whether something is asked for that was never judged.
    pub(crate) fn is_unjudged(&self) -> bool {
        let is_unjudged = |resize: &Resize| resize.unallocated.is_none();
        self.asks_for().is_some() && self.life.spec.resize.as_ref().is_some_and(is_unjudged)
    }

    /// It has what it asks for from now on: its containers are to get it. It was judged after `trigger`.
    pub(crate) fn allocate(&mut self, trigger: Trigger, now: Mono) {
        let Some(Asked { pod, .. }) = self.wanted.take() else { return };
        let has_waited = |resize: &Resize| resize.unallocated.as_ref().is_some_and(|why| !why.is_infeasible);
        if self.life.spec.resize.as_ref().is_some_and(has_waited) {
            self.measured.push(ResizeMeasure::Accepted(trigger));
        }
        let before = Arc::clone(&self.life.spec);
        let memory = Some(memory_now(&self.life));
        for container in before.fixed_containers().filter(|one| is_resizable(one)) {
            if self.has_cgroup(container)
                && let Some(record) = self.life.record.containers.get_mut(&container.name)
            {
                let has = CpuMemory::of(&before, container);
                record.actuated.get_or_insert(Actuated { has, perhaps: None });
            }
        }
        let generation = pod.generation;
        let text = message(Moment::Started, &pod.manifest, generation, None);
        self.replace(pod, now);
        let earlier = self.life.record.resizing.take().and_then(|resizing| resizing.whole);
        let has = CpuMemory::of_pod(&before);
        let has = earlier.map_or(has, |earlier| earlier.max(has));
        let whole = Some(has).filter(|has| *has != CpuMemory::of_pod(&self.life.spec));
        self.life.record.resizing = Some(Resizing { generation, error: None, whole, memory });
        self.life.record.conditions.remove(&ConditionKind::PodResizeInProgress);
        self.life.actual.resize = Resource::Absent;
        self.life.actual.is_memory_enough = false;
        self.try_resize(now);
        self.notes.push(about_pod(Severity::Normal, "ResizeStarted", text));
    }

    /// What it asks for is not allocated. `reason` is that of the refusal. It is told of each version that is judged so
    /// (`SetPodResizePendingCondition` of `pkg/kubelet/status/status_manager.go`).
    pub(crate) fn leave_unallocated(&mut self, reason: &str, now: Unallocated) {
        if let Some(asked) = &mut self.wanted {
            asked.is_infeasible = now.is_infeasible;
        }
        let Some(resize) = &self.life.spec.resize else { return };
        let generation = self.wanted.as_ref().map_or(resize.generation, |asked| asked.pod.generation);
        let is_asked_anew = generation != resize.generation;
        let before = resize.unallocated.as_ref();
        if before == Some(&now) && !is_asked_anew {
            return;
        }
        let differs = |before: &Unallocated| before.is_infeasible != now.is_infeasible;
        if before.is_some_and(differs) {
            // It waits since then (`updatedPodResizeCondition`).
            self.life.record.conditions.remove(&ConditionKind::PodResizePending);
        }
        if is_asked_anew || before.is_none_or(differs) {
            let event = if now.is_infeasible { "ResizeInfeasible" } else { "ResizeDeferred" };
            let moment = Moment::Refused(reason);
            let text = message(moment, &self.life.spec.manifest, generation, Some(now.message.as_str()));
            self.notes.push(about_pod(Severity::Warning, event, text));
        }
        let resize = Some(Resize { generation, unallocated: Some(now), ..resize.clone() });
        self.life.record.resize.clone_from(&resize);
        self.life.spec = Arc::new(Pod { resize, ..Pod::clone(&self.life.spec) });
    }

    /// A try to put it into force has failed.
    pub(super) fn resize_failed(&mut self, why: &str, now: Mono) {
        self.tried(false, now);
        let manifest = Arc::clone(allocated_manifest(&self.life.spec));
        let Some(resizing) = &mut self.life.record.resizing else { return };
        if resizing.error.as_deref().is_some_and(|before| without_usage(before) == without_usage(why)) {
            return;
        }
        if resizing.error.replace(why.to_owned()).is_none() {
            self.life.record.conditions.remove(&ConditionKind::PodResizeInProgress);
        }
        let text = message(Moment::Failed, &manifest, resizing.generation, Some(why));
        self.notes.push(about_pod(Severity::Warning, "ResizeError", text));
    }

    /// What is allocated is in force everywhere.
    pub(super) fn resized(&mut self, now: Mono) {
        let Some(Resizing { generation, .. }) = self.life.record.resizing.take() else { return };
        self.life.actual.is_memory_enough = false;
        self.tried(true, now);
        for record in self.life.record.containers.values_mut() {
            record.actuated = None;
        }
        let text = message(Moment::Completed, allocated_manifest(&self.life.spec), generation, None);
        self.notes.push(about_pod(Severity::Normal, "ResizeCompleted", text));
    }

    /// A try begins, unless one is under way.
    pub(super) fn try_resize(&mut self, now: Mono) {
        self.trying_since.get_or_insert(now);
    }

    fn tried(&mut self, is_done: bool, now: Mono) {
        let took = self.trying_since.take().map_or(Duration::ZERO, |since| now.since(since));
        self.measured.push(ResizeMeasure::Tried { is_done, took });
    }

    /// An agent before was at it. What it asked for last may have been done; and of a resize whose manifest it could not write any more,
    /// nothing was begun.
    pub(super) fn take_up_resize(&mut self) {
        if self.life.stage() == Stage::Stop {
            return;
        }
        let spec = Arc::clone(&self.life.spec);
        for container in spec.fixed_containers() {
            let allocated = CpuMemory::of(&spec, container);
            if let Some(record) = self.life.record.containers.get_mut(&container.name) {
                record.actuated = record.actuated.map(|actuated| match actuated.has == allocated {
                    true => actuated,
                    false => actuated.perhaps_given(allocated),
                });
            }
        }
        let Some(resizing) = &mut self.life.record.resizing else { return };
        if spec.resize.is_none() && resizing.generation > spec.generation {
            resizing.generation = spec.generation;
            if in_force(&self.life).is_none() && memory_held(&self.life).is_none() {
                self.life.record.resizing = None;
            }
        }
    }

    /// Whether a run of a container has a cgroup that was made with what is allocated now, or is being.
    fn has_cgroup(&self, container: &Container) -> bool {
        in_force::may_have_cgroup(&self.life, container)
    }

    /// Whether it is stopped to begin anew with what is allocated to it.
    pub(super) fn is_to_restart_for_a_resize(&self, name: &crate::id::ContainerName) -> bool {
        let Some(container) = self.container(name) else { return false };
        let is_same = |run: &Run| matches!(run, Run::Running(running) if running.hash == container.hash);
        is_same(self.life.run(name)) && restarts_to_resize(&self.life, &container)
    }
}

#[cfg(test)]
mod tests;
