//! What the runtime reports about a pod by itself.

use std::collections::BTreeMap;

use super::{
    actual::{End, ImageUse, Leftover, Preparing, Removal, Run, Stage},
    machine::PodMachine,
    plan::{Over, over},
    resource::Resource,
    words::about_pod,
};
use crate::{
    event::{
        Exit, FailureKind, Observation, ObservedContainer, ObservedSandbox, ObservedTask, SandboxReport,
    },
    id::{ContainerId, ContainerName, SandboxId},
    status::Severity,
    time::Now,
};

impl PodMachine {
    /// Takes a report of one of the pod's sandboxes. Those of an earlier one tell nothing that matters.
    pub fn report(&mut self, sandbox: &SandboxId, report: SandboxReport, now: Now) {
        if *sandbox != self.life.sandbox_id() {
            return;
        }
        match report {
            SandboxReport::Exited { id, exit } => self.exited(&id, exit, now),
            SandboxReport::Resync(tasks) => {
                let tasks: BTreeMap<ContainerId, ObservedTask> = tasks.into_iter().collect();
                self.compare(&tasks, now);
            }
            SandboxReport::Lost { at } => {
                if self.life.actual.sandbox.ready().is_some() {
                    self.lose_sandbox(at, now);
                }
            }
        }
    }

    fn exited(&mut self, id: &ContainerId, exit: Exit, now: Now) {
        let names: Vec<ContainerName> = self.life.actual.containers.keys().cloned().collect();
        let Some(name) = names.into_iter().find(|name| self.life.container_id(name) == *id) else { return };
        match self.life.actual.containers.get_mut(&name) {
            Some(Run::Starting(starting)) => starting.end = Some(End::Seen(exit)),
            Some(Run::Running(_)) => self.ended(&name, End::Seen(exit), now),
            Some(Run::Idle | Run::BackingOff | Run::Preparing(_) | Run::Ended(_)) | None => {}
        }
    }

    /// Compares what is thought to run with what does. A start that is under way brings its own outcome, except for an end
    /// that came after it.
    fn compare(&mut self, tasks: &BTreeMap<ContainerId, ObservedTask>, now: Now) {
        let names: Vec<ContainerName> = self.life.actual.containers.keys().cloned().collect();
        for name in names {
            let task = tasks.get(&self.life.container_id(&name)).unwrap_or(&ObservedTask::Absent);
            match self.life.run(&name) {
                Run::Running(running) => {
                    let hash = running.hash;
                    self.compare_running(&name, hash, task, now);
                }
                Run::Starting(_) => {
                    if let ObservedTask::Exited(exit) = task {
                        self.exited(&self.life.container_id(&name), *exit, now);
                    }
                }
                Run::Idle | Run::BackingOff | Run::Preparing(_) | Run::Ended(_) => {}
            }
        }
    }

    fn compare_running(&mut self, name: &ContainerName, hash: u64, task: &ObservedTask, now: Now) {
        match task {
            ObservedTask::Running { started_at, .. } => self.correct_start(name, *started_at),
            ObservedTask::Unknown => {}
            ObservedTask::Exited(exit) => self.ended(name, End::Seen(*exit), now),
            ObservedTask::Absent => self.ended(name, End::Lost(now.wall), now),
            ObservedTask::Created => self.set_run(name, Run::Preparing(again(hash))),
        }
    }

    /// A run that was taken on trust began at another time.
    fn correct_start(&mut self, name: &ContainerName, at: jiff::Timestamp) {
        if let Some(Run::Running(running)) = self.life.actual.containers.get_mut(name) {
            running.started_at = at;
        }
    }

    /// Compares with the whole runtime, after containerd was away.
    pub fn observe(&mut self, observation: &Observation, now: Now) {
        self.runtime_is_up(now);
        let id = self.life.sandbox_id();
        if self.life.actual.sandbox.ready().is_none() {
            return;
        }
        match observation.sandboxes.iter().find(|sandbox| sandbox.id == id) {
            Some(ObservedSandbox { ready: true, .. }) => {
                let task = |seen: &ObservedContainer| (seen.id.clone(), seen.task.clone());
                self.compare(&observation.containers.iter().map(task).collect(), now);
            }
            Some(ObservedSandbox { ready: false, .. }) if self.is_silent(observation) => {
                self.life.actual.sandbox = Resource::Unknown;
            }
            Some(ObservedSandbox { ready: false, .. }) | None => self.lose_sandbox(now.wall, now),
        }
    }

    /// Whether the shim is there and only does not answer: its containers may well run, so the sandbox is looked at again
    /// before anything is taken for lost.
    pub(super) fn is_silent(&self, observation: &Observation) -> bool {
        self.life.record.containers.keys().any(|name| {
            let id = self.life.container_id(name);
            let is_unknown = |seen: &ObservedContainer| seen.id == id && seen.task == ObservedTask::Unknown;
            observation.containers.iter().any(is_unknown)
        })
    }

