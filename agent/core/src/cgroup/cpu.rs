//! CPU amounts as the kernel wants them.
//!
//! Source: `pkg/kubelet/cm/helpers_linux.go`; the weight as in runc ≥ 1.3.2, crun and containerd's cgroups/v3.

/// Fewest CPU shares (`kernel/sched/sched.h`).
pub const SHARES_MIN: u64 = 2;
/// Most CPU shares.
pub const SHARES_MAX: u64 = 262_144;
/// Smallest CPU time per period in µs (`kernel/sched/core.c`).
const QUOTA_US_MIN: u64 = 1000;
const SHARES_PER_CPU: u64 = 1024;
const MILLI: u64 = 1000;
const WEIGHT_MAX: u64 = 10_000;

/// CPU shares (version 1) for thousandths of a core.
#[must_use]
pub fn shares(cpu_milli: u64) -> u64 {
    (cpu_milli.saturating_mul(SHARES_PER_CPU) / MILLI).clamp(SHARES_MIN, SHARES_MAX)
}

/// CPU time in µs per period of `period_us` for thousandths of a core; nothing bounds zero.
#[must_use]
pub fn quota_us(cpu_milli: u64, period_us: u64) -> Option<u64> {
    (cpu_milli > 0).then(|| (cpu_milli.saturating_mul(period_us) / MILLI).max(QUOTA_US_MIN))
}

/// `cpu.weight` (version 2) for CPU shares: `⌈10^((l² + 125·l)/612 − 7/34)⌉` with `l = log₂ shares`, so that 1024 shares
/// are the kernel's default weight of 100.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "shares are at most 2^18 and the result lies between 1 and 10000"
)]
pub fn weight(shares: u64) -> u64 {
    if shares <= SHARES_MIN {
        return 1;
    }
    if shares >= SHARES_MAX {
        return WEIGHT_MAX;
    }
    let log = (shares as f64).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    10f64.powf(exponent).ceil() as u64
}

/// Thousandths of a core for CPU shares: those that [`shares`] is given. Source: `SharesToMilliCPU` of `pkg/kubelet/cm/helpers_linux.go`.
#[must_use]
pub fn milli_of_shares(shares: u64) -> u64 {
    (shares * MILLI).div_ceil(SHARES_PER_CPU)
}

/// Thousandths of a core for CPU time in µs per period.
#[must_use]
pub fn milli_of_quota(quota_us: u64, period_us: u64) -> u64 {
    quota_us.saturating_mul(MILLI) / period_us.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_read_back() {
        for milli in (2..5000).chain([256_000]) {
            assert_eq!(milli_of_shares(shares(milli)), milli);
        }
        for (milli, read) in [(10, 10), (55, 55), (1500, 1500), (1, 10)] {
            assert_eq!(milli_of_quota(quota_us(milli, 100_000).unwrap(), 100_000), read, "{milli}m");
        }
    }

    #[test]
    fn shares_follow_the_kubelet() {
        for (milli, expected) in [
            (0, 2),
            (1, 2),
            (2, 2),
            (3, 3),
            (100, 102),
            (500, 512),
            (1000, 1024),
            (1500, 1536),
            (256_000, 262_144),
            (300_000, 262_144),
            (u64::MAX, 262_144),
        ] {
            assert_eq!(shares(milli), expected, "{milli}m");
        }
    }

    #[test]
    fn quota_is_at_least_a_millisecond() {
        for (milli, period, expected) in [
            (0, 100_000, None),
            (1, 100_000, Some(1000)),
            (9, 100_000, Some(1000)),
            (10, 100_000, Some(1000)),
            (11, 100_000, Some(1100)),
            (200, 100_000, Some(20_000)),
            (1000, 100_000, Some(100_000)),
            (2500, 100_000, Some(250_000)),
            (1000, 5_000, Some(5_000)),
            (200, 5_000, Some(1000)),
        ] {
            assert_eq!(quota_us(milli, period), expected, "{milli}m of {period}");
        }
    }

    #[test]
    fn weight_follows_runc_and_crun() {
        for (shares, expected) in
            [(0, 1), (1, 1), (2, 1), (1024, 100), (2000, 170), (262_144, 10_000), (u64::MAX, 10_000)]
        {
            assert_eq!(weight(shares), expected, "{shares}");
        }
    }

    #[test]
    fn weight_never_falls_and_stays_in_range() {
        let mut last = 0;
        for shares in SHARES_MIN..=SHARES_MAX {
            let weight = weight(shares);
            assert!((1..=10_000).contains(&weight) && weight >= last, "{shares}: {weight}");
            last = weight;
        }
    }
}
