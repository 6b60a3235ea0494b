//! What an agent finds when it begins again, after it was killed or the machine was switched off, and what it hears then.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use berth_core::{
    event::Event,
    id::{ContainerId, PodUid, SandboxId},
    observation::{Observation, ObservedTask, SandboxReport},
    record::PodRecord,
    spec::Source,
    time::Now,
};

use super::{Account, Answer, Oracle, Run, Termed, Trust};

impl Oracle {
    /// The agent begins again: it sees what there is, and nothing that was asked is answered any more.
    pub(crate) fn restarted(&mut self, now: Now) {
        self.agent_since = now.mono;
        self.starts.clear();
        self.silent.clear();
        self.up.clear();
        self.looks.clear();
        self.probes.clear();
        self.hooks.clear();
        self.server_restarted();
        // One that was never written down begins anew.
        self.pods
            .retain(|_, account| account.stored.is_some() || account.runs.values().any(|of| !of.is_empty()));
        for account in self.pods.values_mut() {
            account.restored();
            account.forget_unwritten();
            account.take_in(now);
            account.expect_intended();
            let written = account.written();
            for run in account.runs.values_mut().flatten() {
                run.agents += 1;
                run.trust = Trust::No;
                run.learned = now.mono;
                run.termed = if run.termed == Termed::Sent { Termed::Sent } else { Termed::No };
                // What is written down as unknown is not looked at again.
                if !written.contains(&run.id) {
                    // What refused it told the killed agent alone.
                    run.answer = match run.answer {
                        Answer::Refused | Answer::Nothing => Answer::None,
                        _ if run.process.is_some() => Answer::Started,
                        answer => answer,
                    };
                }
                run.is_told |= run.end().is_some();
            }
        }
    }

    /// The machine was switched off and on: nobody saw how what ran ended, and of records those of ended pods are left.
    pub(crate) fn rebooted(&mut self, ends: &BTreeMap<PodUid, PodRecord>, now: Now) {
        let sandboxes = self.pods.iter().flat_map(|(uid, account)| {
            let runs = account.runs.values().flatten();
            runs.map(|run| (uid.clone(), run.sandbox.clone()))
        });
        let sandboxes: BTreeSet<(PodUid, SandboxId)> = sandboxes.collect();
        for (pod, sandbox) in sandboxes {
            self.sandbox_lost(&pod, &sandbox, &BTreeSet::new(), now);
        }
        for (uid, account) in &mut self.pods {
            account.stored = ends.get(uid).cloned();
            account.intended.clone_from(&account.stored);
            // The API server has when a pod of it began.
            if account.stored.is_none() && account.spec.source != Source::Api {
                account.began = now;
            }
        }
    }

    /// What is there bears other ids, and its record says so.
    pub(crate) fn renamed(
        &mut self,
        record: &PodRecord,
        sandboxes: &BTreeMap<SandboxId, SandboxId>,
        containers: &BTreeMap<ContainerId, ContainerId>,
    ) {
        let Some(account) = self.pods.get_mut(&record.uid) else { return };
        for run in account.runs.values_mut().flatten() {
            if let Some(new) = sandboxes.get(&run.sandbox) {
                run.sandbox = new.clone();
            }
            if let Some(new) = containers.get(&run.id) {
                run.id = new.clone();
            }
        }
        account.intended = Some(record.clone());
        account.stored = Some(record.clone());
    }

    /// A shim does not answer: what ended in it and was not written down is taken to run, made from what it was made from.
    pub(crate) fn silenced(&mut self, sandbox: &SandboxId, now: Now) {
        self.silent.insert(sandbox.clone());
        for account in self.pods.values_mut() {
            let written = account.written();
            let Account { spec, runs, .. } = account;
            let its = runs.values_mut().flatten().filter(|run| run.sandbox == *sandbox);
            for run in its {
                run.is_told = written.contains(&run.id);
                run.trust = if run.is_told { Trust::No } else { Trust::Taken };
                let wanted = spec.all_containers().find(|one| one.name == run.container.name);
                if !run.is_told && wanted.is_some_and(|wanted| run.is_another(spec, wanted)) {
                    run.changed.get_or_insert(now.mono);
                }
            }
        }
    }

