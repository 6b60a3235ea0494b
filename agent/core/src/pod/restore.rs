//! Where a pod begins: new, or as an earlier run of the agent left it.
//!
//! Nothing that runs is touched: a container that is found running goes on under the same attempt, one that ended is
//! taken as ended, one that was asked to start and is not there in a living sandbox is started (the start finds what the
//! first try made).

use std::sync::Arc;

use super::{
    actual::{Actual, Life, Run, RunEnd, Running},
    machine::PodMachine,
    port::{
        hook::Hooking,
        record::Recording,
        removal::{Leftover, Removal},
        sandbox::Up,
        signal::Stop,
    },
    report::{Seen, again, seen},
    resource::Resource,
    text::about_pod,
    told_runs,
};
use crate::{
    id::{ContainerName, PodUid},
    observation::{Observation, ObservedContainer, ObservedSandbox, ObservedTask},
    paths,
    record::{ContainerRecord, EndedBy, Hooked, PodRecord, PostStart, Probed, TerminalRecord},
    spec::{Ended, Pod},
    status::Severity,
    time::{Mono, Now},
    users::HostIds,
};

impl PodMachine {
    /// A pod that the node never had.
    #[must_use]
    pub fn new(spec: Arc<Pod>, now: Now) -> Self {
        let mut record = PodRecord::first(&spec, now.wall);
        told_runs::take_of_another_life(&mut record, &spec, now);
        let life = Life { spec, record, actual: Actual::fresh(), taken_in: now };
        let mut pod = Self::with(life, Recording::Unsaved);
        pod.begin_at_its_end(now.mono);
        pod
    }

    /// One that has ended, or is to be deleted, is not begun. Of one that was shown to have ended the source has nothing to say.
    pub(super) fn begin_at_its_end(&mut self, now: Mono) {
        let has_ended = self.status().is_some_and(|status| status.phase.is_final());
        let ended = self.life.spec.ended.clone().filter(|_| !has_ended);
        if let Some(Ended { succeeded, reason, message }) = ended {
            self.life.record.terminal =
                Some(TerminalRecord { succeeded, reason, message, by: EndedBy::Itself });
            self.terminate(now);
        } else if self.life.spec.deletion.is_some() {
            self.terminate(now);
        }
    }

    /// Ids of the node that are its own from now on. None are to be had when every pod has some.
    pub(crate) fn give_ids(&mut self, ids: Option<HostIds>) {
        self.life.record.ids = ids;
    }

    /// The SELinux level that is its own from now on. None is to be had when every pod has one.
    pub(crate) fn give_level(&mut self, level: Option<String>) {
        self.life.record.level = level;
    }

    /// It may not begin. Source: `rejectPod` of `pkg/kubelet/kubelet.go`.
    pub(crate) fn reject(&mut self, reason: &str, why: &str, now: Now) {
        let message = format!("Pod was rejected: {why}");
        self.notes.push(about_pod(Severity::Warning, reason.to_owned(), why));
        let (reason, by) = (reason.to_owned(), EndedBy::Admission);
        self.life.record.terminal = Some(TerminalRecord { succeeded: false, reason, message, by });
        self.terminate(now.mono);
    }

    /// It goes so that a critical pod can begin. Source: `evictPodsToFreeRequests` of `pkg/kubelet/preemption/preemption.go`.
    pub(crate) fn preempt(&mut self, now: Now) {
        let message = "Preempted in order to admit critical pod".to_owned();
        self.notes.push(about_pod(Severity::Warning, "Preempting", message.clone()));
        let why = "Pod was preempted by Kubelet to accommodate a critical pod.".to_owned();
        let by = EndedBy::Node(why);
        self.life.record.terminal =
            Some(TerminalRecord { succeeded: false, reason: "Preempting".to_owned(), message, by });
        self.terminate(now.mono);
    }

    /// A pod that has a record.
    #[must_use]
    pub fn restored(record: PodRecord, spec: Arc<Pod>, observation: &Observation, now: Now) -> Self {
        let saved = Recording::Saved(Box::new(record.clone()));
        Self::known(record, spec, saved, observation, now)
    }

    /// A pod that had ended before the machine was switched off.
    #[must_use]
    pub fn ended_before(record: PodRecord, spec: Arc<Pod>, observation: &Observation, now: Now) -> Self {
        Self::known(record, spec, Recording::Unsaved, observation, now)
    }

