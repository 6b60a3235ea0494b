//! When all containers of a pod begin anew, from KEP-5532: an end that a rule matches calls for it, all others are killed without a
//! grace period and without hooks, and then all begin as if none had been.

use berth_core::{
    id::{ContainerName, PodUid},
    pod::port::start::StartRequest,
    spec::{ContainerKind, RestartAction},
    time::{Mono, Now},
};

use super::{Account, KILLS_BEFORE_REMOVAL, Meant, Oracle, Run};

/// The reason of what was stopped for it.
const REASON: &str = "RestartingAllContainers";

impl Oracle {
    /// The first of those that begin anew is asked to start.
    pub(super) fn begins_anew(&mut self, pod: &PodUid, request: &StartRequest) {
        let account = &self.pods[pod];
        if request.container.kind == ContainerKind::Ephemeral || account.all_since_on_disk().is_none() {
            return;
        }
        let left = account.left_of_round();
        let broken = left.map(|left| format!("{pod}/{}: while {left} runs", request.container.name));
        self.judge("all containers begin anew when none of them runs", broken);
        self.pods.get_mut(pod).expect("looked up above").round += 1;
    }
}

impl Account {
    /// Since when all are to begin anew, by ends that were written down.
    pub(super) fn all_since_on_disk(&self) -> Option<Mono> {
        self.calls_for_all(|name, run| self.written_code(name, run).is_some())
    }

    /// The same, also by an end that the agent has heard of and could not write down.
    pub(super) fn all_since(&self) -> Option<Mono> {
        let is_known = |run: &Run| self.is_unwritten && run.is_told;
        self.calls_for_all(|name, run| self.written_code(name, run).is_some() || is_known(run))
    }

    /// The same, by ends that are known. What ends in a pod that has ended calls for nothing: a sidecar has no say in that.
    pub(super) fn calls_for_all(&self, is_known: impl Fn(&ContainerName, &Run) -> bool) -> Option<Mono> {
        let has_ended = self.believed().is_some_and(|record| record.terminal.is_some());
        self.calling(has_ended, is_known)
    }

    /// Whether the stop of a run began when all were to begin anew. That the pod has ended since gives it no more time.
    pub(super) fn was_hurried(&self, run: &Run, now: Now) -> bool {
        let began_before = |at| self.ends_since(now).is_none_or(|ends| at < ends);
        let calls = || self.calling(false, |name, run| self.written_code(name, run).is_some()).is_some();
        run.stopped.is_some_and(began_before) && calls()
    }

    fn calling(&self, has_ended: bool, is_known: impl Fn(&ContainerName, &Run) -> bool) -> Option<Mono> {
        let calling = self.spec.fixed_containers().filter_map(|one| {
            let last = self.last_run(&one.name)?;
            let counts = one.kind != ContainerKind::Sidecar || !has_ended;
            (counts && is_known(&one.name, last) && self.calls(&one.name, last)).then_some(last)
        });
        calling.map(|run| run.end().map_or(self.began.mono, |(_, at)| at)).min()
    }

    /// Whether the end of a run calls for all to begin anew: the first rule that matches its code counts.
    pub(super) fn calls(&self, name: &ContainerName, run: &Run) -> bool {
        let container = self.spec.fixed_containers().find(|one| one.name == *name);
        let (Some(container), Some(code)) = (container, self.code_of(name, run)) else { return false };
        if run.round != self.round || run.is_replaced() {
            return false;
        }
        let matches = container.restarts.rules.iter().find(|rule| rule.is_in == rule.codes.contains(&code));
        matches.is_some_and(|rule| rule.action == RestartAction::RestartAllContainers)
    }

    /// What of those that are to begin anew still runs, as far as anybody could know.
    fn left_of_round(&self) -> Option<&ContainerName> {
        let is_left = |run: &Run| {
            run.is_running() && run.kills < KILLS_BEFORE_REMOVAL && !run.is_unanswered() && !run.is_lost
        };
        let mut names = self.spec.fixed_containers().map(|one| &one.name);
        names.find(|name| self.runs_of(name).iter().any(is_left))
    }

    /// Whether the end of a run may be told to have come of that.
    pub(super) fn may_be_removed(&self, run: &Run, reason: &str) -> bool {
        let mut rules = self.spec.fixed_containers().flat_map(|one| &one.restarts.rules);
        let has_rule = rules.any(|rule| rule.action == RestartAction::RestartAllContainers);
        reason == REASON && has_rule && (run.term.is_some() || run.meant == Meant::ToStop)
    }

    /// Whether the pod is to end, for whatever reason.
    pub(super) fn ends(&self, now: Now) -> bool {
        self.ends_since(now).is_some()
    }
}
