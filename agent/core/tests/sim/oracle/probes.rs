//! Probes: what they said, counted once more, and what follows from it, from "Liveness, Readiness, and Startup Probes" of the
//! concepts of Kubernetes.
//!
//! Of a probe that decides what is not so yet, a failure may be one of an early try, which counts for nothing, and all of those
//! come within a period of the first question. So a startup probe may have failed for good a few answers later than is counted
//! here, and never earlier: whether it is why a run is to stop is told by when the record says that the stop began.

use std::time::Duration;

use berth_core::{
    effect::{Act, Effect},
    event::Outcome,
    failure::Failure,
    id::{OpId, PodUid},
    pod::port::probe::{ProbeAnswer, ProbeRequest},
    record::{Afterwards, ContainerRecord},
    spec::{Container, ContainerKind, ProbeKind, RestartPolicy},
    status::ContainerStatus,
    time::{Mono, Now},
};

use super::{Account, Oracle, Run, Trust, stops::Over};

/// What the probes of a run said.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Health {
    /// The startup probe has succeeded.
    pub(super) started: bool,
    /// What readiness was last.
    pub(super) ready: bool,
    /// Since when it is to stop since a probe failed.
    pub(super) failed: Option<Mono>,
    /// What it gets to end then.
    pub(super) grace: Duration,
    /// What follows that.
    pub(super) afterwards: Afterwards,
    /// When its startup probe was first asked.
    asked: Option<Mono>,
    /// Failures of that in a row that were no early tries.
    missed: u32,
    /// Successes and failures in a row, per kind.
    counts: [(u32, u32); 3],
}

impl Health {
    pub(super) fn has_started(&self, container: &Container) -> bool {
        container.probes.startup.is_none() || self.started
    }

    /// Whether its startup probe has failed, whatever early tries there were.
    fn never_started(&self, container: &Container) -> bool {
        container.probes.startup.as_ref().is_some_and(|probe| self.missed >= probe.failures)
    }

    /// The time that it gets at least, should a probe have failed.
    pub(super) fn shortest(&self) -> Duration {
        if self.failed.is_some() { self.grace } else { Duration::MAX }
    }

    /// It is asked from the beginning.
    pub(super) fn forget_answers(&mut self) {
        (self.asked, self.missed, self.counts) = Default::default();
    }

    /// What the next agent knows of it.
    /// The agent begins anew: it asks from the beginning, and knows what is on disk of the run.
    pub(super) fn restored(&mut self, record: Option<&ContainerRecord>) {
        self.forget_answers();
        let Some(record) = record else { return };
        (self.started, self.ready) = (record.probed.started, record.probed.ready);
        if record.stopping.is_none() {
            self.failed = None;
        }
    }
}

impl Oracle {
    /// How often something became unready since this was last asked.
    pub(crate) fn take_unready(&mut self) -> u64 {
        std::mem::take(&mut self.unready)
    }

    pub(super) fn probe_asked(&mut self, pod: &PodUid, op: OpId, request: &ProbeRequest, now: Now) {
        let account = &self.pods[pod];
        let wrong = match account.find(&request.id) {
            None => Some("it was never asked to start".to_owned()),
            Some((name, run)) => {
                let key = (pod.clone(), name.clone(), request.kind);
                let is_doubled = self.probes.values().any(|(open, _)| *open == key);
                self.probes.insert(op, (key, now.mono));
                let account = &self.pods[pod];
                let why = if is_doubled {
                    Some("it was asked already")
                } else {
                    account.is_unasked(run, request.kind)
                };
                why.map(str::to_owned)
            }
        };
        let broken = wrong.map(|why| format!("{pod}: {:?} of {}: {why}", request.kind, request.id));
        self.judge("a probe asks what runs, one question at a time", broken);
        let run = self.pods.get_mut(pod).and_then(|account| account.find_mut(&request.id));
        if let Some(run) = run.filter(|_| request.kind == ProbeKind::Startup) {
            run.health.asked.get_or_insert(now.mono);
        }
    }

