//! How a pod ends: why, in which order, with how much time, and that the intent is on disk first.

use std::{sync::Arc, time::Duration};

use berth_core::{
    id::{ContainerId, ContainerName, PodUid, SandboxId},
    pod::port::signal::StopSignal,
    record::{Afterwards, PodRecord},
    spec::{Container, ContainerKind, Pod, RestartPolicy},
    time::{Mono, Now},
};

use super::{Account, Answer, KILLS_BEFORE_REMOVAL, Meant, Oracle, Run, Termed, code_in};

/// What a container gets at least between its stop signal and SIGKILL, however late its turn came.
pub(super) const STOP_MIN: Duration = Duration::from_secs(2);

/// How late an agent may be that has nothing else to do.
const LATENESS: Duration = Duration::from_millis(1);

/// Why a pod is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// It was active for longer than it may.
    Deadline,
    /// An init container failed and does not run again.
    InitFailed,
    /// No main container runs again; whether all ended well.
    Done { succeeded: bool },
}

impl Oracle {
    pub(super) fn signal_asked(&mut self, pod: &PodUid, id: &ContainerId, signal: &StopSignal, now: Now) {
        let is_asked = |(_, run): &(&ContainerName, &Run)| run.answer != Answer::Unasked;
        let is_to_what_is_there = self.pods[pod].find(id).filter(is_asked).is_some();
        self.judge("signals go to what was started", (!is_to_what_is_there).then(|| format!("{pod}: {id}")));
        let account = &self.pods[pod];
        let Some((name, run)) = account.find(id).filter(is_asked) else { return };
        let who = format!("{pod}/{name}");
        let why = account.reasons(run, now);
        // What runs is stopped also while that cannot be written down.
        let is_meant = account.is_unwritten
            || account.is_overtaken(run)
            || means_to_stop(account.intended.as_ref(), name);
        let order = account.stop_order(name, run, now);
        let held = account.is_held_by_hook(name, run, now);
        let kill = (*signal == StopSignal::Kill).then(|| account.may_be_killed(name, run, now));
        self.judge(
            "a signal has a reason",
            why.is_empty()
                .then(|| format!("{who}: {signal:?} for no reason: {run:?} {:?}", account.spec.containers)),
        );
        self.judge("the intent to stop is recorded before a signal", (!is_meant).then(|| who.clone()));
        match kill {
            Some(kill) => {
                self.judge("SIGKILL comes after the stop signal and the grace period", kill.err());
            }
            None => {
                if let Some(order) = order {
                    self.judge("sidecars stop after all others, the last first", order.err());
                }
                if let Some(held) = held {
                    self.judge("the stop signal waits for the hook before it", held.err());
                }
            }
        }
    }

    /// A signal is sent: whatever was asked, what is on disk counts.
    pub(crate) fn signal_sent(&mut self, pod: &PodUid, id: &ContainerId, signal: &StopSignal) {
        let Some(account) = self.pods.get(pod) else { return };
        let Some((name, run)) = account.find(id) else { return };
        // Late, it meets nothing any more.
        if !run.is_running() {
            return;
        }
        let is_stop = matches!(signal, StopSignal::Stop(_));
        let is_meant = account.is_unwritten || means_to_stop(account.stored.as_ref(), name);
        let broken = (!is_meant).then(|| format!("{pod}/{name}"));
        self.judge("the intent to stop is on disk before a signal", broken);
        let run = self.pods.get_mut(pod).and_then(|account| account.find_mut(id));
        if is_stop {
            run.expect("looked up above").termed = Termed::Sent;
        }
    }

    /// A container is removed, and with it its process: that is SIGKILL too.
    pub(crate) fn removed(&mut self, pod: &PodUid, id: &ContainerId, was_silent: bool, now: Now) {
        let Some(account) = self.pods.get(pod) else { return };
        let Some((name, run)) = account.find(id) else { return };
        // A shim that hung when its sandbox was given up may go on, and do what it was asked for before.
        let is_given_up = was_silent && account.is_in_an_earlier_sandbox(run);
        let is_on_disk = account.stored.as_ref().is_some_and(|record| code_in(record, name, run).is_some());
        let is_by_old_record = account.is_taken_down_by_old_record();
        if !is_given_up {
            self.check_removal(pod, id, now);
        }
        let run = self.pods.get_mut(pod).and_then(|account| account.find_mut(id));
        if let Some(run) = run {
            run.is_lost |= !is_on_disk;
            run.taken_down = run.taken_down.or(is_by_old_record.then_some(now.mono));
        }
    }