    /// The runs whose end no agent has decided, by what it asked to be written.
    fn undecided(&self) -> BTreeSet<ContainerId> {
        let all_asked = self.pods.values().filter(|one| !one.is_being_written && !one.is_unwritten);
        let runs = all_asked.flat_map(|account| {
            let ended = account.ended_in(account.intended.as_ref());
            account.runs.values().flatten().filter(move |run| !ended.contains(&run.id))
        });
        runs.map(|run| run.id.clone()).collect()
    }

    /// What was taken to run was shown to. Where a shim, or containerd for all, tells that it never began, that is taken back.
    fn hear_of_none(&mut self, event: &Event) {
        let (sandbox, there): (_, BTreeSet<&ContainerId>) = match event {
            Event::Sandbox { id, report: SandboxReport::Resync { tasks, .. } } => {
                let begun = tasks.iter().filter(|(_, task)| has_begun(task));
                (Some(id), begun.map(|(id, _)| id).collect())
            }
            Event::RuntimeUp(observation) => {
                let begun = observation.containers.iter().filter(|seen| has_begun(&seen.task));
                (None, begun.map(|seen| &seen.id).collect())
            }
            _ => return,
        };
        let is_none = |run: &Run| {
            run.trust != Trust::No
                && run.process.is_none()
                && sandbox.is_none_or(|id| run.sandbox == *id)
                && !there.contains(&run.id)
        };
        let pods = self.pods.iter().filter(|(_, account)| account.runs.values().flatten().any(is_none));
        let pods: Vec<PodUid> = pods.map(|(uid, _)| uid.clone()).collect();
        pods.into_iter().for_each(|uid| self.told.forget(uid));
    }

    /// A shim, or containerd for all, tells what there is.
    pub(crate) fn heard(&mut self, event: &Event) {
        self.hear_of_none(event);
        let undecided = match event {
            Event::Sandbox { .. } | Event::RuntimeUp(_) => self.undecided(),
            _ => BTreeSet::new(),
        };
        let all = self.pods.values_mut().flat_map(|account| account.runs.values_mut().flatten());
        let ended_before = |run: &Run, asked_at| run.end().is_some_and(|(_, at)| at <= asked_at);
        match event {
            Event::Sandbox { id: sandbox, report } => {
                // An end tells of one container alone.
                if !matches!(report, SandboxReport::Exited { .. }) {
                    self.silent.remove(sandbox);
                }
                for run in all.filter(|run| run.sandbox == *sandbox && run.end().is_some()) {
                    match report {
                        SandboxReport::Exited { id, .. } if *id == run.id => run.hear_end(&undecided),
                        SandboxReport::Exited { .. } => {}
                        SandboxReport::Resync { asked_at, tasks } => {
                            if tasks.iter().any(|(id, task)| *id == run.id && has_ended(task)) {
                                run.hear_end(&undecided);
                            }
                            run.is_told |= ended_before(run, *asked_at);
                        }
                        SandboxReport::Lost { .. } => run.is_told = true,
                    }
                }
            }
            Event::Restored(restored) => {
                let observation = &restored.observation;
                self.up = ready(observation).map(|id| (id.clone(), observation.asked_at)).collect();
            }
            Event::RuntimeUp(observation) => {
                let asked_at = observation.asked_at;
                let tasks = observation.containers.iter().map(|seen| (&seen.id, &seen.task));
                let tasks: BTreeMap<&ContainerId, &ObservedTask> = tasks.collect();
                for run in all.filter(|run| ended_before(run, asked_at)) {
                    let is_up = self.up.get(&run.sandbox).is_some_and(|since| *since <= asked_at);
                    match tasks.get(&run.id) {
                        Some(ObservedTask::Exited(_)) => run.hear_end(&undecided),
                        Some(ObservedTask::Unknown) => {}
                        Some(_) | None => run.is_told |= is_up,
                    }
                }
                let ready: BTreeSet<&SandboxId> = ready(observation).collect();
                self.up.retain(|id, since| ready.contains(id) || *since > asked_at);
            }
            _ => {}
        }
    }
}

