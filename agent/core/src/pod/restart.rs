//! Whether and when a container that ended runs again.
//!
//! Source: `pkg/kubelet/kuberuntime/kuberuntime_manager.go` `doBackOff`, `pkg/kubelet/container/helpers.go`
//! `ShouldContainerBeRestarted`, `k8s.io/client-go/util/flowcontrol/backoff.go`. The first restart is at once; each
//! further one waits twice as long, counted from the end of the run before.

use std::{mem, time::Duration};

use super::{
    actual::{Life, Run, Stage},
    port::start::START_ERROR,
};
use crate::{
    id::digest,
    record::{ContainerRecord, ExitRecord, RestartBackoff},
    spec::{Container, ContainerKind, OwnRestarts, RestartAction, RestartPolicy},
    time::Mono,
};

/// The first delay between an exit and the next run (`backOffPeriod` of `pkg/kubelet/kubelet.go`).
pub(super) const CRASH_BACKOFF_FIRST: Duration = Duration::from_secs(10);

/// Earlier failures are forgiven when the last restart is longer ago, however long the longest delay is and whether the
/// container runs or waits (`crashLoopBackOff.HasExpiredFunc` of `pkg/kubelet/kubelet.go`, and its `GC`).
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);

/// Versions of a container whose back-offs are kept beside that of the current one; the latest stay.
const OTHERS_MAX: usize = 8;

/// What has a back-off of its own within a container's life: another image or other resources make it another, which
/// starts at once. Source: `GetBackoffKey` of `pkg/kubelet/kuberuntime/helpers.go`.
#[must_use]
pub fn back_off_key(container: &Container) -> String {
    digest(&[container.image.as_str(), &format!("{:?}", container.resources)])
}

/// A container is wanted as another from now on. The back-off of what it was is kept until it is forgiven, and goes on
/// should that come back, as an entry of `flowcontrol.Backoff` does.
pub(super) fn change_back_off(record: &mut ContainerRecord, old: &Container, new: &Container, now: Mono) {
    let others = &mut record.other_backoffs;
    let (old, new) = (back_off_key(old), back_off_key(new));
    if old == new {
        return;
    }
    others.insert(old, mem::take(&mut record.backoff));
    others.retain(|_, backoff| backoff.delay_ms > 0 && !is_forgiven(backoff, now));
    record.backoff = others.remove(&new).unwrap_or_default();
    while others.len() > OTHERS_MAX {
        let oldest = others.iter().min_by_key(|(_, backoff)| backoff.since).map(|(key, _)| key.clone());
        oldest.and_then(|key| others.remove(&key));
    }
}

/// Whether a container that ended with `code` runs again, in a pod of this policy. Source: `ContainerShouldRestart` of
/// `pkg/api/v1/pod/util.go`.
#[must_use]
pub(super) fn runs_again(container: &Container, pod: RestartPolicy, code: u32) -> bool {
    match container.kind {
        ContainerKind::Sidecar => true,
        ContainerKind::Main => has_another_run(&container.restarts, pod, code),
        ContainerKind::Init => code != 0 && has_another_run(&container.restarts, pod, code),
        ContainerKind::Ephemeral => false,
    }
}

fn has_another_run(own: &OwnRestarts, pod: RestartPolicy, code: u32) -> bool {
    match (ruled(own, code), own.policy.unwrap_or(pod)) {
        (Some(RestartAction::Restart | RestartAction::RestartAllContainers), _)
        | (None, RestartPolicy::Always) => true,
        (None, RestartPolicy::OnFailure) => code != 0,
        (None, RestartPolicy::Never) => false,
    }
}

/// What the rules of a container say of an end with `code`: the first that matches. Source:
/// `FindMatchingContainerRestartRule` of `pkg/api/v1/pod/util.go`.
#[must_use]
pub(super) fn ruled(own: &OwnRestarts, code: u32) -> Option<RestartAction> {
    let rule = own.rules.iter().find(|rule| rule.codes.contains(&code) == rule.is_in);
    rule.map(|rule| rule.action)
}

impl Life {
    /// Whether a container of the pod may be started yet: one that has not run, or one that runs again.
    #[must_use]
    pub fn may_start(&self) -> bool {
        let is_to_come = || self.spec.all_containers().any(|container| self.may_run_yet(container));
        self.stage() == Stage::Run && (self.record.restarting.is_some() || is_to_come())
    }

    fn may_run_yet(&self, container: &Container) -> bool {
        let Some(record) = self.record.containers.get(&container.name) else { return true };
        let policy = self.spec.restart_policy;
        match (self.run(&container.name), &record.exit) {
            (Run::Preparing(_) | Run::Starting(_), _) | (Run::Idle | Run::BackingOff, None) => true,
            _ if container.kind == ContainerKind::Ephemeral => false,
            (Run::Idle | Run::BackingOff, Some(exit)) => {
                self.record.is_replaced(record) || runs_again(container, policy, exit.exit.code)
            }
            (Run::Running(_) | Run::Ended(_), _) => {
                self.record.is_replaced(record) || may_run_again(container, policy)
            }
        }
    }
}

