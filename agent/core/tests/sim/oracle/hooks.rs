//! Hooks: what they came to, and what waits for them, from "Container Lifecycle Hooks" and "Termination of Pods" of the concepts of
//! Kubernetes.

use std::time::Duration;

use berth_core::{
    event::Outcome,
    failure::Failure,
    id::{ContainerName, OpId, PodUid, SandboxId},
    pod::port::hook::{HookAnswer, HookRequest},
    record::{ContainerRecord, PostStart},
    spec::{Container, ContainerKind, Hook, HookMoment},
    time::{Mono, Now},
};

use super::{Account, Answer, KILLS_BEFORE_REMOVAL, Oracle, Run, Termed, stops::STOP_MIN};

/// What the hooks of a run came to, as far as an agent has heard.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Hooks {
    /// The one after its start ended well.
    pub(super) begun: bool,
    /// Since when it is to stop since that failed.
    pub(super) failed: Option<Mono>,
    /// The one before its stop signal has ended.
    pre_stopped: bool,
}

impl Hooks {
    /// Whether what waits for its start may go on.
    pub(super) fn has_begun(&self, container: &Container) -> bool {
        match container.lifecycle.post_start {
            // It passes with time, which no effect tells of.
            None | Some(Hook::Sleep(_)) => true,
            Some(Hook::Exec(_) | Hook::Http(_) | Hook::Tcp) => self.begun,
        }
    }

    /// It is known to have started: a hook that nobody can run has failed.
    pub(super) fn started(&mut self, container: &Container, now: Now) {
        if container.lifecycle.post_start == Some(Hook::Tcp) {
            self.failed.get_or_insert(now.mono);
        }
    }

    /// What the next agent knows.
    /// The agent begins anew, and knows what is on disk of the run.
    pub(super) fn restored(&mut self, record: Option<&ContainerRecord>) {
        let Some(record) = record else { return };
        self.begun = record.hooked.post_start == PostStart::Over;
        self.pre_stopped = record.hooked.pre_stop;
        if !matches!(record.hooked.post_start, PostStart::Failed(_)) {
            self.failed = None;
        }
    }
}

impl Oracle {
    pub(super) fn hook_asked(&mut self, pod: &PodUid, op: OpId, request: &HookRequest, now: Now) {
        let key = (request.id.clone(), request.moment);
        let is_doubled = self.hooks.values().any(|(_, open)| *open == key);
        let why =
            if is_doubled { Some("it runs already") } else { self.pods[pod].is_no_time_for(request, now) };
        self.hooks.insert(op, (pod.clone(), key));
        let broken = why.map(|why| format!("{pod}: {:?} {}: {why}", request.moment, request.id));
        self.judge("a hook is run when it is its time, once at a time", broken);
    }

    pub(super) fn hook_given_up(&mut self, op: OpId) {
        self.hooks.remove(&op);
    }

    /// The agent hears what a hook came to; whether it is one.
    pub(super) fn hook_answered(&mut self, op: OpId, outcome: &Result<Outcome, Failure>, now: Now) -> bool {
        let Some((pod, (id, moment))) = self.hooks.remove(&op) else { return false };
        let Some(account) = self.pods.get_mut(&pod) else { return true };
        let is_to_stop = account.find(&id).is_some_and(|(_, run)| !account.reasons(run, now).is_empty());
        let Some(run) = account.find_mut(&id).filter(|run| !run.is_told) else { return true };
        let is_well = match outcome {
            Ok(Outcome::Hooked(HookAnswer::Done | HookAnswer::WithoutTls(_))) => true,
            Ok(_) => false,
            // It is run again.
            Err(_) => return true,
        };
        match moment {
            HookMoment::PreStop => run.hooks.pre_stopped = true,
            HookMoment::PostStart if is_well => run.hooks.begun = true,
            HookMoment::PostStart if !is_to_stop => run.hooks.failed = run.hooks.failed.or(Some(now.mono)),
            HookMoment::PostStart => {}
        }
        true
    }
}

