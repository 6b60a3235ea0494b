//! How a gRPC probe connects. The kubelet's goes on trying for as long as the probe has time.
//!
//! Source: grpc-go, `DialContext` of `clientconn.go`, `DefaultConfig` of `backoff/backoff.go` and `Exponential` of
//! `internal/backoff/backoff.go`.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use super::Try;
use crate::id::PodUid;

/// The first pause, and the longest but for what chance adds.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(120);

/// After so many failures pauses are the longest.
const LONGEST_AFTER: u32 = 11;

/// What becomes of a connection that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dial {
    /// The probe has failed.
    Once,
    /// It is tried again until the probe's time is over.
    Again,
}

impl Dial {
    /// An early try has another one soon, which would have to wait for it.
    pub(in crate::pod) fn of(which: Try) -> Self {
        match which {
            Try::Early(..) => Self::Once,
            Try::Regular => Self::Again,
        }
    }
}

/// How long a pod's probe waits until it connects again, after so many failures before this one. Pauses are up to a fifth shorter or
/// longer, in each pod otherwise, where grpc-go asks chance.
#[must_use]
pub fn redial_after(pod: &PodUid, failures: u32) -> Duration {
    if failures == 0 {
        return PAUSE_MIN;
    }
    let pauses = 0..failures.min(LONGEST_AFTER);
    let pause = pauses.fold(PAUSE_MIN, |pause, _| pause * 8 / 5).min(PAUSE_MAX);
    let mut hasher = DefaultHasher::new();
    (pod.as_str(), failures).hash(&mut hasher);
    let thousandths = 800 + u32::try_from(hasher.finish() % 401).unwrap_or(0);
    pause * thousandths / 1000
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn pauses_get_longer_and_differ_between_pods() {
        for (failures, least_ms, most_ms) in [
            (0, 1000_u128, 1000),
            (1, 1280, 1920),
            (2, 2048, 3072),
            (3, 3276, 4916),
            (11, 96_000, 144_000),
            (u32::MAX, 96_000, 144_000),
        ] {
            let pods = (0..50).map(|number| PodUid::new(format!("uid-{number}")));
            let pauses: BTreeSet<u128> = pods.map(|pod| redial_after(&pod, failures).as_millis()).collect();
            assert!(pauses.iter().all(|ms| (least_ms..=most_ms).contains(ms)), "{failures}: {pauses:?}");
            assert_eq!(pauses.len() > 1, failures > 0, "{failures}: {pauses:?}");
        }
    }
}