    /// A sandbox is removed, and with it what is left of containers in it.
    pub(crate) fn sandbox_removed(&mut self, pod: &PodUid, sandbox: &SandboxId, now: Now) {
        let Some(account) = self.pods.get_mut(pod) else { return };
        if !account.is_taken_down_by_old_record() {
            return;
        }
        for run in account.runs.values_mut().flatten().filter(|run| run.sandbox == *sandbox) {
            run.taken_down.get_or_insert(now.mono);
        }
    }

    /// Nothing happens until time passes: what was asked to stop is not given more time than it has.
    pub(crate) fn check_overdue(&mut self, is_silent: impl Fn(&SandboxId) -> bool, now: Now) {
        let (mut broken, mut deleted) = (Vec::new(), Vec::new());
        for (pod, account) in &self.pods {
            for run in account.runs.values().flatten().filter(|run| run.is_running()) {
                let Some(term) = run.term.filter(|_| run.kills == 0 && !is_silent(&run.sandbox)) else {
                    continue;
                };
                let waited = now.mono.since(term);
                let given = account.ends_by.map_or(Duration::ZERO, |by| by.since(term));
                let longest = account.grace().max(STOP_MIN).max(run.health.grace).max(given) + LATENESS;
                broken.push((waited > longest).then(|| format!("{pod}: {waited:?} of {longest:?}: {run:?}")));
                let by = account.ends_by.filter(|_| account.spec.deletion.is_some());
                let by = by.map(|by| by.max(term + STOP_MIN) + LATENESS);
                let late = by.filter(|by| *by < now.mono).map(|by| format!("{pod}: by {by:?}: {run:?}"));
                deleted.push(late);
            }
        }
        for broken in deleted {
            self.judge("what is to be deleted ends when the API said", broken);
        }
        for broken in broken {
            self.judge("what does not end by its stop signal is killed when its time is up", broken);
        }
    }

    fn check_removal(&mut self, pod: &PodUid, id: &ContainerId, now: Now) {
        let Some(account) = self.pods.get(pod) else { return };
        let Some((name, run)) = account.find(id) else { return };
        if !run.is_running() {
            return;
        }
        let broken = if run.is_unanswered() {
            // Nobody knows that there is a process, and nobody could say: it goes when its time is up.
            account.may_be_given_up(name, run, now).err()
        } else if run.kills < KILLS_BEFORE_REMOVAL {
            Some(format!("{pod}/{name}: removed after {} kills while it runs", run.kills))
        } else {
            account.may_be_killed(name, run, now).err()
        };
        self.judge("a process is removed only when kills have no effect", broken);
    }
}

impl Run {
    /// Whether it was stopped to follow another spec, and so runs again whatever the policy. What is stopped with its sandbox is
    /// not, whether the other spec came meanwhile or the agent learned only then that it runs; what was to stop and ended before
    /// its signal is: nobody can tell the one from the other.
    pub(super) fn is_replaced(&self) -> bool {
        if self.hooks.failed.is_some() {
            return false;
        }
        let failed = self.health.failed.filter(|_| self.is_stopped_for_its_health());
        let why = [self.changed, failed].into_iter().flatten().min();
        let is_first = failed == why || self.waits_for_room;
        let is_final = self.health.afterwards == Afterwards::Never && failed.is_some() && is_first;
        let Some(changed) = why.filter(|_| !is_final && (self.term.is_some() || self.meant == Meant::ToStop))
        else {
            return false;
        };
        let known = self.term.map_or(self.learned, |term| term.min(self.learned));
        self.given_up.is_none_or(|given_up| changed < given_up && known < given_up)
    }

    /// Whether a probe that failed was why its stop began. That of a startup probe may have been an early try.
    fn is_stopped_for_its_health(&self) -> bool {
        let others = [self.changed, self.given_up].into_iter().flatten().min();
        let is_first = |began| others.is_none_or(|other| began < other);
        self.health.has_started(&self.container) || self.stopped.is_some_and(is_first)
    }
}

fn means_to_stop(record: Option<&PodRecord>, name: &ContainerName) -> bool {
    record.is_some_and(|record| {
        record.termination.is_some()
            || record.containers.get(name).is_some_and(|container| container.stopping.is_some())
    })
}

impl Account {
    /// Since when the pod is to end, if it is.
    pub(super) fn ends_since(&self, now: Now) -> Option<Mono> {
        [self.unwanted, self.ended_since(now)].into_iter().flatten().min()
    }

    /// The same, of its own accord.
    fn ended_since(&self, now: Now) -> Option<Mono> {
        let deadline = self.deadline().filter(|at| *at <= now.mono);
        // It may have been over before its time was up.
        let over = match self.over_by_ends(|name, run| self.is_known(name, run)) {
            Some(Over::Done { .. }) => Some(self.ends_of(&self.spec.containers).max()),
            Some(Over::InitFailed | Over::Deadline) => Some(self.ends_of(&self.spec.init_containers).min()),
            None => None,
        };
        // Of a run without a process nobody knows when it failed: not before the pod began.
        let over = over.map(|at| at.unwrap_or(self.began.mono));
        [deadline, over].into_iter().flatten().min()
    }