impl Account {
    /// Why a hook is not to be run now.
    fn is_no_time_for(&self, request: &HookRequest, now: Now) -> Option<&'static str> {
        let Some((_, run)) = self.find(&request.id) else { return Some("it was never asked to start") };
        let has_hook = match run.container.lifecycle.hook(request.moment) {
            Some(Hook::Exec(_) | Hook::Http(_)) => true,
            None | Some(Hook::Sleep(_) | Hook::Tcp) => false,
        };
        let is_to_stop = !self.reasons(run, now).is_empty();
        let is_with_all = self.all_since_on_disk().is_some() && !self.ends(now);
        match request.moment {
            _ if !has_hook => Some("it has no such hook"),
            _ if run.answer != Answer::Started => Some("nobody knows that it runs"),
            _ if run.is_told => Some("it has ended"),
            HookMoment::PostStart if run.hooks.begun => Some("it was over"),
            // One that waits for room goes on until then.
            HookMoment::PostStart if is_to_stop && !run.waits_for_room => Some("it is to stop"),
            HookMoment::PreStop if !is_to_stop => Some("it is to go on"),
            HookMoment::PreStop if is_with_all => Some("all begin anew"),
            HookMoment::PreStop if run.termed != Termed::No => Some("it has its stop signal"),
            HookMoment::PreStop if run.hooks.pre_stopped => Some("it was over"),
            HookMoment::PostStart | HookMoment::PreStop => None,
        }
    }

    /// "The container's stop signal comes after its `preStop` hook has ended", unless the grace period is over.
    pub(super) fn is_held_by_hook(
        &self,
        name: &ContainerName,
        run: &Run,
        now: Now,
    ) -> Option<Result<(), String>> {
        let hook = run.container.lifecycle.pre_stop.as_ref()?;
        let since = self.reasons(run, now).into_iter().min()?;
        let waited = now.mono.since(since);
        let is_over = match hook {
            Hook::Sleep(time) => waited >= *time,
            // It fails at once.
            Hook::Tcp => true,
            Hook::Exec(_) | Hook::Http(_) => run.hooks.pre_stopped,
        };
        let longest = self.grace().min(run.health.shortest()).max(Duration::from_millis(1));
        let is_right = is_over
            || self.all_since().is_some()
            || run.termed != Termed::No
            || self.is_time_up(now)
            || waited >= longest;
        let text = || format!("{}/{name}: after {waited:?}: {run:?}", self.spec.uid);
        // What a probe gives is time, though the pod gives none.
        let is_given_time = run.health.failed == Some(since)
            && self.reasons(run, now).len() == 1
            && run.health.grace > STOP_MIN;
        let has_no_time = self.spec.grace.is_zero() && !is_given_time;
        Some(if is_right || has_no_time { Ok(()) } else { Err(text()) })
    }

    /// "A container starts when those before it have, with their `postStart` hooks".
    pub(super) fn is_before_its_turn(
        &self,
        name: &ContainerName,
        sandbox: &SandboxId,
    ) -> Option<Result<(), String>> {
        if self.kind(name)? != ContainerKind::Main {
            return None;
        }
        let before = self.spec.containers.iter().take_while(|one| one.name != *name);
        let waits_for = |one: &&std::sync::Arc<Container>| {
            let is_there = |run: &&Run| run.is_running() && run.kills < KILLS_BEFORE_REMOVAL;
            let last = self.last_run(&one.name).filter(|run| run.sandbox == *sandbox).filter(is_there);
            last.is_some_and(|run| run.answer == Answer::Started && !run.hooks.has_begun(&run.container))
        };
        let mut held = before.into_iter().filter(|one| one.lifecycle.post_start.is_some()).peekable();
        held.peek()?;
        Some(match held.find(waits_for) {
            Some(one) => Err(format!("{}/{name}: the hook of {} is not over", self.spec.uid, one.name)),
            None => Ok(()),
        })
    }
}
