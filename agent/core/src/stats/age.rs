//! How old a reading may be.

use std::time::Duration;

use crate::time::Mono;

/// How old a reading may be: cAdvisor's interval within the kubelet (`defaultHousekeepingInterval` of
/// `pkg/kubelet/cadvisor/cadvisor_linux.go`).
pub const INTERVAL: Duration = Duration::from_secs(10);

/// Whether what was read last, beginning at one moment, is too old at another.
#[must_use]
pub fn is_due(last: Mono, now: Mono) -> bool {
    now.since(last) >= INTERVAL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_counts_for_ten_seconds() {
        let at = |millis| Mono(Duration::from_millis(millis));
        for (last, now, expected) in [
            (5_000, 5_000, false),
            (5_000, 14_999, false),
            (5_000, 15_000, true),
            (5_000, 60_000, true),
            (0, 9_999, false),
            // Of another who has asked meanwhile.
            (5_000, 4_000, false),
        ] {
            assert_eq!(is_due(at(last), at(now)), expected, "{last} {now}");
        }
    }
}
