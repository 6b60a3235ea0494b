//! Whether and when a container that ended runs again.
//!
//! Source: `pkg/kubelet/kuberuntime/kuberuntime_manager.go` `doBackOff`, `pkg/kubelet/container/helpers.go`
//! `ShouldContainerBeRestarted`, `k8s.io/client-go/util/flowcontrol/backoff.go`. The first restart is at once; each
//! further one waits twice as long, counted from the end of the run before.

use std::time::Duration;

use super::runs::START_ERROR;
use crate::{
    record::{ContainerRecord, ExitRecord},
    spec::{Container, ContainerKind, RestartPolicy},
    time::Mono,
};

/// The first delay between an exit and the next run (`backOffPeriod` of `pkg/kubelet/kubelet.go`).
pub(super) const CRASH_BACKOFF_FIRST: Duration = Duration::from_secs(10);

/// A run that went on for longer has its earlier failures forgiven, however long the longest delay is
/// (`crashLoopBackOff.HasExpiredFunc` of `pkg/kubelet/kubelet.go`).
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);

/// Whether two versions of a container share one back-off: what makes it another starts at once.
/// Source: `GetBackoffKey` of `pkg/kubelet/kuberuntime/helpers.go`.
#[must_use]
pub(super) fn shares_back_off(one: &Container, other: &Container) -> bool {
    one.image == other.image && one.resources == other.resources
}

/// Whether a container that ended with `code` runs again by its policy.
#[must_use]
pub(super) fn runs_again(kind: ContainerKind, policy: RestartPolicy, code: u32) -> bool {
    match (kind, policy) {
        (ContainerKind::Sidecar, _) | (ContainerKind::Main, RestartPolicy::Always) => true,
        (ContainerKind::Init, RestartPolicy::Always | RestartPolicy::OnFailure)
        | (ContainerKind::Main, RestartPolicy::OnFailure) => code != 0,
        (ContainerKind::Init | ContainerKind::Main, RestartPolicy::Never) => false,
    }
}

/// Whether a run ended before it began.
#[must_use]
pub(super) fn could_not_start(exit: &ExitRecord) -> bool {
    exit.reason.as_deref() == Some(START_ERROR)
}

/// When the next run may begin.
#[must_use]
pub(super) fn due(record: &ContainerRecord, exit: &ExitRecord) -> Mono {
    if lasted(record, exit) {
        return exit.at;
    }
    exit.at + Duration::from_millis(record.backoff_ms)
}

/// The delay after the next run, in milliseconds, when the run that ended with `exit` is followed by it.
#[must_use]
pub(super) fn next_backoff_ms(record: &ContainerRecord, exit: &ExitRecord, longest: Duration) -> u64 {
    let first = CRASH_BACKOFF_FIRST.min(longest);
    let delay = if record.backoff_ms == 0 || lasted(record, exit) {
        first
    } else {
        Duration::from_millis(record.backoff_ms).saturating_mul(2).min(longest)
    };
    u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)
}

/// Whether the run went on for so long that earlier failures no longer count.
fn lasted(record: &ContainerRecord, exit: &ExitRecord) -> bool {
    exit.at.since(record.begun_at) > FORGIVEN_AFTER
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::event::Exit;

    const LONGEST: Duration = Duration::from_secs(300);

    fn ended(begun_at: u64, at: u64, backoff_ms: u64) -> (ContainerRecord, ExitRecord) {
        let exit = Exit { code: 1, started_at: None, finished_at: Timestamp::UNIX_EPOCH, oom_killed: false };
        let at = Mono(Duration::from_secs(at));
        let id = crate::id::ContainerId::from_known("a");
        let exit = ExitRecord { id: id.clone(), attempt: 0, exit, at, message: String::new(), reason: None };
        let record = ContainerRecord {
            id,
            attempt: 0,
            begun_at: Mono(Duration::from_secs(begun_at)),
            started_in: Some(0),
            image: None,
            stopping: None,
            exit: Some(exit.clone()),
            last_exit: None,
            backoff_ms,
        };
        (record, exit)
    }

    #[test]
    fn the_first_restart_is_at_once_and_further_ones_wait_twice_as_long_up_to_the_bound() {
        let mut backoff_ms = 0;
        let mut waits = Vec::new();
        for _ in 0..8 {
            let (record, exit) = ended(100, 101, backoff_ms);
            waits.push(due(&record, &exit).since(exit.at).as_secs());
            backoff_ms = next_backoff_ms(&record, &exit, LONGEST);
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_run_of_more_than_ten_minutes_resets_the_back_off_whatever_its_bound() {
        for longest in [LONGEST, Duration::from_secs(1), Duration::from_secs(20)] {
            let first = next_backoff_ms(&ended(100, 101, 0).0, &ended(100, 101, 0).1, longest);
            let (record, exit) = ended(100, 701, 300_000);
            assert_eq!(due(&record, &exit), exit.at);
            assert_eq!(next_backoff_ms(&record, &exit, longest), first, "{longest:?}");
            let (record, exit) = ended(100, 700, 300_000);
            assert_eq!(due(&record, &exit).since(exit.at).as_secs(), 300);
            assert_eq!(u128::from(next_backoff_ms(&record, &exit, longest)), longest.as_millis());
        }
    }

    #[test]
    fn a_bound_below_ten_seconds_is_the_first_delay_too() {
        let (record, exit) = ended(100, 101, 0);
        assert_eq!(next_backoff_ms(&record, &exit, Duration::from_secs(3)), 3_000);
    }

    #[test]
    fn policy_kind_and_code_decide_whether_a_container_runs_again() {
        use ContainerKind::{Init, Main, Sidecar};
        use RestartPolicy::{Always, Never, OnFailure};
        let cases = [
            (Main, Always, 0, true),
            (Main, Always, 1, true),
            (Main, OnFailure, 0, false),
            (Main, OnFailure, 1, true),
            (Main, Never, 0, false),
            (Main, Never, 1, false),
            (Init, Always, 0, false),
            (Init, Always, 1, true),
            (Init, OnFailure, 1, true),
            (Init, Never, 1, false),
            (Sidecar, Never, 0, true),
            (Sidecar, Never, 1, true),
        ];
        for (kind, policy, code, again) in cases {
            assert_eq!(runs_again(kind, policy, code), again, "{kind:?} {policy:?} {code}");
        }
    }
}
