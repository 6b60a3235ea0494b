//! The clocks of the machine, read here and nowhere else.

use std::time::Duration;

use berth_core::time::{Mono, Now};
use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// Both clocks.
#[must_use]
pub fn now() -> Now {
    Now { mono: mono(), wall: Timestamp::now() }
}

/// Time since boot, with time asleep.
#[must_use]
pub fn mono() -> Mono {
    // Through the C library, which also works where the kernel's vDSO lacks a function, as in User-Mode Linux. It fails
    // only for a clock that does not exist; this one does since Linux 2.6.39.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Mono::default(), |time| Mono(Duration::from(time)))
}

/// A time of the wall clock given in nanoseconds since 1970; `None` for 0, which stands for "has not happened".
#[must_use]
pub fn wall(nanos: i64) -> Option<Timestamp> {
    if nanos == 0 { None } else { Timestamp::from_nanosecond(i128::from(nanos)).ok() }
}

/// A time of the wall clock in a message.
#[must_use]
pub fn of_proto(time: &prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(time.seconds, time.nanos).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_since_boot_does_not_go_back() {
        let earlier = mono();
        assert!(mono() >= earlier);
        assert!(earlier > Mono::default());
    }

    #[test]
    fn zero_is_no_time() {
        assert_eq!(wall(0), None);
        assert_eq!(wall(1_000_000_000), Timestamp::from_second(1).ok());
    }
}
