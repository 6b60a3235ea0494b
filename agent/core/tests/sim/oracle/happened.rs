//! What happened to processes and sandboxes, and what the agent learned of it.

use std::{collections::BTreeSet, sync::Arc};

use berth_core::{
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{ContainerId, OpId, PodUid, SandboxId},
    observation::{Exit, ObservedTask},
    pod::port::start::StartRequest,
    time::Now,
};

use super::{Answer, LOST, Oracle, Process, Run, Termed, Trust, probes::Health};

impl Oracle {
    /// The agent learns what came of an effect.
    pub(crate) fn answered(&mut self, op: OpId, outcome: &Result<Outcome, Failure>, now: Now) {
        if let Some((pod, sandbox)) = self.looks.remove(&op) {
            return self.looked_for(&pod, sandbox, outcome, now);
        }
        if self.hook_answered(op, outcome, now) {
            return;
        }
        let Some((pod, id)) = self.starts.remove(&op) else { return };
        let Some(run) = self.pods.get_mut(&pod).and_then(|account| account.find_mut(&id)) else { return };
        let (sandbox, was_told) = (run.sandbox.clone(), run.is_told);
        self.start_answered(&pod, &id, outcome, now);
        match outcome {
            Ok(
                Outcome::Started(ObservedTask::Running { .. }) | Outcome::Task(ObservedTask::Running { .. }),
            ) => {
                // What was read before may not have seen it.
                self.up.entry(sandbox).and_modify(|since| *since = now.mono);
            }
            // An end that was heard before tells more, of this run alone.
            Err(Failure { kind: FailureKind::SandboxGone, .. }) if !was_told => {
                self.learned_gone(&pod, &sandbox);
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// The agent learns whether a sandbox is up.
    fn looked_for(&mut self, pod: &PodUid, sandbox: SandboxId, outcome: &Result<Outcome, Failure>, now: Now) {
        match outcome {
            Ok(_) => drop(self.up.insert(sandbox, now.mono)),
            Err(Failure { kind: FailureKind::SandboxGone, .. }) => self.learned_gone(pod, &sandbox),
            Err(_) => {}
        }
    }

    /// The agent learns that a sandbox has gone, and so that all in it has ended.
    fn learned_gone(&mut self, pod: &PodUid, sandbox: &SandboxId) {
        let Some(account) = self.pods.get_mut(pod) else { return };
        for run in account.runs.values_mut().flatten().filter(|run| run.sandbox == *sandbox) {
            run.is_told |= run.end().is_some();
        }
    }

    fn start_answered(
        &mut self,
        pod: &PodUid,
        id: &ContainerId,
        outcome: &Result<Outcome, Failure>,
        now: Now,
    ) {
        let Some(account) = self.pods.get_mut(pod) else { return };
        let Some(run) = account.find_mut(id) else { return };
        match outcome {
            // There was none: what nobody knew is known.
            Ok(Outcome::Task(ObservedTask::Absent | ObservedTask::Created)) => {
                run.suppose(Answer::Nothing);
                let name = run.container.name.clone();
                account.take_intended(&name, id);
            }
            // There may be one yet.
            Ok(Outcome::Started(ObservedTask::Starting) | Outcome::Task(ObservedTask::Starting)) => {}
            Ok(Outcome::NotStarted(_)) => run.answer = Answer::Refused,
            Ok(outcome) => {
                run.answer = Answer::Started;
                run.learned = now.mono;
                let (Outcome::Started(task) | Outcome::Task(task)) = outcome else { return };
                run.is_told |= matches!(task, ObservedTask::Exited(_));
                run.hooks.started(&run.container, now);
            }
            Err(Failure { kind: FailureKind::StartFailed, .. }) => run.answer = Answer::Refused,
            Err(_) => {}
        }
    }

    /// A process was made.
    pub(crate) fn process_began(&mut self, request: &StartRequest, now: Now) {
        let Some(account) = self.pods.get_mut(&request.pod.uid) else { return };
        let spec = Arc::clone(&account.spec);
        let made_first = account.made_first.get(&(request.id.clone(), request.sandbox.clone())).cloned();
        let Some(run) = account.find_mut(&request.id) else { return };
        run.process = Some(Process { began: now.wall, end: None });
        // What went before it began is there again.
        run.is_lost = false;
        run.suppose(Answer::None);
        // There was nothing to stop before, unless that is still on disk as what is to be.
        let record =
            account.stored.as_ref().and_then(|record| record.containers.get(&request.container.name));
        let is_to_stop = record.is_some_and(|record| record.stopping.is_some());
        let Some(run) = account.find_mut(&request.id) else { return };
        if !is_to_stop {
            (run.term, run.termed) = (None, Termed::No);
            run.stopped = None;
            // What was taken to run has been asked already.
            if run.trust == Trust::No {
                run.health = Health::default();
            }
        }
        // An earlier start under this id, with another spec, came to nothing.
        let wanted = spec.all_containers().find(|one| one.name == request.container.name);
        let is_changed = wanted.is_some_and(|one| {
            run.is_another(&spec, one) || made_first.is_some_and(|made| made.restarts_for(&spec, one))
        });
        run.waits_for_room = is_changed && wanted.is_some_and(|one| one.hash == run.container.hash);
        run.changed = is_changed.then(|| run.changed.unwrap_or(now.mono));
    }

    /// A process ended.
    pub(crate) fn process_ended(&mut self, pod: &PodUid, id: &ContainerId, exit: Exit, now: Now) {
        let run = self.pods.get_mut(pod).and_then(|account| account.find_mut(id));
        let Some(Run { process: Some(process), .. }) = run else { return };
        process.end.get_or_insert((exit, now.mono));
    }

    /// A sandbox was found to be one that cannot go on: what runs in it is to stop, and to run in another as its policy says.
    pub(crate) fn given_up(&mut self, pod: &PodUid, sandbox: &SandboxId, now: Now) {
        let Some(account) = self.pods.get_mut(pod) else { return };
        for run in account.runs.values_mut().flatten().filter(|run| run.sandbox == *sandbox) {
            run.given_up.get_or_insert(now.mono);
        }
    }

    /// A sandbox is gone with every process in it, and what its shim remembered but for the ends that it wrote down.
    pub(crate) fn sandbox_lost(
        &mut self,
        pod: &PodUid,
        sandbox: &SandboxId,
        kept: &BTreeSet<ContainerId>,
        now: Now,
    ) {
        let Some(account) = self.pods.get_mut(pod) else { return };
        // The next agent knows what is on disk.
        let on_disk = account.ended_in(account.stored.as_ref());
        for run in account.runs.values_mut().flatten().filter(|run| run.sandbox == *sandbox) {
            run.is_lost |= !on_disk.contains(&run.id) && !kept.contains(&run.id);
            if let Some(process) = &mut run.process {
                let exit = Exit {
                    code: LOST,
                    started_at: Some(process.began),
                    finished_at: now.wall,
                    oom_killed: false,
                };
                process.end.get_or_insert((exit, now.mono));
            }
        }
    }
}