/// Whether there is, or was, or may be a process.
fn has_begun(task: &ObservedTask) -> bool {
    match task {
        ObservedTask::Running { .. } | ObservedTask::Exited(_) | ObservedTask::Unknown => true,
        ObservedTask::Absent | ObservedTask::Created | ObservedTask::Starting => false,
    }
}

fn has_ended(task: &ObservedTask) -> bool {
    matches!(task, ObservedTask::Exited(_))
}

/// The sandboxes that say that they are up.
fn ready(observation: &Observation) -> impl Iterator<Item = &SandboxId> {
    observation.sandboxes.iter().filter(|seen| seen.ready).map(|seen| &seen.id)
}

impl Account {
    /// Each run is what its record on disk says.
    fn restored(&mut self) {
        for (name, runs) in &mut self.runs {
            let record = self.stored.as_ref().and_then(|record| record.containers.get(name));
            for run in runs {
                let record = record.filter(|record| record.id == run.id);
                run.health.restored(record);
                run.hooks.restored(record);
                if let Some(record) = record {
                    run.stopped = record.stopping.map(|stopping| stopping.began);
                }
            }
        }
    }

    /// What the record on disk says was to be asked for counts as a run for an agent that begins: nobody can tell it from
    /// one that ran and went.
    fn expect_intended(&mut self) {
        let Some(record) = self.stored.clone() else { return };
        for (name, intended) in &record.containers {
            let is_known = self.runs.values().flatten().any(|run| run.id == intended.id);
            let container = self.spec.all_containers().find(|one| one.name == *name);
            let (Some(attempt), None, Some(container), false) =
                (intended.started_in, &intended.exit, container, is_known)
            else {
                continue;
            };
            let sandbox = match &record.earlier_sandbox {
                Some(earlier) if attempt != record.sandbox => earlier,
                Some(_) | None => &record.sandbox_id,
            };
            let (id, container) = (intended.id.clone(), Arc::clone(container));
            self.round += u32::from(intended.anew && self.all_since_on_disk().is_some());
            let run = Run::new(id, intended.attempt, sandbox.clone(), container);
            let run = Run { answer: Answer::Unasked, round: self.round, ..run };
            self.runs.entry(name.clone()).or_default().push(run);
        }
    }

    /// That a pod is to end, or has, was known to the killed agent alone, which said that it could not write it down: the next
    /// one goes by the record.
    fn forget_unwritten(&mut self) {
        self.intended.clone_from(&self.stored);
        // What was being written is written or not, and nobody was told.
        let was_being_written = mem::take(&mut self.is_being_written);
        if !mem::take(&mut self.is_unwritten) && !was_being_written {
            return;
        }
        let ends = |record: &PodRecord| record.termination.is_some() || record.terminal.is_some();
        if !self.stored.as_ref().is_some_and(ends) {
            (self.unwanted, self.ends_by) = (None, None);
        }
        self.last_phase = None;
        let is_replaced = self.stored.as_ref().is_some_and(|record| record.replacing.is_some());
        for (name, runs) in &mut self.runs {
            let record = self.stored.as_ref().and_then(|record| record.containers.get(name));
            for run in runs {
                // Of a run that is on disk as replaced the next one is there.
                let is_on_disk = record.is_some_and(|it| it.stopping.is_some() || it.attempt > run.attempt);
                run.term = run.term.filter(|_| is_on_disk);
                run.termed = if is_on_disk { run.termed } else { Termed::No };
                run.shown_code = None;
                // What is on disk still counts on it: should the manifest be back, it is begun again.
                let is_to_run = record.is_some_and(|it| it.id == run.id && it.exit.is_none());
                if run.answer == Answer::Refused && is_to_run {
                    *self.begun_again.entry(name.clone()).or_default() += 1;
                }
                if run.taken_down.is_some() && is_to_run {
                    let container = Arc::clone(&run.container);
                    let anew = Run::new(run.id.clone(), run.attempt, run.sandbox.clone(), container);
                    // What is on disk as stopped with its sandbox went with it.
                    let given_up = run.given_up.filter(|_| is_replaced);
                    *run = Run { answer: Answer::Unasked, given_up, round: run.round, ..anew };
                    *self.begun_again.entry(name.clone()).or_default() += 1;
                }
            }
        }
    }
}