    fn known(
        record: PodRecord,
        spec: Arc<Pod>,
        recording: Recording,
        observation: &Observation,
        now: Now,
    ) -> Self {
        let end = if record.terminal.is_some() { Resource::Unknown } else { Resource::Absent };
        let actual = Actual { end, ..Actual::unknown() };
        let life = Life { spec, record, actual, taken_in: now };
        let mut pod = Self::with(life, recording);
        pod.adopt(observation, now);
        pod.take_up_resize();
        pod
    }

    /// A pod that is wanted and has no record, though the runtime knows its UID: the machine was switched off, or the
    /// record was lost. What runs goes on; what does not is removed, and counts as a run.
    #[must_use]
    pub fn found(spec: Arc<Pod>, observation: &Observation, now: Now) -> Self {
        let mut record = PodRecord::first(&spec, now.wall);
        // Of a pod that has ended, whatever the runtime has goes: how it ended is known.
        if spec.ended.is_none() {
            take_last_runs(&mut record, &spec, observation, now);
        }
        told_runs::take(&mut record, &spec, now);
        let life = Life { spec, record, actual: Actual::unknown(), taken_in: now };
        let mut pod = Self::with(life, Recording::Unsaved);
        pod.adopt(observation, now);
        pod.begin_at_its_end(now.mono);
        pod
    }

    fn adopt(&mut self, observation: &Observation, now: Now) {
        for volume in &self.life.spec.volumes {
            self.life.actual.volumes.insert(volume.name.clone(), Resource::Unknown);
        }
        if !self.life.is_wired() {
            self.life.actual.netns = Resource::Absent;
            self.life.actual.network = Resource::Absent;
        }
        self.leave_earlier(observation);
        let id = self.life.sandbox_id();
        let sandbox = seen(&id, observation);
        let alive = match sandbox {
            Seen::Ready(pid) => {
                self.life.actual.sandbox = Resource::Ready(Up { pid, known_at: observation.asked_at });
                Alive::Yes
            }
            Seen::NotReady | Seen::Unrecorded if self.is_silent(observation) => Alive::Perhaps,
            Seen::Unrecorded => Alive::Yes,
            Seen::NotReady | Seen::Nothing => Alive::No,
        };
        if alive != Alive::No {
            self.adopt_network();
        }
        let names: Vec<ContainerName> = self.life.record.containers.keys().cloned().collect();
        let mut was_used = sandbox != Seen::Nothing;
        for name in names {
            was_used |= self.adopt_container(&name, alive, observation, now);
        }
        if alive == Alive::No && was_used {
            self.lose_sandbox(now.wall, now);
        }
    }

    /// The sandbox is there, so its netns is, and the attachment that the record tells of. Directories, cgroup and volumes
    /// are looked at again: that shows to nobody.
    fn adopt_network(&mut self) {
        if self.life.is_wired() {
            self.life.actual.netns = Resource::Ready(paths::netns(&self.life.sandbox_id()).into());
            if self.life.record.network.is_some() {
                self.life.actual.network = Resource::Ready(());
            }
        }
    }

    /// Takes the current run of a container as it is; whether it was started in the current sandbox.
    fn adopt_container(
        &mut self,
        name: &ContainerName,
        alive: Alive,
        observation: &Observation,
        now: Now,
    ) -> bool {
        let id = self.life.container_id(name);
        let seen = observation.containers.iter().find(|seen| seen.id == id);
        let Some(container) = self.container(name) else {
            self.leave(name);
            return false;
        };
        let Some(record) = self.life.record.containers.get(name) else { return false };
        let here = record.started_in == Some(self.life.record.sandbox);
        if record.exit.is_some() {
            // Its layer may be there even if the runtime knows no container.
            self.leave(name);
            return here;
        }
        if record.started_in.is_none() {
            // Its layer, and a container when its start was given up, may be there, made from another spec.
            self.leave(name);
            return false;
        }
        let hash = seen.map(|seen| seen.hash).filter(|hash| *hash != 0).unwrap_or(container.hash);
        if here {
            let found = SeenRun { seen, at: observation.asked_at };
            self.adopt_run(name, hash, alive, found, now);
        } else {
            self.adopt_earlier_run(name, seen, now);
        }
        here
    }

