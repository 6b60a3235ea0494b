//! Shims: they die, fall silent, and tell what they know.

use std::collections::BTreeSet;

use berth_core::{
    effect::{Act, Effect},
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
        self.silent.remove(id);
        self.unheard.remove(id);
        self.starting.retain(|request| request.sandbox != *id);
        let pod = sandbox.pod.clone();
        let (mut lost, mut kept) = (Vec::new(), BTreeSet::new());
        for (member, container) in self.containers.iter_mut().filter(|(_, one)| one.sandbox == *id) {
            if !matches!(container.task, ObservedTask::Exited(_)) || self.unseen.remove(member) {
                container.task = ObservedTask::Absent;
                lost.push(member.clone());
            } else {
                kept.insert(member.clone());
            }
        }
        self.oracle.sandbox_lost(&pod, id, &kept, now);
        // What the agent has read already comes first.
        self.reports.retain(|(sandbox, report)| {
            sandbox != id
                || (matches!(report, Report::Told(_)) && !lost.iter().any(|member| report.is_exit_of(member)))
        });
        let all: Vec<_> = self.recorded_ends(id).chain([SandboxReport::Lost { at: now.wall }]).collect();
        self.reports.extend(all.into_iter().map(|report| (id.clone(), Report::Told(report))));
    }

    /// What a shim that has gone wrote down of ends.
    pub(crate) fn recorded_ends(&self, id: &SandboxId) -> impl Iterator<Item = SandboxReport> {
        let inside = self.containers.iter().filter(move |(_, one)| one.sandbox == *id);
        inside.filter_map(|(member, one)| match one.task {
            ObservedTask::Exited(exit) => Some(SandboxReport::Exited { id: member.clone(), exit }),
            _ => None,
        })
    }

    /// The sandbox that an effect is for.
    pub(crate) fn sandbox_of(&self, effect: &Effect) -> Option<SandboxId> {
        let Effect::Pod { act, .. } = effect else { return None };
        self.shim_of(act).cloned()
    }

    /// The sandbox whose shim must answer for an effect.
    fn shim_of<'a>(&'a self, act: &'a Act) -> Option<&'a SandboxId> {
        match act {
            Act::RemoveSandbox(id) => Some(id),
            Act::EnsureSandbox(request) => Some(&request.id),
            Act::StartContainer(request) => Some(&request.sandbox),
            Act::Signal(request) => Some(&request.sandbox),
            Act::LookAtTask(request) => Some(&request.sandbox),
            Act::ResizeContainer(request) => Some(&self.containers.get(&request.id)?.sandbox),
            Act::RemoveContainer(request) => Some(&self.containers.get(&request.id)?.sandbox),
            _ => None,
        }
    }

    /// Whether an effect needs an answer of a shim which gives none.
    pub(super) fn is_unanswered(&self, act: &Act) -> bool {
        self.shim_of(act).is_some_and(|id| self.silent.contains(id))
    }

    /// The outcome of an effect that needs an answer of a shim which gives none.
    pub(super) fn silent_for(&mut self, act: &Act) -> Option<Result<Outcome, Failure>> {
        if !self.is_unanswered(act) {
            return None;
        }
        let kind = match act {
            Act::RemoveSandbox(id) => {
                *self.unanswered.entry(id.clone()).or_default() += 1;
                FailureKind::Silent
            }
            Act::RemoveContainer(_) => FailureKind::Silent,
            _ => FailureKind::Unknown,
        };
        Some(Err(failure(kind, "the shim does not answer")))
    }

    /// A shim answers nothing from now on.
    pub(crate) fn fall_silent(&mut self, id: &SandboxId) {
        self.silent.insert(id.clone());
        self.was_silent.insert(id.clone());
    }

    /// A shim answers again, and sees what has ended meanwhile. An agent that it did not answer at all asks it for everything.
    pub(crate) fn speak(&mut self, id: &SandboxId) {
        self.silent.remove(id);
        let containers = &self.containers;
        self.unseen.retain(|member| containers.get(member).is_some_and(|one| one.sandbox != *id));
        if self.unheard.remove(id) {
            self.reports.push((id.clone(), Report::State));
        }
    }

    /// Whether a shim has something to tell and can.
    pub(crate) fn has_news(&self) -> bool {
        self.next_report().is_some()
    }

    fn next_report(&self) -> Option<usize> {
        self.reports.iter().position(|(sandbox, report)| {
            matches!(report, Report::Told(SandboxReport::Lost { .. })) || !self.silent.contains(sandbox)
        })
    }

    /// The oldest report of a shim that can tell it.
    pub(crate) fn take_report(&mut self) -> Option<(SandboxId, Report)> {
        let at = self.next_report()?;
        Some(self.reports.remove(at))
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
        observation.silent.insert(id.clone());
        self.oracle.silenced(id, now);
        self.reports.push((id.clone(), Report::State));
    }
}
