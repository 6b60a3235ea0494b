//! What the runtime reports about a pod by itself.

use std::collections::BTreeMap;

use super::{
    actual::{Follows, Preparing, Run, RunEnd, Running, Stage},
    machine::PodMachine,
    plan::{Over, is_ending, over},
    port::{
        image::ImageUse,
        removal::{Leftover, Removal},
    },
    resource::Resource,
    text::about_pod,
};
use crate::{
    failure::FailureKind,
    id::{ContainerId, ContainerName, SandboxId},
    observation::{Exit, Observation, ObservedContainer, ObservedSandbox, ObservedTask, SandboxReport},
    record::ContainerRecord,
    status::Severity,
    time::{Mono, Now},
};

impl PodMachine {
    /// Takes a report of one of the pod's sandboxes. Those of an earlier one tell nothing that matters.
    pub fn report(&mut self, sandbox: &SandboxId, report: SandboxReport, now: Now) {
        if *sandbox != self.life.sandbox_id() {
            return;
        }
        match report {
            SandboxReport::Exited { id, exit } => self.exited(&id, exit, now),
            SandboxReport::Resync { asked_at, tasks } => {
                self.compare(&Tasks { asked_at, tasks: tasks.into_iter().collect() }, now);
                self.life.actual.end_trust(asked_at);
            }
            SandboxReport::Lost { at } => match self.life.actual.sandbox {
                // What is being looked for was found before it was lost: its outcome may come after its loss. What did not
                // answer is gone all the same, and with it what was taken to run in it.
                Resource::Ready(_) | Resource::Ensuring(_) | Resource::Unknown | Resource::Failed(_) => {
                    self.lose_sandbox(at, now);
                }
                Resource::Absent => {}
            },
        }
    }

    fn exited(&mut self, id: &ContainerId, exit: Exit, now: Now) {
        let names: Vec<ContainerName> = self.life.actual.containers.keys().cloned().collect();
        let Some(name) = names.into_iter().find(|name| self.life.container_id(name) == *id) else { return };
        let may_have_run = self.life.may_have_run(&name);
        match self.life.actual.containers.get_mut(&name) {
            Some(Run::Starting(starting)) => starting.end = Some(RunEnd::Seen(exit)),
            Some(Run::Running(_)) => self.ended(&name, RunEnd::Seen(exit), now),
            // Its layer can be removed when nothing makes it any more.
            Some(Run::Preparing(preparing)) if preparing.rootfs.op().is_some() && may_have_run => {
                preparing.end = Some(exit);
            }
            Some(Run::Preparing(_)) if may_have_run => self.ended_unanswered(&name, exit, now),
            Some(Run::Idle | Run::BackingOff | Run::Preparing(_) | Run::Ended(_)) | None => {}
        }
    }

    /// Compares what is thought to run with what does. A start that is under way brings its own outcome, except for an end
    /// that came after it.
    fn compare(&mut self, read: &Tasks, now: Now) {
        let names: Vec<ContainerName> = self.life.actual.containers.keys().cloned().collect();
        for name in names {
            if self.was_begun_after(&name, read.asked_at) {
                continue;
            }
            let task = read.tasks.get(&self.life.container_id(&name)).unwrap_or(&ObservedTask::Absent);
            match self.life.run(&name) {
                Run::Running(running) => {
                    if tells_of(read.asked_at, running.known_at, task) {
                        let running = running.clone();
                        self.compare_running(&name, &running, task, now);
                    }
                }
                Run::Preparing(_) | Run::Starting(_) => {
                    if let ObservedTask::Exited(exit) = task {
                        self.exited(&self.life.container_id(&name), *exit, now);
                    }
                }
                Run::Idle | Run::BackingOff | Run::Ended(_) => {}
            }
        }
    }

    fn compare_running(&mut self, name: &ContainerName, running: &Running, task: &ObservedTask, now: Now) {
        match task {
            ObservedTask::Running { pid, started_at } => self.correct_start(name, *pid, *started_at),
            ObservedTask::Unknown => {}
            ObservedTask::Exited(exit) => self.ended(name, RunEnd::Seen(*exit), now),
            ObservedTask::Absent if !running.is_trusted => self.ended(name, RunEnd::Lost(now.wall), now),
            // It was taken to run while its shim did not answer. Should its start fail, no shim tells of that, and one that was
            // never asked for no shim knows: it is asked for again, which finds it.
            ObservedTask::Absent | ObservedTask::Created | ObservedTask::Starting => {
                self.prepare_again(name, running.hash, task);
            }
        }
    }

