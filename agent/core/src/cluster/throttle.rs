//! How fast requests may follow each other (`kubeAPIQPS`, `kubeAPIBurst`, `eventRecordQPS`, `eventBurst`).

use std::time::Duration;

use crate::time::Mono;

/// How fast requests may follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// In a second, on average; 0 is without bound.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}

/// A token bucket.
#[derive(Debug, Clone, Copy)]
pub struct Throttle {
    interval: Duration,
    ahead: Duration,
    /// When it would be full again.
    full_at: Mono,
}

impl Throttle {
    /// A full one.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        let Rate { per_second, burst } = rate;
        let interval = Duration::from_secs(1).checked_div(per_second).unwrap_or_default();
        let ahead = interval.saturating_mul(burst.max(1).saturating_sub(1));
        Self { interval, ahead, full_at: Mono::default() }
    }

    /// Takes the next place, and tells how long to wait for it.
    pub fn take(&mut self, now: Mono) -> Duration {
        let from = self.full_at.max(now);
        self.full_at = from + self.interval;
        from.since(now).saturating_sub(self.ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let at = |millis| Mono(Duration::from_millis(millis));
        let mut throttle = Throttle::new(Rate { per_second: 10, burst: 3 });
        let waits: Vec<u128> = (0..6).map(|_| throttle.take(at(1000)).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200, 300]);
        assert_eq!(throttle.take(at(1600)).as_millis(), 0, "one token has come back");
        assert_eq!(throttle.take(at(60_000)).as_millis(), 0);
        let mut unbound = Throttle::new(Rate { per_second: 0, burst: 0 });
        assert!((0..1000).all(|_| unbound.take(at(0)).is_zero()));
    }
}