    /// A probe was answered, and the agent hears it.
    pub(crate) fn probed(&mut self, effect: &Effect, outcome: &Result<Outcome, Failure>, now: Now) {
        let Effect::Pod { op, pod, act: Act::Probe(request) } = effect else { return };
        let asked = self.probes.remove(op).map(|(_, at)| at);
        let is_success = match outcome {
            Ok(Outcome::Probed(ProbeAnswer::Success | ProbeAnswer::Warning(_))) => true,
            Ok(Outcome::Probed(ProbeAnswer::Failure(_))) => false,
            Ok(_) | Err(_) => return,
        };
        let Some(account) = self.pods.get_mut(pod) else { return };
        let policy = account.spec.restart_policy;
        let pod_grace = account.spec.grace;
        let is_out_of_time = account.over(now) == Some(Over::Deadline);
        let is_void = account.find(&request.id).is_none_or(|(_, run)| match request.kind {
            // That it has started is so, whatever is to become of it.
            ProbeKind::Startup if is_success => account.is_void(run, request.kind).is_some(),
            ProbeKind::Startup | ProbeKind::Liveness if is_out_of_time => true,
            kind => account.is_unasked(run, kind).is_some(),
        });
        let Some(run) = account.find_mut(&request.id).filter(|_| !is_void) else { return };
        let container = std::sync::Arc::clone(&run.container);
        let Some(probe) = container.probes.of(request.kind) else { return };
        let health = &mut run.health;
        let (successes, failures) = &mut health.counts[request.kind as usize];
        (*successes, *failures) = if is_success { (*successes + 1, 0) } else { (0, *failures + 1) };
        let (is_good, is_bad) = (*successes >= probe.successes, *failures >= probe.failures);
        let is_early = health.asked.zip(asked).is_none_or(|(first, asked)| asked < first + probe.period);
        if request.kind == ProbeKind::Startup && !is_success && !is_early {
            health.missed += 1;
        }
        match request.kind {
            ProbeKind::Startup if is_good => (health.started, health.failed) = (true, None),
            ProbeKind::Readiness if is_good => health.ready = true,
            ProbeKind::Readiness if is_bad => {
                self.unready += u64::from(health.ready);
                health.ready = false;
            }
            ProbeKind::Startup | ProbeKind::Liveness if is_bad && health.failed.is_none() => {
                health.failed = Some(now.mono);
                health.grace = probe.grace.unwrap_or(pod_grace).max(Duration::from_secs(2));
                let is_over = policy == RestartPolicy::Never && container.kind == ContainerKind::Main;
                health.afterwards = if is_over { Afterwards::Never } else { Afterwards::Again };
            }
            ProbeKind::Startup | ProbeKind::Readiness | ProbeKind::Liveness => {}
        }
    }
}

impl Account {
    /// Why a run is not to be asked.
    fn is_unasked(&self, run: &Run, kind: ProbeKind) -> Option<&'static str> {
        let is_to_stop = self.unwanted.is_some() || self.last_phase.is_some();
        self.is_void(run, kind).or_else(|| match kind {
            ProbeKind::Startup | ProbeKind::Liveness if is_to_stop => Some("its pod ends"),
            ProbeKind::Startup | ProbeKind::Liveness if self.all_since_on_disk().is_some() => {
                Some("all begin anew")
            }
            ProbeKind::Startup if run.health.never_started(&run.container) => Some("it is to stop"),
            ProbeKind::Liveness if run.health.failed.is_some() => Some("it is to stop"),
            ProbeKind::Startup | ProbeKind::Readiness | ProbeKind::Liveness => None,
        })
    }

    /// Why an answer tells nothing of a run.
    fn is_void(&self, run: &Run, kind: ProbeKind) -> Option<&'static str> {
        let has_started = run.health.has_started(&run.container) && run.hooks.has_begun(&run.container);
        let is_last = self
            .find(&run.id)
            .is_some_and(|(name, _)| self.last_run(name).is_some_and(|last| last.id == run.id));
        if run.is_told || !is_last || (run.process.is_none() && run.trust == Trust::No) {
            return Some("it does not run");
        }
        if run.container.probes.of(kind).is_none() {
            return Some("it has no such probe");
        }
        match kind {
            _ if !run.hooks.has_begun(&run.container) => Some("it has not begun"),
            ProbeKind::Startup if has_started => Some("it has started"),
            ProbeKind::Readiness | ProbeKind::Liveness if !has_started => Some("it has not started"),
            ProbeKind::Startup | ProbeKind::Readiness | ProbeKind::Liveness => None,
        }
    }

    /// What is shown of a container that runs.
    pub(super) fn check_health(
        &self,
        shown: &ContainerStatus,
        run: &Run,
        broken: &mut Vec<(&'static str, Option<String>)>,
    ) {
        let container = &run.container;
        // What was taken to run may have been asked anew meanwhile, from the beginning.
        let is_asked = matches!(container.kind, ContainerKind::Main | ContainerKind::Sidecar);
        if !is_asked || run.trust != Trust::No || run.process.is_none() {
            return;
        }
        let started = run.health.has_started(container);
        let ready = started && (container.probes.readiness.is_none() || run.health.ready);
        let is_right = (shown.started, shown.ready) == (started, ready);
        let text = || format!("{}/{}: {shown:?}: {run:?}", self.spec.uid, shown.name);
        broken.push(("ready and started are what the probes said", (!is_right).then(text)));
        let stored = self.stored.as_ref().and_then(|record| record.containers.get(&shown.name));
        let Some(stored) = stored.filter(|_| !self.is_unwritten) else { return };
        let is_there = (container.probes.startup.is_none() || stored.probed.started == shown.started)
            && (container.probes.readiness.is_none() || !shown.ready || stored.probed.ready);
        broken.push(("a probe's verdict is on disk before it is shown", (!is_there).then(text)));
    }
}