/// Whether there is an end after which a container runs again.
fn may_run_again(container: &Container, pod: RestartPolicy) -> bool {
    let OwnRestarts { policy, rules } = &container.restarts;
    container.kind == ContainerKind::Sidecar
        || policy.unwrap_or(pod) != RestartPolicy::Never
        || !rules.is_empty()
}

/// Whether a container that is stopped since a probe failed runs again: no rule counts, since it had not ended by itself. Source:
/// `computePodActions` of `pkg/kubelet/kuberuntime/kuberuntime_manager.go`.
#[must_use]
pub(super) fn runs_again_unhealthy(container: &Container, pod: RestartPolicy) -> bool {
    let policy = container.restarts.policy.unwrap_or(pod);
    container.kind == ContainerKind::Sidecar || policy != RestartPolicy::Never
}

/// Whether a run ended before it began.
#[must_use]
pub(super) fn could_not_start(exit: &ExitRecord) -> bool {
    exit.reason.as_deref() == Some(START_ERROR)
}

/// When the next run may begin.
#[must_use]
pub(super) fn due(record: &ContainerRecord, exit: &ExitRecord) -> Mono {
    let backoff = &record.backoff;
    if is_forgiven(backoff, exit.at) {
        return exit.at;
    }
    // The first moment at which it is forgiven.
    let forgiven = backoff.since + FORGIVEN_AFTER + Duration::from_millis(1);
    forgiven.min(exit.at + Duration::from_millis(backoff.delay_ms))
}

/// When the next run may begin of one that was stopped alone so that it runs again. The kubelet decides that by what it saw before the stop:
/// by the end of the run before. While it had not waited long enough after that one, it waits after this one. Source: `SyncPod` of
/// `pkg/kubelet/kuberuntime/kuberuntime_manager.go`, whose `doBackOff` is given the status from before the kill.
#[must_use]
pub(super) fn due_after_a_stop(record: &ContainerRecord, exit: &ExitRecord) -> Mono {
    // The ends before all began anew count for nothing.
    let before = record.last_exit.as_ref().filter(|_| !record.anew);
    let is_backing_off = before.is_some_and(|before| due(record, before) > exit.at);
    if is_backing_off { due(record, exit) } else { exit.at }
}

/// Whether a restart that was decided and never begun is one of another version by now, whose own back-off goes on.
#[must_use]
pub(super) fn is_of_another(record: &ContainerRecord) -> bool {
    let RestartBackoff { since, .. } = record.backoff;
    let is_restart = record.exit.is_none() && record.last_exit.is_some() && !record.anew;
    is_restart && since != record.begun_at
}

/// The back-off after the next run, which is begun now. A first run that was stopped so that it runs again counts for nothing, nor does the first
/// since all began anew.
#[must_use]
pub(super) fn next_back_off(
    record: &ContainerRecord,
    stopped: Stopped,
    longest: Duration,
    now: Mono,
) -> RestartBackoff {
    if stopped == Stopped::Alone && record.last_exit.is_none() {
        return in_force(Duration::ZERO, now);
    }
    if stopped == Stopped::Alone && record.anew {
        return RestartBackoff { since: now, ..record.backoff };
    }
    let delay_ms = record.backoff.delay_ms;
    if delay_ms == 0 || is_forgiven(&record.backoff, now) {
        return first_back_off(longest, now);
    }
    in_force(Duration::from_millis(delay_ms).saturating_mul(2).min(longest), now)
}

/// How a run came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    /// By itself, or with others.
    No,
    /// It was stopped alone, so that it runs again.
    Alone,
}

/// The back-off after the first restart.
#[must_use]
pub(super) fn first_back_off(longest: Duration, now: Mono) -> RestartBackoff {
    in_force(CRASH_BACKOFF_FIRST.min(longest), now)
}

/// How long a run that is being made has waited, as far as the delay after it and the time since the run before tell: that delay is twice as
/// long, but for the longest there is, which comes after itself and after what would be more when doubled.
#[must_use]
pub(super) fn waited(record: &ContainerRecord) -> Duration {
    let delay = Duration::from_millis(record.backoff.delay_ms);
    let doubled = || (0..16).map(|times| CRASH_BACKOFF_FIRST * 2_u32.pow(times));
    let possible = match record.attempt {
        0 | 1 => [None, None],
        _ if delay == CRASH_BACKOFF_FIRST => [None, None],
        _ if doubled().any(|one| one == delay) => [Some(delay / 2), None],
        _ => [Some(delay), doubled().take_while(|one| *one < delay).last()],
    };
    // One that was stopped so that it runs again may have waited for nothing.
    let has_passed =
        |wait: &Duration| record.last_exit.as_ref().is_some_and(|exit| record.begun_at >= exit.at + *wait);
    possible.into_iter().flatten().find(has_passed).unwrap_or_default()
}

fn in_force(delay: Duration, since: Mono) -> RestartBackoff {
    RestartBackoff { delay_ms: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), since }
}

fn is_forgiven(backoff: &RestartBackoff, now: Mono) -> bool {
    now.since(backoff.since) > FORGIVEN_AFTER
}

#[cfg(test)]
mod tests;