    fn adopt_run(
        &mut self,
        name: &ContainerName,
        hash: u64,
        alive: Alive,
        SeenRun { seen, at }: SeenRun<'_>,
        now: Now,
    ) {
        let task = seen.map_or(&ObservedTask::Absent, |seen| &seen.task);
        match task {
            ObservedTask::Running { pid, started_at } if alive != Alive::No => {
                self.runs(
                    name,
                    Running {
                        pid: Some(*pid),
                        started_at: *started_at,
                        known_at: at,
                        hash,
                        stop: Stop::No,
                        hook: Hooking::No,
                        is_trusted: false,
                    },
                );
                self.remember_run(name);
            }
            ObservedTask::Unknown if alive == Alive::Perhaps => self.trust(name, hash, at, now),
            // Its sandbox is held by others than its shim.
            ObservedTask::Unknown if alive == Alive::Yes && self.has_run(name) => {
                self.trust(name, hash, at, now);
            }
            ObservedTask::Exited(exit) => self.ended(name, RunEnd::Seen(*exit), now),
            ObservedTask::Absent if self.has_run(name) => self.ended(name, self.lost(now), now),
            ObservedTask::Created | ObservedTask::Starting | ObservedTask::Absent | ObservedTask::Unknown
                if alive != Alive::No =>
            {
                self.prepare_again(name, hash, task);
            }
            ObservedTask::Absent if seen.is_none() => {
                // The runtime never heard of it: the agent ended between its record and the start, or took it down by an old record.
                // So it did not go with this sandbox, and what is begun in its place is not to stop.
                if let Some(record) = self.life.record.containers.get_mut(name) {
                    record.started_in = None;
                    record.stopping = None;
                }
                self.prepare_again(name, hash, task);
            }
            ObservedTask::Running { .. }
            | ObservedTask::Created
            | ObservedTask::Starting
            | ObservedTask::Absent
            | ObservedTask::Unknown => self.ended(name, self.lost(now), now),
        }
    }

    /// A run that is to be started, though it is not known with what. Where there is no process, whatever was known of one was of another, whose
    /// end could not be written down.
    pub(super) fn prepare_again(&mut self, name: &ContainerName, hash: u64, task: &ObservedTask) {
        if *task == ObservedTask::Absent
            && let Some(record) = self.life.record.containers.get_mut(name)
        {
            record.probed = Probed::default();
            record.hooked = Hooked::default();
        }
        self.set_run(name, Run::Preparing(again(hash, task)));
    }

    fn has_run(&self, name: &ContainerName) -> bool {
        self.life.record.containers.get(name).is_some_and(|record| record.has_run)
    }

    /// The end of a run that is not there any more.
    fn lost(&self, now: Now) -> RunEnd {
        match self.recording {
            Recording::Unsaved => RunEnd::Forgotten(now.wall),
            Recording::Saving { .. } | Recording::Saved(_) | Recording::Failed { .. } => {
                RunEnd::Lost(now.wall)
            }
        }
    }

    /// A run of an earlier sandbox: whatever became of it, it is over.
    fn adopt_earlier_run(&mut self, name: &ContainerName, seen: Option<&ObservedContainer>, now: Now) {
        let end = match seen.map(|seen| &seen.task) {
            Some(ObservedTask::Exited(exit)) => RunEnd::Seen(*exit),
            Some(
                ObservedTask::Running { .. }
                | ObservedTask::Created
                | ObservedTask::Starting
                | ObservedTask::Absent
                | ObservedTask::Unknown,
            )
            | None => self.lost(now),
        };
        self.ended(name, end, now);
    }

    /// A run of which only the shim knows more, and it does not answer: taken to run since it was begun, as the record was
    /// last shown, until the shim tells. One that was seen to run has begun.
    fn trust(&mut self, name: &ContainerName, hash: u64, known_at: Mono, now: Now) {
        let begun_at = self.life.record.containers.get(name).map_or(now.mono, |record| record.begun_at);
        let started_at = now.wall - now.mono.since(begun_at);
        let (stop, hook) = (Stop::No, Hooking::No);
        let is_trusted = !self.has_run(name);
        self.runs(name, Running { pid: None, started_at, known_at, hash, stop, hook, is_trusted });
    }