    /// Its source wants it to end, or has it no more. What the API gives a deletion counts before what the pod asks for, and no later
    /// word gives it more.
    pub(super) fn is_to_end(&mut self, spec: &Pod, now: Now) {
        let given = spec.deletion.unwrap_or(spec.grace);
        let is_news = self.unwanted.is_none() || spec.deletion.is_some();
        self.unwanted.get_or_insert(now.mono);
        if is_news {
            let by = now.mono + given.max(Duration::from_secs(1));
            self.ends_by = Some(self.ends_by.map_or(by, |known| known.min(by)));
        }
    }

    pub(super) fn is_time_up(&self, now: Now) -> bool {
        self.ends_by.is_some_and(|by| by <= now.mono)
    }

    /// The shortest time that it has to end, from some moment on.
    fn shortest(&self, from: Mono) -> Duration {
        self.ends_by.map_or(self.grace(), |by| by.since(from).min(self.grace()))
    }

    /// When the last runs of containers ended.
    fn ends_of(&self, containers: &[Arc<Container>]) -> impl Iterator<Item = Mono> {
        let last = containers.iter().filter_map(|one| self.last_run(&one.name)?.end());
        last.map(|(_, at)| at)
    }

    /// Whether it goes while its last record could not be written: the next agent goes by the old one.
    fn is_taken_down_by_old_record(&self) -> bool {
        self.is_unwritten && self.unwanted.is_some()
    }

    /// When its time is up. How long it was active when the agent that is up took it in is told by the wall clock, as under the kubelet,
    /// but once; what an earlier agent wrote down stays.
    fn deadline(&self) -> Option<Mono> {
        let longest = self.spec.active_deadline?;
        let before = self.taken_in.wall.duration_since(self.began.wall);
        let left = longest.saturating_sub(Duration::try_from(before).unwrap_or_default());
        Some(self.overdue.unwrap_or(self.taken_in.mono + left))
    }

    /// The next agent takes it in.
    pub(super) fn take_in(&mut self, now: Now) {
        let has_ended = self.stored.as_ref().is_some_and(|record| record.terminal.is_some());
        self.overdue = self.deadline().filter(|at| has_ended && *at <= now.mono);
        self.taken_in = now;
    }

    /// Whether a signal waited for the record while its sandbox went, which that record tells of: it meets nothing.
    fn is_overtaken(&self, run: &Run) -> bool {
        !run.is_running() && self.is_in_an_earlier_sandbox(run)
    }

    fn is_in_an_earlier_sandbox(&self, run: &Run) -> bool {
        self.intended.as_ref().is_some_and(|record| record.sandbox_id != run.sandbox)
    }

    /// Since when a container is to stop, for each reason that there is.
    pub(super) fn reasons(&self, run: &Run, now: Now) -> Vec<Mono> {
        let own = [run.changed, run.given_up, run.health.failed, run.hooks.failed];
        own.into_iter().chain([self.ends_since(now), self.all_since()]).flatten().collect()
    }

