//! Shims: they die, fall silent, and tell what they know.

use berth_core::{
    effect::Act,
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{PodUid, SandboxId},
    observation::{Observation, ObservedContainer, ObservedTask, SandboxReport},
    pod::silence::SILENT_QUESTIONS_MAX,
    time::Now,
};

use super::{Report, World, failure};

impl World {
    /// A shim dies, and with it everything in its pod. Ends that it has seen are on disk, and told from there.
    pub(crate) fn lose(&mut self, id: &SandboxId, now: Now) {
        let Some(sandbox) = self.sandboxes.get_mut(id) else { return };
        if !sandbox.is_alive {
            return;
        }
        sandbox.is_alive = false;
        self.starting.retain(|request| request.sandbox != *id);
        self.oracle.sandbox_lost(&sandbox.pod, id, now);
        for container in self.containers.values_mut().filter(|container| container.sandbox == *id) {
            if !matches!(container.task, ObservedTask::Exited(_)) {
                container.task = ObservedTask::Absent;
            }
        }
        // What the agent has read already comes first.
        self.reports.retain(|(sandbox, report)| sandbox != id || matches!(report, Report::Told(_)));
        let inside = self.containers.iter().filter(|(_, one)| one.sandbox == *id);
        let ends = inside.filter_map(|(member, one)| match one.task {
            ObservedTask::Exited(exit) => Some(SandboxReport::Exited { id: member.clone(), exit }),
            _ => None,
        });
        let all: Vec<_> = ends.chain([SandboxReport::Lost { at: now.wall }]).collect();
        self.reports.extend(all.into_iter().map(|report| (id.clone(), Report::Told(report))));
    }

    /// The outcome of an effect that needs an answer of a shim which gives none.
    pub(super) fn silent_for(&mut self, act: &Act) -> Option<Result<Outcome, Failure>> {
        let sandbox = match act {
            Act::RemoveSandbox(id) => {
                if self.silent.contains(id) {
                    *self.unanswered.entry(id.clone()).or_default() += 1;
                }
                id
            }
            Act::Signal(request) => &request.sandbox,
            Act::LookAtTask(request) => &request.sandbox,
            Act::RemoveContainer(request) => &self.containers.get(&request.id)?.sandbox,
            _ => return None,
        };
        let kind = match act {
            Act::Signal(_) | Act::LookAtTask(_) => FailureKind::Unknown,
            _ => FailureKind::Silent,
        };
        self.silent.contains(sandbox).then(|| Err(failure(kind, "the shim does not answer")))
    }

    /// A shim answers nothing from now on.
    pub(crate) fn fall_silent(&mut self, id: &SandboxId) {
        self.silent.insert(id.clone());
        self.was_silent.insert(id.clone());
    }

    /// A shim may be killed only after it was given every chance, and with a sandbox that is to go.
    pub(super) fn kill_shim(&mut self, pod: &PodUid, id: &SandboxId, now: Now) {
        if self.unanswered.get(id).is_none_or(|asked| *asked < SILENT_QUESTIONS_MAX) {
            self.violate(format!("{pod}: a shim is killed that may only be slow"));
        }
        let is_wanted = self.records.get(pod).is_some_and(|record| {
            record.termination.is_none() && record.terminal.is_none() && record.sandbox_id == *id
        });
        if is_wanted && !self.oracle.is_unwanted(pod) {
            self.violate(format!("{pod}: the shim of a living pod is killed"));
        }
        self.silent.remove(id);
        self.lose(id, now);
    }

    /// What a shim tells when the connection to it was made anew.
    pub(crate) fn resync(&self, id: &SandboxId, now: Now) -> SandboxReport {
        let tasks = self.containers.iter().filter(|(_, one)| one.sandbox == *id);
        // One that was recorded and not begun, the shim does not know.
        let tasks = tasks.filter(|(_, one)| one.task != ObservedTask::Absent);
        let tasks = tasks.map(|(id, one)| (id.clone(), one.task.clone())).collect();
        SandboxReport::Resync { asked_at: now.mono, tasks }
    }

    /// Takes a shim's answers out of an observation; it answers later.
    pub(crate) fn silence(&mut self, id: &SandboxId, observation: &mut Observation, now: Now) {
        for sandbox in observation.sandboxes.iter_mut().filter(|sandbox| sandbox.id == *id) {
            sandbox.ready = false;
            sandbox.pid = 0;
        }
        let inside = |seen: &&mut ObservedContainer| {
            self.containers.get(&seen.id).is_some_and(|container| container.sandbox == *id)
        };
        for container in observation.containers.iter_mut().filter(inside) {
            container.task = ObservedTask::Unknown;
        }
        self.oracle.silenced(id, now);
        self.reports.push((id.clone(), Report::State));
    }
}
