//! When a certificate is replaced. Source: `k8s.io/client-go/util/certificate/certificate_manager.go` (`nextRotationDeadline`,
//! `jitteryDuration`).

use std::time::Duration;

use jiff::Timestamp;

use crate::time::{Mono, Now};

/// Part of its life after which a certificate is replaced: from this on, by chance up to as much more as the second says.
const FROM: f64 = 0.7;
const SPREAD: f64 = 0.2;
/// How soon one is replaced after the last, at the earliest: a server that gives certificates which are nearly over is asked no
/// more often.
const PAUSE_MIN: Duration = Duration::from_secs(10);
/// Pauses after failures: the first one, and the longest.
const AGAIN_MIN: Duration = Duration::from_secs(2);
const AGAIN_MAX: Duration = Duration::from_secs(64);

/// From when until when a certificate holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// First instant.
    pub not_before: Timestamp,
    /// Last instant.
    pub not_after: Timestamp,
}

impl Validity {
    /// Whether it is over.
    #[must_use]
    pub fn has_ended(&self, now: Timestamp) -> bool {
        self.not_after <= now
    }
}

/// When a certificate is to be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    wall: Timestamp,
    mono: Mono,
    not_before: Mono,
}

impl Rotation {
    /// Of a certificate that is in use since now; `chance` is within 0 and 1.
    ///
    /// Both clocks count: a wall clock that is set back does not let the certificate end unreplaced, and one that is set right
    /// after it was wrong neither.
    #[must_use]
    pub fn plan(validity: Validity, now: Now, chance: f64) -> Self {
        let Validity { not_before, not_after } = validity;
        let life = length(not_before, not_after);
        let wall = not_before + life.mul_f64(FROM + SPREAD * chance.clamp(0.0, 1.0));
        Self { wall, mono: now.mono + length(now.wall, wall), not_before: now.mono + PAUSE_MIN }
    }

    /// How long until it is due; zero when it is.
    #[must_use]
    pub fn due_in(&self, now: Now) -> Duration {
        let soonest = self.not_before.since(now.mono);
        let due = self.mono.since(now.mono).min(length(now.wall, self.wall));
        due.max(soonest)
    }
}

/// How long to wait after this many failures in a row.
#[must_use]
pub fn again_after(failures: u32) -> Duration {
    AGAIN_MIN.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(AGAIN_MAX)
}

/// From one time to another; zero when that lies before.
fn length(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wall(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn at(mono: u64, clock: i64) -> Now {
        Now { mono: Mono(Duration::from_secs(mono)), wall: wall(clock) }
    }

    #[test]
    fn a_certificate_is_replaced_between_seven_and_nine_tenths_of_its_life() {
        let validity = Validity { not_before: wall(0), not_after: wall(1000) };
        for (chance, seconds) in [(0.0, 700), (0.5, 800), (1.0, 900), (7.0, 900)] {
            let rotation = Rotation::plan(validity, at(50, 0), chance);
            assert_eq!(rotation.due_in(at(50, 0)).as_secs_f64().round(), f64::from(seconds), "{chance}");
        }
        let rotation = Rotation::plan(validity, at(50, 300), 0.0);
        assert_eq!(rotation.due_in(at(50, 300)).as_secs(), 400, "its life began before it came");
    }

    #[test]
    fn no_step_of_the_clock_lets_it_end() {
        let validity = Validity { not_before: wall(0), not_after: wall(10_000) };
        let rotation = Rotation::plan(validity, at(0, 0), 0.0);
        assert_eq!(rotation.due_in(at(6999, 6999 - 3600)).as_secs(), 1, "set back by an hour");
        assert_eq!(rotation.due_in(at(7000, 7000 - 3600)), Duration::ZERO);
        assert_eq!(rotation.due_in(at(3400, 7000)), Duration::ZERO, "set forward by an hour");
        assert!(validity.has_ended(wall(10_000)) && !validity.has_ended(wall(9_999)));
    }

    #[test]
    fn one_that_is_nearly_over_when_it_comes_is_replaced_after_a_pause() {
        let validity = Validity { not_before: wall(-300), not_after: wall(5) };
        let rotation = Rotation::plan(validity, at(100, 0), 0.0);
        assert_eq!(rotation.due_in(at(100, 0)), PAUSE_MIN);
        assert_eq!(rotation.due_in(at(110, 10)), Duration::ZERO);
        assert_eq!([1, 2, 6, 7, 99].map(|failures| again_after(failures).as_secs()), [2, 4, 64, 64, 64]);
    }
}
