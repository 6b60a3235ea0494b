//! Pods that the node works on, by how far they are and who wants them.

use crate::{pod::port::status::Remains, spec::Pod, status::PodStatus};

/// How far pods are. Source: `PodWorkerState` of `pkg/kubelet/pod_workers.go`.
pub const LIFECYCLES: [&str; 3] = ["sync", "terminating", "terminated"];

/// Who wants pods: their source, or nobody any more. What the runtime alone knows is none of the node's pods.
pub const CONFIGS: [&str; 2] = ["desired", "orphan"];

/// How far a pod is, and who wants it. One that is to be deleted is wanted until the API server has it deleted.
#[must_use]
pub fn working(pod: &Pod, status: &PodStatus, remains: Remains) -> (&'static str, &'static str) {
    let [sync, terminating, terminated] = LIFECYCLES;
    let [desired, orphan] = CONFIGS;
    let lifecycle = match remains {
        Remains::Something | Remains::Leftovers if status.terminating || status.phase.is_final() => {
            terminating
        }
        Remains::Something | Remains::Leftovers => sync,
        Remains::Directories | Remains::NothingToTell => terminated,
    };
    let is_unwanted = status.terminating && pod.deletion.is_none();
    (lifecycle, if is_unwanted { orphan } else { desired })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{fixtures::pod, metrics::starts::tests::status, status::Phase};

    #[test]
    fn a_pod_is_worked_on_until_nothing_of_it_is_left() {
        let deletion = Some(Duration::from_secs(30));
        for (phase, terminating, deletion, remains, expected) in [
            (Phase::Pending, false, None, Remains::Something, ("sync", "desired")),
            (Phase::Running, false, None, Remains::Something, ("sync", "desired")),
            (Phase::Failed, false, None, Remains::Something, ("terminating", "desired")),
            (Phase::Running, false, None, Remains::Leftovers, ("sync", "desired")),
            (Phase::Failed, false, None, Remains::Leftovers, ("terminating", "desired")),
            (Phase::Running, true, deletion, Remains::Something, ("terminating", "desired")),
            (Phase::Running, true, None, Remains::Something, ("terminating", "orphan")),
            (Phase::Failed, true, None, Remains::Directories, ("terminated", "orphan")),
            (Phase::Succeeded, false, None, Remains::NothingToTell, ("terminated", "desired")),
        ] {
            let status = PodStatus { terminating, ..status(phase, vec![], vec![]) };
            let pod = Pod { deletion, ..pod(vec![]) };
            assert_eq!(working(&pod, &status, remains), expected, "{phase:?} {terminating} {remains:?}");
        }
    }
}
