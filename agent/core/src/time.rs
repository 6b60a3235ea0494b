//! Time as a value: the shell reads the clocks, the core compares.

use std::{ops::Add, time::Duration};

use jiff::Timestamp;

/// Time since boot (`CLOCK_BOOTTIME`): what deadlines and back-offs are measured with, so that a step of the wall
/// clock moves none of them. Comparable across restarts of the agent, not across reboots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mono(pub Duration);

impl Mono {
    /// How long `self` lies after `earlier`; zero when it does not.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Mono {
    type Output = Self;

    fn add(self, length: Duration) -> Self {
        Self(self.0.saturating_add(length))
    }
}

/// The pause after so many pauses: `first`, and twice as long each time, as far as `longest`.
#[must_use]
pub fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(times)).min(longest)
}

/// Both clocks, read once per event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// For deadlines.
    pub mono: Mono,
    /// For what people and the API see.
    pub wall: Timestamp,
}

impl Now {
    /// How long ago a time of day was; not at all when it is still to come. That is true as long as nobody sets the clock, so it is
    /// asked once, as soon as the time is known, and the answer kept.
    #[must_use]
    pub fn age(self, wall: Timestamp) -> Duration {
        Duration::try_from(self.wall.duration_since(wall)).unwrap_or_default()
    }

    /// A time of day, as a time since boot; the boot when it was before.
    #[must_use]
    pub fn mono_of(self, wall: Timestamp) -> Mono {
        Mono(self.mono.0.saturating_sub(self.age(wall)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_day_was_at_some_time_since_boot_and_never_will_be() {
        let wall = |seconds| Timestamp::from_second(seconds).unwrap();
        let seconds = Duration::from_secs;
        let now = Now { mono: Mono(seconds(500)), wall: wall(1_000_000) };
        for (time, age, mono) in [
            (wall(1_000_000), 0, 500),
            (wall(999_960), 40, 460),
            (wall(999_500), 500, 0),
            (wall(990_000), 10_000, 0),
            (wall(1_003_600), 0, 500),
            (Timestamp::MAX, 0, 500),
        ] {
            assert_eq!((now.age(time), now.mono_of(time)), (seconds(age), Mono(seconds(mono))), "{time}");
        }
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let of = |times| doubled(Duration::from_millis(200), times, Duration::from_secs(7)).as_millis();
        assert_eq!([0, 1, 2, 5, 6, 31, 32, u32::MAX].map(of), [200, 400, 800, 6400, 7000, 7000, 7000, 7000]);
    }
}
