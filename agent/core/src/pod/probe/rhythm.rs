//! When a probe asks.
//!
//! The kubelet's workers tick once in a period from a random moment on, so a container is asked for the first time up to one
//! period after its initial delay. Here the moment within the period follows from the pod, the container and the probe: a full
//! node asks evenly, and an agent that begins anew goes on in the same rhythm, where the kubelet spreads its first questions
//! by chance (`worker.run`).
//!
//! What can only bring good news is asked for early: whether a container has started or can serve, while it was not so yet. The
//! kubelet does that for readiness whenever the pod's status is made (`manualTriggerCh`). Here a failure of such a try is
//! neither counted nor told, and the first one is at once.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use crate::{
    id::{ContainerName, PodUid},
    spec::{Probe, ProbeHandler, ProbeKind},
    time::Mono,
};

/// Early tries, in milliseconds after the first.
const EARLY_MS: &[u64] = &[0, 100, 300, 700];

/// The same for a command, which costs a process of the OCI runtime: one.
const EARLY_EXEC_MS: &[u64] = &[0];

/// The rhythm of one probe of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pod) struct Rhythm {
    period: Duration,
    phase: Duration,
    early_ms: &'static [u64],
}

/// Which try a question is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pod) enum Try {
    /// One that counts.
    Regular,
    /// The early one of this number; the first was at that moment.
    Early(usize, Mono),
}

impl Rhythm {
    pub(in crate::pod) fn of(
        pod: &PodUid,
        container: &ContainerName,
        kind: ProbeKind,
        probe: &Probe,
    ) -> Self {
        let mut hasher = DefaultHasher::new();
        (pod.as_str(), container.as_str(), kind.as_str()).hash(&mut hasher);
        let period_ms = millis(probe.period).max(1);
        let early_ms = match probe.handler {
            ProbeHandler::Exec(_) => EARLY_EXEC_MS,
            ProbeHandler::Http(_) | ProbeHandler::Tcp { .. } | ProbeHandler::Grpc { .. } => EARLY_MS,
        };
        Self {
            period: Duration::from_millis(period_ms),
            phase: Duration::from_millis(hasher.finish() % period_ms),
            early_ms,
        }
    }

    /// The first tick after `after`.
    pub(in crate::pod) fn tick(&self, after: Mono) -> Mono {
        let (period, phase) = (millis(self.period), millis(self.phase));
        let now = millis(after.0);
        let since = (now % period + period - phase) % period;
        Mono(Duration::from_millis(now.saturating_add(period - since)))
    }

    /// The first question, when the first may be asked at `from`.
    pub(in crate::pod) fn first(&self, from: Mono, is_early: bool) -> (Mono, Try) {
        if is_early { (from, Try::Early(0, from)) } else { (self.tick(from), Try::Regular) }
    }

    /// The question after one of `asked_at`, whose answer came now. A tick that has passed meanwhile is made up for once.
    pub(in crate::pod) fn next(&self, asked: Try, asked_at: Mono, is_early: bool, now: Mono) -> (Mono, Try) {
        let tick = self.tick(asked_at).max(now);
        if let Try::Early(number, first) = asked
            && is_early
            && let Some(ms) = self.early_ms.get(number + 1)
        {
            let at = (first + Duration::from_millis(*ms)).max(now);
            if at < tick {
                return (at, Try::Early(number + 1, first));
            }
        }
        (tick, Try::Regular)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn at(ms: u64) -> Mono {
        Mono(Duration::from_millis(ms))
    }

    fn rhythm(phase_ms: u64, early_ms: &'static [u64]) -> Rhythm {
        Rhythm { period: Duration::from_secs(10), phase: Duration::from_millis(phase_ms), early_ms }
    }

    #[test]
    fn a_probe_ticks_once_in_a_period_whoever_asks() {
        let rhythm = rhythm(3_000, EARLY_MS);
        for (after, tick) in [(0, 3_000), (2_999, 3_000), (3_000, 13_000), (12_999, 13_000), (13_001, 23_000)]
        {
            assert_eq!(rhythm.tick(at(after)), at(tick), "{after}");
        }
    }

    #[test]
    fn the_first_question_that_counts_is_within_a_period_after_the_delay() {
        for number in 0..50 {
            let pod = PodUid::new(format!("uid-{number}"));
            let probe = Probe { period: Duration::from_secs(7), ..fixtures::probe() };
            let rhythm = Rhythm::of(&pod, &ContainerName::new("web"), ProbeKind::Liveness, &probe);
            let (first, _) = rhythm.first(at(123_456), false);
            assert!(first > at(123_456) && first <= at(130_456), "{first:?}");
            assert_eq!(
                rhythm.next(Try::Regular, first, false, first + Duration::from_millis(5)).0,
                first + probe.period
            );
        }
    }

    #[test]
    fn probes_of_a_full_node_are_spread_over_the_period() {
        let probe = Probe { period: Duration::from_secs(1), ..fixtures::probe() };
        let mut slots = [0; 10];
        for number in 0..200 {
            let pod = PodUid::new(format!("uid-{number}"));
            let rhythm = Rhythm::of(&pod, &ContainerName::new("web"), ProbeKind::Readiness, &probe);
            slots[usize::try_from(millis(rhythm.phase) / 100).unwrap()] += 1;
        }
        assert!(slots.iter().all(|count| (5..45).contains(count)), "{slots:?}");
    }

    #[test]
    fn what_can_only_be_good_news_is_asked_for_early_and_never_after_the_tick() {
        let rhythm = rhythm(0, EARLY_MS);
        let mut asked = Vec::new();
        let (mut when, mut which) = rhythm.first(at(5_000), true);
        for _ in 0..6 {
            asked.push(when);
            (when, which) = rhythm.next(which, when, true, when);
        }
        assert_eq!(asked, [5_000, 5_100, 5_300, 5_700, 10_000, 20_000].map(at));
        // The tick comes in between.
        let (when, which) = rhythm.first(at(9_950), true);
        assert_eq!(rhythm.next(which, when, true, when), (at(10_000), Try::Regular));
        // It was so meanwhile.
        assert_eq!(rhythm.next(which, when, false, when), (at(10_000), Try::Regular));
        // An answer that takes longer than the next early try is due.
        let (when, which) = rhythm.first(at(5_000), true);
        assert_eq!(rhythm.next(which, when, true, at(6_000)), (at(6_000), Try::Early(1, at(5_000))));
    }

    #[test]
    fn a_tick_that_passed_while_it_was_asked_is_made_up_for_once() {
        let rhythm = rhythm(0, EARLY_MS);
        assert_eq!(rhythm.next(Try::Regular, at(10_000), false, at(20_003)), (at(20_003), Try::Regular));
        assert_eq!(rhythm.next(Try::Regular, at(20_003), false, at(20_004)), (at(30_000), Try::Regular));
        // After an hour of silence too.
        assert_eq!(
            rhythm.next(Try::Regular, at(10_000), false, at(3_610_003)),
            (at(3_610_003), Try::Regular)
        );
    }
}