    /// Lets everything that waits for containerd go on.
    fn runtime_is_up(&mut self, now: Now) {
        let mono = now.mono;
        let actual = &mut self.life.actual;
        actual.dirs.runtime_is_up(mono);
        actual.cgroup.runtime_is_up(mono);
        actual.netns.runtime_is_up(mono);
        actual.network.runtime_is_up(mono);
        actual.sandbox.runtime_is_up(mono);
        for volume in actual.volumes.values_mut() {
            volume.runtime_is_up(mono);
        }
        for removal in actual.removals.values_mut() {
            if let Removal::Stuck(retry) = removal {
                retry.runtime_is_up(mono);
            }
        }
        for run in actual.containers.values_mut() {
            if let Run::Preparing(preparing) = run {
                preparing.rootfs.runtime_is_up(mono);
                if let ImageUse::Refused { retry, .. } = &mut preparing.image {
                    retry.runtime_is_up(mono);
                }
                if let Some(refusal) = &mut preparing.refused {
                    refusal.retry.runtime_is_up(mono);
                }
            }
        }
    }

    /// The sandbox is gone, and with it every container that was in it. A pod that goes on gets another one, made when
    /// nothing of the old one is left.
    pub(super) fn lose_sandbox(&mut self, at: jiff::Timestamp, now: Now) {
        let names: Vec<ContainerName> = self.life.actual.containers.keys().cloned().collect();
        for name in names {
            match self.life.actual.containers.get_mut(&name) {
                Some(Run::Starting(starting)) => {
                    starting.end.get_or_insert(End::Lost(at));
                }
                Some(Run::Running(_)) => self.ended(&name, End::Lost(at), now),
                Some(Run::Preparing(preparing)) => {
                    // A start that failed may have left a record in the sandbox, whose removal takes the layer with it.
                    if preparing.rootfs.ready().is_some() {
                        preparing.rootfs = Resource::Unknown;
                    }
                    if self.may_have_run(&name) {
                        self.ended(&name, End::Lost(at), now);
                    }
                }
                Some(Run::Idle | Run::BackingOff | Run::Ended(_)) | None => {}
            }
        }
        let goes_on = self.life.stage() == Stage::Run && matches!(over(&self.life, now), Over::GoesOn(_));
        if goes_on {
            self.replace_sandbox();
        } else if self.life.actual.sandbox.op().is_none() {
            self.life.actual.sandbox = Resource::Unknown;
        }
    }

    /// Whether a run that is to be started was perhaps started before: its start was asked for in this sandbox, and nobody
    /// said that it failed.
    pub(super) fn may_have_run(&self, name: &ContainerName) -> bool {
        let Run::Preparing(preparing) = self.life.run(name) else { return false };
        let started_in = self.life.record.containers.get(name).and_then(|record| record.started_in);
        let failed = preparing.refused.as_ref().is_some_and(|refusal| match refusal.retry.failure.kind {
            FailureKind::Unknown | FailureKind::RuntimeDown => false,
            FailureKind::Transient
            | FailureKind::Config
            | FailureKind::InvalidImageName
            | FailureKind::ImagePull
            | FailureKind::StartFailed
            | FailureKind::SandboxGone => true,
        });
        started_in == Some(self.life.record.sandbox) && !failed
    }

    fn replace_sandbox(&mut self) {
        let text = "Pod sandbox changed, it will be killed and re-created.";
        self.notes.push(about_pod(Severity::Normal, "SandboxChanged", text));
        let attempt = self.life.record.sandbox;
        let actual = &mut self.life.actual;
        let ops = [
            (Leftover::Sandbox(attempt), actual.sandbox.op(), actual.sandbox == Resource::Absent),
            (Leftover::Network(attempt), actual.network.op(), actual.network == Resource::Absent),
            (Leftover::Netns(attempt), actual.netns.op(), actual.netns == Resource::Absent),
        ];
        for (leftover, op, absent) in ops {
            if !absent {
                actual.removals.insert(leftover, op.map_or(Removal::Due, Removal::After));
            }
        }
        actual.sandbox = Resource::Absent;
        actual.network = Resource::Absent;
        actual.netns = Resource::Absent;
        self.life.record.sandbox = attempt.saturating_add(1);
        self.life.record.network = None;
    }
}

/// A run that was created and is to be started, though it is not known with what.
pub(super) fn again(hash: u64) -> Preparing {
    Preparing { hash, image: ImageUse::Wanted, rootfs: Resource::Unknown, refused: None }
}