    /// Everything of the pod that the runtime has and the record no longer counts, and what an interrupted replacement of
    /// the sandbox may have left.
    fn leave_earlier(&mut self, observation: &Observation) {
        let uid: PodUid = self.life.record.uid.clone();
        let current = &self.life.record.sandbox_id;
        let is_wired = self.life.is_wired();
        let removals = &mut self.life.actual.removals;
        // Of one that only the runtime knows the attachment is as real as of one that the record tells of.
        let recorded = self.life.record.earlier_sandbox.iter();
        let others = observation.sandboxes.iter().filter(|seen| seen.pod == uid && seen.id != *current);
        for id in recorded.chain(others.map(|seen| &seen.id)) {
            removals.insert(Leftover::Sandbox(id.clone()), Removal::Due);
            if is_wired {
                removals.insert(Leftover::Network(id.clone()), Removal::Due);
                removals.insert(Leftover::Netns(id.clone()), Removal::Due);
            }
        }
        let containers = &self.life.record.containers;
        for seen in observation.containers.iter().filter(|seen| seen.pod == uid) {
            let is_current = containers.get(&seen.name).is_some_and(|record| record.id == seen.id);
            if !is_current {
                removals.insert(Leftover::Container(seen.id.clone()), Removal::Due);
            }
        }
    }
}

/// What the runtime tells of a run.
#[derive(Debug, Clone, Copy)]
struct SeenRun<'a> {
    seen: Option<&'a ObservedContainer>,
    /// When the looking began.
    at: Mono,
}

/// Whether the current sandbox runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alive {
    /// Its shim says so.
    Yes,
    /// Its shim is there and does not answer.
    Perhaps,
    /// It does not.
    No,
}

