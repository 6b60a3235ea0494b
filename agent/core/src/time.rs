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

/// Both clocks, read once per event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// For deadlines.
    pub mono: Mono,
    /// For what people and the API see.
    pub wall: Timestamp,
}
