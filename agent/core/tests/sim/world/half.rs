//! Effects that an executor did a part of before it failed or was given up.

use berth_core::{
    effect::{Act, Effect},
    id::PodUid,
    observation::ObservedTask,
    pod::port::start::StartRequest,
    time::Now,
};

use super::{Container, Sandbox, World};

impl World {
    /// Does a part of what an effect asks for; false for one that has no parts, of which nothing is done.
    pub(crate) fn perform_half(&mut self, effect: &Effect, now: Now) -> bool {
        let Effect::Pod { pod, act, .. } = effect else { return false };
        if (self.runtime_is_down && super::needs_runtime(act)) || self.is_unanswered(act) {
            return false;
        }
        match act {
            // The record of containerd is made, the task is not, or is not started, or the runtime is still at it.
            Act::StartContainer(request) => {
                if !self.sandboxes.get(&request.sandbox).is_some_and(|sandbox| sandbox.is_alive) {
                    return false;
                }
                let task = match now.mono.0.subsec_millis() % 4 {
                    0 => ObservedTask::Created,
                    1 => ObservedTask::Absent,
                    _ => return self.begin_start(pod, request),
                };
                let new = || Container::of(pod, request, task);
                self.containers.entry(request.id.clone()).or_insert_with(new);
            }
            // The record is made, the shim never came up.
            Act::EnsureSandbox(request) => {
                let is_other = |one: &Sandbox| one.pod == *pod && one.attempt != request.attempt;
                if self.sandboxes.values().any(is_other) {
                    return false;
                }
                let dead = Sandbox {
                    pod: pod.clone(),
                    attempt: request.attempt,
                    is_alive: false,
                    is_recorded: true,
                };
                self.sandboxes.entry(request.id.clone()).or_insert(dead);
            }
            // The first plugin has wired it, a later one failed; the first volume's directory is there, its mount is not; the
            // snapshot is there, the accounts were not read.
            Act::EnsureNetwork(_) | Act::EnsureVolume(_) | Act::EnsureRootfs(_) => {
                let _failed_later = self.ensure(pod, act);
            }
            // The process is killed and the record gone, the snapshot is left.
            Act::RemoveContainer(request) => self.remove_container_but_its_snapshot(pod, &request.id, now),
            // The shim is stopped, its record is left.
            Act::RemoveSandbox(id) => {
                if !self.sandboxes.contains_key(id)
                    || self.containers.values().any(|one| one.sandbox == *id && one.is_running())
                {
                    return false;
                }
                self.lose(id, now);
            }
            Act::RemoveVolumes { .. } => {
                if self.containers.values().any(|one| one.pod == *pod && one.is_running()) {
                    return false;
                }
                let first = self.volumes.iter().find(|(owner, _)| owner == pod).cloned();
                first.map(|volume| self.volumes.remove(&volume));
            }
            // One volume could not be unmounted: what comes after is left.
            Act::Sweep => {
                self.check_sweep(pod);
                self.volumes.retain(|(owner, _)| owner != pod);
            }
            _ => return false,
        }
        true
    }

    /// The runtime is asked to start a container, and takes its time; false for one that it was asked for before.
    pub(crate) fn begin_start(&mut self, pod: &PodUid, request: &StartRequest) -> bool {
        if !self.snapshots.contains_key(&request.id) || self.containers.contains_key(&request.id) {
            return false;
        }
        self.check_start(pod, request);
        let container = Container::of(pod, request, ObservedTask::Starting);
        self.containers.insert(request.id.clone(), container);
        self.starting.push(request.clone());
        true
    }

    /// Whether the runtime is still at a start.
    pub(crate) fn is_being_started(&self, effect: &Effect) -> bool {
        let Effect::Pod { act: Act::StartContainer(request), .. } = effect else { return false };
        self.containers.get(&request.id).is_some_and(|one| one.task == ObservedTask::Starting)
    }

    /// The runtime comes to the end of a start that it was at; false when it is at none.
    pub(crate) fn end_start(&mut self, now: Now) -> bool {
        let is_free = |request: &StartRequest| !self.silent.contains(&request.sandbox);
        let Some(at) = self.starting.iter().rposition(is_free) else { return false };
        let request = self.starting.remove(at);
        let is_starting = |one: &Container| one.task == ObservedTask::Starting;
        if self.containers.get(&request.id).is_some_and(is_starting) {
            self.process_began(&request.pod.uid, &request, now);
        }
        true
    }

    /// Starts that the runtime was at come to nothing. Only whoever asked for them is told.
    pub(crate) fn fail_starts(&mut self) {
        for request in std::mem::take(&mut self.starting) {
            if let Some(container) = self.containers.get_mut(&request.id) {
                container.task = ObservedTask::Absent;
            }
        }
    }

    fn remove_container_but_its_snapshot(
        &mut self,
        pod: &PodUid,
        id: &berth_core::id::ContainerId,
        now: Now,
    ) {
        let snapshot = self.snapshots.remove(id);
        self.remove_container(pod, id, now);
        if let Some(owner) = snapshot {
            self.snapshots.insert(id.clone(), owner);
        }
    }
}