/// Takes the last sandbox of a pod, and the last run of each of its containers, as the runtime knows them.
fn take_last_runs(record: &mut PodRecord, spec: &Pod, observation: &Observation, now: Now) {
    let known = |seen: &&ObservedSandbox| seen.pod == spec.uid;
    if let Some(last) = observation.sandboxes.iter().filter(known).max_by_key(|seen| seen.attempt) {
        record.sandbox = last.attempt;
        record.sandbox_id = last.id.clone();
    }
    for container in spec.all_containers() {
        let runs = observation.containers.iter();
        let runs = runs.filter(|seen| seen.pod == spec.uid && seen.name == container.name);
        if let Some(last) = runs.max_by_key(|seen| seen.attempt) {
            let begun = ContainerRecord::begun(last.id.clone(), last.attempt, now.mono);
            // Whether its postStart hook was over is not known: what runs is taken for begun, as by a kubelet.
            let hooked = Hooked { post_start: PostStart::Over, ..Hooked::default() };
            let run = ContainerRecord { started_in: Some(record.sandbox), hooked, ..begun };
            record.containers.insert(container.name.clone(), run);
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{fixtures, id::ContainerId, spec::RestartPolicy};

    /// What the API server had of it counts, also of a pod of which nothing else is known.
    #[test]
    fn a_pod_without_a_record_began_when_its_source_says() {
        let now = Now { mono: Mono(std::time::Duration::from_secs(500)), wall: at(1000) };
        for (told, began) in [(None, at(1000)), (Some(at(900)), at(900)), (Some(at(2000)), at(2000))] {
            let spec = Arc::new(Pod { started_at: told, ..fixtures::pod(vec![fixtures::container("web")]) });
            let new = PodMachine::new(Arc::clone(&spec), now);
            let found = PodMachine::found(Arc::clone(&spec), &Observation::default(), now);
            // What was written down counts before what a source says later.
            let record = PodRecord { started_at: at(800), ..PodRecord::first(&spec, now.wall) };
            let known = PodMachine::restored(record, spec, &Observation::default(), now);
            let all = [new, found, known].map(|pod| pod.life.record.started_at);
            assert_eq!(all, [began, began, at(800)], "{told:?}");
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// The sandbox of both is gone. After the machine was switched off there is no record.
    #[test]
    fn what_ran_is_taken_for_killed_or_for_unknown_after_a_reboot() {
        let now = Now {
            mono: Mono(std::time::Duration::from_secs(500)),
            wall: Timestamp::from_second(1000).unwrap(),
        };
        let container = fixtures::container("web");
        let spec =
            Arc::new(Pod { restart_policy: RestartPolicy::Never, ..fixtures::pod(vec![container.clone()]) });
        let id = ContainerId::of(&spec.uid, &container.name, 0);
        let seen = ObservedContainer {
            id: id.clone(),
            pod: spec.uid.clone(),
            name: container.name.clone(),
            attempt: 0,
            sandbox: None,
            hash: 0,
            task: ObservedTask::Absent,
        };
        let observation = Observation { containers: vec![seen], ..Observation::default() };
        let mut record = PodRecord::first(&spec, now.wall);
        let begun = ContainerRecord::begun(id, 0, Mono(std::time::Duration::from_secs(400)));
        record.containers.insert(container.name.clone(), ContainerRecord { started_in: Some(0), ..begun });

        let known = PodMachine::restored(record, Arc::clone(&spec), &observation, now);
        let found = PodMachine::found(spec, &observation, now);
        let ends = [known, found].map(|pod| {
            let end = pod.life.record.containers[&container.name].exit.clone().unwrap();
            (end.exit.code, end.reason, end.exit.started_at, end.message)
        });
        let ran_since = Timestamp::from_second(900).ok();
        let none = String::new();
        assert_eq!(ends, [(137, None, ran_since, none.clone()), (255, Some("Unknown".into()), None, none)]);
    }

    /// The shim of another that both were under is gone, and with it what it knew; what holds their sandbox is there.
    #[test]
    fn a_run_that_went_with_its_shim_is_over_and_one_that_was_never_begun_begins() {
        let now = Now { mono: Mono(std::time::Duration::from_secs(500)), wall: at(1000) };
        let container = fixtures::container("web");
        let spec =
            Arc::new(Pod { restart_policy: RestartPolicy::Never, ..fixtures::pod(vec![container.clone()]) });
        let id = ContainerId::of(&spec.uid, &container.name, 0);
        let mut record = PodRecord::first(&spec, now.wall);
        let sandbox = ObservedSandbox {
            id: record.sandbox_id.clone(),
            pod: spec.uid.clone(),
            attempt: 0,
            ready: true,
            pid: 0,
        };
        let seen = ObservedContainer {
            id: id.clone(),
            pod: spec.uid.clone(),
            name: container.name.clone(),
            attempt: 0,
            sandbox: Some(sandbox.id.clone()),
            hash: 0,
            task: ObservedTask::Absent,
        };
        let observation =
            Observation { sandboxes: vec![sandbox], containers: vec![seen], ..Observation::default() };
        for has_run in [true, false] {
            let begun = ContainerRecord::begun(id.clone(), 0, Mono(std::time::Duration::from_secs(400)));
            let run = ContainerRecord { started_in: Some(0), has_run, ..begun };
            record.containers.insert(container.name.clone(), run);
            let pod = PodMachine::restored(record.clone(), Arc::clone(&spec), &observation, now);
            let end = pod.life.record.containers[&container.name].exit.as_ref().map(|end| end.exit.code);
            assert_eq!(end, has_run.then_some(137));
            assert_eq!(matches!(pod.life.run(&container.name), Run::Preparing(_)), !has_run);
        }
        // Its shim does not answer.
        for has_run in [true, false] {
            let mut observation = observation.clone();
            observation.containers[0].task = ObservedTask::Unknown;
            let run = record.containers.get_mut(&container.name).unwrap();
            run.has_run = has_run;
            let mut pod = PodMachine::restored(record.clone(), Arc::clone(&spec), &observation, now);
            assert_eq!(matches!(pod.life.run(&container.name), Run::Running(_)), has_run);
            // It was ended meanwhile, and what runs is looked at again.
            observation.containers[0].task = ObservedTask::Absent;
            observation.asked_at = Mono(std::time::Duration::from_secs(600));
            pod.observe(&observation, now);
            let end = pod.life.record.containers[&container.name].exit.as_ref().map(|end| end.exit.code);
            let has_ended = matches!(pod.life.run(&container.name), Run::Ended(_)) || end == Some(137);
            assert_eq!(has_ended, has_run, "{:?}", pod.life.run(&container.name));
        }
        // One that is found running is known to run from then on; of our own shims the sandbox tells.
        for (pid, expected) in [(0, true), (7, false)] {
            let mut observation = observation.clone();
            observation.sandboxes[0].pid = pid;
            observation.containers[0].task = ObservedTask::Running { pid: 9, started_at: at(900) };
            let pod = PodMachine::restored(record.clone(), Arc::clone(&spec), &observation, now);
            assert_eq!(pod.life.record.containers[&container.name].has_run, expected, "{pid}");
        }
    }
}