    /// A run that was taken on trust began at another time.
    fn correct_start(&mut self, name: &ContainerName, pid: u32, at: jiff::Timestamp) {
        if let Some(Run::Running(running)) = self.life.actual.containers.get_mut(name) {
            let is_news = running.pid.replace(pid) != Some(pid);
            running.started_at = at;
            running.is_trusted = false;
            let known_at = running.known_at;
            if is_news {
                self.end_waits_for_target(name, known_at);
            }
        }
    }

    /// Compares with the whole runtime, after containerd was away.
    pub fn observe(&mut self, observation: &Observation, now: Now) {
        self.life.actual.end_waits(FailureKind::RuntimeDown, now.mono);
        let id = self.life.sandbox_id();
        // One that came up while the runtime was read may be missing, with all that is in it; an end is an end.
        if self.life.actual.sandbox.ready().is_none_or(|up| observation.asked_at < up.known_at) {
            return self.take_exits(observation, now);
        }
        match seen(&id, observation) {
            Seen::Ready(_) => self.compare_all(observation, now),
            Seen::Unrecorded => {
                // Making it finds it, and writes its record.
                self.life.actual.sandbox = Resource::Unknown;
                self.compare_all(observation, now);
            }
            Seen::NotReady if self.is_silent(observation) || self.may_be_used(observation) => {
                self.life.actual.sandbox = Resource::Unknown;
            }
            Seen::NotReady | Seen::Nothing => {
                self.take_exits(observation, now);
                self.lose_sandbox(now.wall, now);
            }
        }
    }

    /// Takes ends that are known, whatever is known of the sandbox.
    fn take_exits(&mut self, observation: &Observation, now: Now) {
        for seen in &observation.containers {
            if let ObservedTask::Exited(exit) = seen.task
                && !self.was_begun_after(&seen.name, observation.asked_at)
            {
                self.exited(&seen.id, exit, now);
            }
        }
    }

    /// Whether the current run of a container was decided after a reading began, which then tells nothing of it: what bore its
    /// id before was of a pod that was here under the same UID.
    fn was_begun_after(&self, name: &ContainerName, asked_at: Mono) -> bool {
        self.life.record.containers.get(name).is_some_and(|record| record.begun_at > asked_at)
    }