    /// "Once the grace period has expired, the kubelet triggers forcible shutdown": not before, and not without a stop
    /// signal before it.
    fn may_be_killed(&self, name: &ContainerName, run: &Run, now: Now) -> Result<(), String> {
        let who = format!("{}/{name}", self.spec.uid);
        let Some(first) = self.reasons(run, now).into_iter().min() else {
            return Err(format!("{who}: killed for no reason"));
        };
        let waited = now.mono.since(first);
        let is_hurried = self.all_since().is_some() || self.was_hurried(run, now);
        let longest = if is_hurried { STOP_MIN } else { Duration::MAX };
        let others = [self.ended_since(now), run.changed, run.given_up, run.hooks.failed];
        let grace = match others.into_iter().flatten().min() {
            _ if self.is_time_up(now) || is_hurried => Duration::ZERO,
            Some(at) if at <= now.mono && now.mono.since(at) >= self.grace() => Duration::ZERO,
            Some(_) if run.health.failed.is_none() => self.grace(),
            None if run.health.failed.is_none() => self.ends_by.map_or(Duration::ZERO, |by| by.since(first)),
            Some(_) | None => run.health.grace,
        };
        if waited < grace {
            return Err(format!("{who}: killed after {waited:?} of {grace:?}"));
        }
        match run.term {
            Some(at) if now.mono.since(at) + LATENESS < STOP_MIN => {
                Err(format!("{who}: killed {:?} after its stop signal", now.mono.since(at)))
            }
            // One that is known too late gets none.
            _ if run.termed == Termed::No
                && run.learned < first + self.shortest(first).min(run.health.shortest()).min(longest) =>
            {
                Err(format!("{who}: killed without a stop signal"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// A start that nobody answered is looked into until the grace period is over.
    fn may_be_given_up(&self, name: &ContainerName, run: &Run, now: Now) -> Result<(), String> {
        let first = self.reasons(run, now).into_iter().min();
        let waited = first.map(|first| now.mono.since(first));
        let grace = self.all_since().map_or(self.grace(), |_| self.grace().min(STOP_MIN));
        if self.is_time_up(now) || waited.is_some_and(|waited| waited >= grace) {
            return Ok(());
        }
        Err(format!("{}/{name}: removed unlooked {waited:?} after it was to stop: {run:?}", self.spec.uid))
    }

    /// "The Pod's main containers terminate before the sidecars, which terminate in the opposite order of their appearance",
    /// unless the grace period is over.
    fn stop_order(&self, name: &ContainerName, run: &Run, now: Now) -> Option<Result<(), String>> {
        if self.kind(name)? != ContainerKind::Sidecar {
            return None;
        }
        let since = self.ends_since(now)?;
        let since = run.given_up.map_or(since, |given_up| given_up.min(since));
        // A pod that gives no time has no order, but for its own end, which has a second.
        let is_at_once = run.given_up.is_some() && self.spec.grace.is_zero();
        if run.changed.is_some()
            || run.health.failed.is_some()
            || run.hooks.failed.is_some()
            || is_at_once
            || self.all_since().is_some()
            || self.is_time_up(now)
            || now.mono.since(since) >= self.grace()
        {
            return None;
        }
        // What no kill ends is removed as it is, and waited for no longer.
        let runs = |run: &Run| run.is_running() && run.kills < KILLS_BEFORE_REMOVAL;
        let unlearned = |one: &ContainerName| self.last_run(one).is_some_and(Run::is_unanswered);
        let is_waited_for = |one: &ContainerName| self.runs_of(one).iter().any(runs) && !unlearned(one);
        let others = self.spec.containers.iter();
        let sidecars = self.spec.init_containers.iter().filter(|one| one.kind == ContainerKind::Sidecar);
        let after = sidecars.skip_while(|one| one.name != *name).skip(1);
        let mut before = others.chain(after).map(|one| &one.name);
        Some(match before.find(|one| is_waited_for(one)) {
            Some(other) => Err(format!("{}/{name}: told to stop while {other} runs", self.spec.uid)),
            None => Ok(()),
        })
    }

    /// Whether and why the pod is over, by what happened.
    pub(super) fn over(&self, now: Now) -> Option<Over> {
        self.over_by(now, |name, run| self.is_known(name, run))
    }

    fn is_known(&self, name: &ContainerName, run: &Run) -> bool {
        run.is_told
            || run.end().is_none()
            || run.shown_code.is_some()
            || self.written_code(name, run).is_some()
    }

    /// As [`over`](Self::over), by ends that were written down: until then termination messages are read.
    pub(super) fn over_by_record(&self, now: Now) -> Option<Over> {
        self.over_by(now, |name, run| self.written_code(name, run).is_some())
    }

    fn over_by(&self, now: Now, is_known: impl Fn(&ContainerName, &Run) -> bool) -> Option<Over> {
        if self.deadline().is_some_and(|at| at <= now.mono) {
            return Some(Over::Deadline);
        }
        self.over_by_ends(is_known)
    }

    fn over_by_ends(&self, is_known: impl Fn(&ContainerName, &Run) -> bool) -> Option<Over> {
        if self.calls_for_all(&is_known).is_some() {
            return None;
        }
        let policy = self.spec.restart_policy;
        let code = |name: &ContainerName| {
            let last = self.last_run(name).filter(|last| last.round == self.round)?;
            let has_ended = !last.is_running() || last.may_be_unknown();
            self.code_of(name, last).filter(|_| is_known(name, last) && has_ended && !last.is_replaced())
        };
        let inits = self.spec.init_containers.iter().filter(|one| one.kind == ContainerKind::Init);
        if policy == RestartPolicy::Never && inits.filter_map(|one| code(&one.name)).any(|code| code != 0) {
            return Some(Over::InitFailed);
        }
        let codes: Option<Vec<u32>> = self.spec.containers.iter().map(|one| code(&one.name)).collect();
        let codes = codes?;
        let succeeded = codes.iter().all(|code| *code == 0);
        match policy {
            RestartPolicy::Always => None,
            RestartPolicy::OnFailure => succeeded.then_some(Over::Done { succeeded }),
            RestartPolicy::Never => Some(Over::Done { succeeded }),
        }
    }
}
