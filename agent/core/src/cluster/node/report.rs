//! When the node is computed, and when it is reported though nothing has changed.
//!
//! Source: `isUpdateStatusPeriodExpired` and `calculateDelay` of `pkg/kubelet/kubelet_node_status.go`, `JitterUntil` of
//! `k8s.io/apimachinery/pkg/util/wait`. The time since boot measures, so no step of the wall clock moves a report.

use std::time::Duration;

use crate::time::{Mono, doubled};

/// Part of a period that it may be longer by (`wait.JitterUntil(..., 0.04, ...)`).
const JITTER: f64 = 0.04;
/// Pauses after failures (`registerWithAPIServer`).
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(7);

/// When the node was reported last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report(Option<(Mono, Duration)>);

/// Why something is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Something has changed.
    Changed,
    /// It is time.
    Due,
}

impl Report {
    /// Why the node is to be reported now, if it is.
    #[must_use]
    pub fn reason(&self, differs: bool, now: Mono) -> Option<Reason> {
        match self.0 {
            _ if differs => Some(Reason::Changed),
            None => Some(Reason::Due),
            Some((last, wait)) => (now.since(last) >= wait).then_some(Reason::Due),
        }
    }

    /// It was reported. After a change and at first the next report comes at some time between half a period and one and a
    /// half, so that many nodes that changed together do not go on reporting together; `chance` is within 0 and 1.
    pub fn sent(&mut self, reason: Reason, every: Duration, chance: f64, now: Mono) {
        let wait = match (reason, self.0) {
            (Reason::Changed, _) | (Reason::Due, None) => every.mul_f64(0.5 + chance.clamp(0.0, 1.0)),
            (Reason::Due, Some(_)) => every,
        };
        self.0 = Some((now, wait));
    }
}

/// A period with its jitter; `chance` is within 0 and 1.
#[must_use]
pub fn jittered(period: Duration, chance: f64) -> Duration {
    period.mul_f64(1.0 + JITTER * chance.clamp(0.0, 1.0))
}

/// How long to wait after this many failures in a row, and as long as the server asks for, but never longer than a period: a node
/// that was silent for longer is taken for dead.
#[must_use]
pub fn backoff(failures: u32, asked: Duration, period: Duration) -> Duration {
    doubled(PAUSE_MIN, failures.saturating_sub(1), PAUSE_MAX).max(asked).min(period)
}