    fn compare_all(&mut self, observation: &Observation, now: Now) {
        let task = |seen: &ObservedContainer| (seen.id.clone(), seen.task.clone());
        let tasks = observation.containers.iter().map(task).collect();
        self.compare(&Tasks { asked_at: observation.asked_at, tasks }, now);
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

    /// Whether the shim does not answer and a container was asked to start in it: the runtime may know no container yet, and the
    /// start comes to the shim when it goes on.
    fn may_be_used(&self, observation: &Observation) -> bool {
        let record = &self.life.record;
        let is_begun = |run: &ContainerRecord| run.started_in == Some(record.sandbox) && run.exit.is_none();
        observation.silent.contains(&record.sandbox_id) && record.containers.values().any(is_begun)
    }

    /// The sandbox is gone, and with it every container that was in it. A pod that goes on gets another one, made when
    /// nothing of the old one is left.
    pub(super) fn lose_sandbox(&mut self, at: jiff::Timestamp, now: Now) {
        let names: Vec<ContainerName> = self.life.actual.containers.keys().cloned().collect();
        for name in names {
            match self.life.actual.containers.get_mut(&name) {
                Some(Run::Starting(starting)) => {
                    starting.end.get_or_insert(RunEnd::Lost(at));
                }
                Some(Run::Running(_)) => self.ended(&name, RunEnd::Lost(at), now),
                Some(Run::Preparing(Preparing { end: Some(_), .. })) => {}
                Some(Run::Preparing(preparing)) => {
                    // A start that failed may have left a record in the sandbox, whose removal takes the layer with it.
                    if preparing.rootfs.ready().is_some() {
                        preparing.rootfs = Resource::Unknown;
                    }
                    if self.life.may_have_run(&name) {
                        self.ended(&name, RunEnd::Lost(at), now);
                    } else if let Some(record) = self.life.record.containers.get_mut(&name) {
                        // It is still to begin: nobody takes it for one that went with this sandbox.
                        record.started_in = None;
                    }
                }
                Some(Run::Idle | Run::BackingOff | Run::Ended(_)) | None => {}
            }
        }
        let goes_on = self.life.stage() == Stage::Run
            && matches!(over(&self.life, now), Over::GoesOn(_))
            && !is_ending(&self.life);
        if goes_on {
            self.replace_sandbox();
        } else if self.life.actual.sandbox.op().is_none() {
            self.life.actual.sandbox = Resource::Unknown;
        }
    }

    fn replace_sandbox(&mut self) {
        let text = "Pod sandbox changed, it will be killed and re-created.";
        self.notes.push(about_pod(Severity::Normal, "SandboxChanged", text));
        let id = self.life.sandbox_id();
        let actual = &mut self.life.actual;
        let ops = [
            (Leftover::Sandbox(id.clone()), actual.sandbox.op(), actual.sandbox == Resource::Absent),
            (Leftover::Network(id.clone()), actual.network.op(), actual.network == Resource::Absent),
            (Leftover::Netns(id), actual.netns.op(), actual.netns == Resource::Absent),
        ];
        for (leftover, op, absent) in ops {
            if !absent {
                actual.removals.insert(leftover, op.map_or(Removal::Due, Removal::After));
            }
        }
        actual.sandbox = Resource::Absent;
        actual.network = Resource::Absent;
        actual.netns = Resource::Absent;
        self.life.record.replace_sandbox();
    }
}

/// Tasks as they were read.
struct Tasks {
    /// When the reading began.
    asked_at: Mono,
    tasks: BTreeMap<ContainerId, ObservedTask>,
}

/// Whether what was read tells of a run that the agent learned of at `known_at`. A reading that began before may not have
/// seen the start, or half of it; an end is an end whenever it was read.
#[must_use]
fn tells_of(asked_at: Mono, known_at: Mono, task: &ObservedTask) -> bool {
    match task {
        ObservedTask::Running { .. } | ObservedTask::Exited(_) | ObservedTask::Unknown => true,
        ObservedTask::Absent | ObservedTask::Created | ObservedTask::Starting => asked_at >= known_at,
    }
}

/// What an observation says of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// It has a record and is up; process id of its shim.
    Ready(u32),
    /// It has no record, and is up or does not answer.
    Unrecorded,
    /// It has a record and does not say that it is up.
    NotReady,
    /// There is no trace of it.
    Nothing,
}

/// What an observation says of a sandbox. The shim knows best whether it is up: a record that is gone is written again, and
/// costs no container its life.
pub(super) fn seen(id: &SandboxId, observation: &Observation) -> Seen {
    match observation.sandboxes.iter().find(|seen| seen.id == *id) {
        Some(ObservedSandbox { ready: true, pid, .. }) => Seen::Ready(*pid),
        Some(ObservedSandbox { ready: false, .. }) => Seen::NotReady,
        None if observation.unrecorded.contains(id) => Seen::Unrecorded,
        None => Seen::Nothing,
    }
}

/// A run that was created and is to be started, though it is not known with what.
pub(super) fn again(hash: u64, task: &ObservedTask) -> Preparing {
    let is_under_way = *task == ObservedTask::Starting;
    let (image, rootfs) = (ImageUse::Wanted, Resource::Unknown);
    let (refused, follows, end) = (None, Follows::AnEnd, None);
    Preparing { hash, image, is_image_told: true, rootfs, refused, is_under_way, follows, end }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_reading_tells_only_of_what_was_begun_before_it() {
        let running = ObservedTask::Running { pid: 1, started_at: Timestamp::UNIX_EPOCH };
        let exit = Exit { code: 0, started_at: None, finished_at: Timestamp::UNIX_EPOCH, oom_killed: false };
        let known_at = Mono(Duration::from_secs(10));
        let cases = [
            (ObservedTask::Absent, 9, false),
            (ObservedTask::Absent, 10, true),
            (ObservedTask::Absent, 11, true),
            (ObservedTask::Created, 9, false),
            (ObservedTask::Created, 11, true),
            (running, 9, true),
            (ObservedTask::Exited(exit), 9, true),
            (ObservedTask::Unknown, 9, true),
        ];
        for (task, asked_at, expected) in cases {
            let asked_at = Mono(Duration::from_secs(asked_at));
            assert_eq!(tells_of(asked_at, known_at, &task), expected, "{task:?} read at {asked_at:?}");
        }
    }
}
