//! How long a pod has from its stop signal to SIGKILL. Source: `calculateEffectiveGracePeriod` of `pkg/kubelet/pod_workers.go`.

use std::time::Duration;

use super::plan::STOP_MIN;
use crate::{record::TerminationRecord, spec::Pod, time::Mono};

/// The shortest grace period of a pod.
const MIN: Duration = Duration::from_secs(1);

/// Stops the pod from now on, or brings the end of a stop that began forward: a grace period never grows. What the API gives a
/// deletion counts before what the pod asks for, also where that is nothing, as of one that is forced.
pub(super) fn stop(known: Option<TerminationRecord>, pod: &Pod, now: Mono) -> TerminationRecord {
    let deadline = now + pod.deletion.unwrap_or(pod.grace).max(MIN);
    match known {
        Some(known) => TerminationRecord { deadline: known.deadline.min(deadline), ..known },
        None => TerminationRecord { began: now, deadline },
    }
}

/// Stops one container from now on, which has so long, and [`STOP_MIN`] at least.
pub(super) fn stop_container(grace: Duration, now: Mono) -> TerminationRecord {
    TerminationRecord { began: now, deadline: now + grace.max(STOP_MIN) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn a_grace_period_never_grows_and_never_begins_again() {
        let at = |seconds| Mono(Duration::from_secs(seconds));
        let known = |deadline| Some(TerminationRecord { began: at(90), deadline: at(deadline) });
        for (known, own, deletion, began, deadline) in [
            (None, 30, None, 100, 130),
            (None, 30, Some(600), 100, 700),
            (None, 30, Some(5), 100, 105),
            (None, 30, Some(0), 100, 101),
            (None, 0, Some(0), 100, 101),
            (None, 0, None, 100, 101),
            (known(120), 30, Some(30), 90, 120),
            (known(120), 30, Some(5), 90, 105),
            (known(120), 30, Some(0), 90, 101),
            (known(120), 30, Some(600), 90, 120),
            (known(120), 30, None, 90, 120),
        ] {
            let grace = Duration::from_secs(own);
            let deletion = deletion.map(Duration::from_secs);
            let pod = Pod { grace, deletion, ..fixtures::pod(vec![fixtures::container("web")]) };
            let expected = TerminationRecord { began: at(began), deadline: at(deadline) };
            assert_eq!(stop(known, &pod, at(100)), expected, "{own} {deletion:?}");
        }
    }
}
