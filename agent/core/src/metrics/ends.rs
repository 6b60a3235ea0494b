//! How long pods take to be stopped.
//!
//! Source: `podWorkerLoop` of `pkg/kubelet/pod_workers.go`. A pod that was being stopped already when this agent saw it first is not
//! measured.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::between;
use crate::{
    id::PodUid,
    pod::port::status::Remains,
    status::{ContainerState, ContainerStatus, PodStatus},
};

/// Pods that are being stopped.
#[derive(Debug, Default)]
pub struct Ends {
    pods: BTreeMap<PodUid, End>,
}

/// One of them.
#[derive(Debug)]
struct End {
    since: Timestamp,
    has_stopped: bool,
}

/// What is known once more of a pod is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Over {
    /// Until none of its containers ran.
    pub stopped: Option<Duration>,
    /// Until nothing of it was left but directories.
    pub gone: Option<Duration>,
}

impl Ends {
    /// A pod has this status now, and had the one `before`.
    pub fn published(
        &mut self,
        before: Option<&PodStatus>,
        now: &PodStatus,
        remains: Remains,
        at: Timestamp,
    ) -> Over {
        if now.terminating && before.is_some_and(|before| !before.terminating) {
            self.pods.insert(now.uid.clone(), End { since: at, has_stopped: false });
        }
        let Some(end) = self.pods.get_mut(&now.uid) else { return Over::default() };
        let (passed, mut over) = (between(end.since, at), Over::default());
        if !end.has_stopped && !now.all_containers().any(runs) {
            end.has_stopped = true;
            over.stopped = Some(passed);
        }
        if !remains.is_more_than_directories() {
            self.pods.remove(&now.uid);
            over.gone = Some(passed);
        }
        over
    }

    /// The pod is no longer here.
    pub fn withdrawn(&mut self, uid: &PodUid, at: Timestamp) -> Over {
        let Some(End { since, has_stopped }) = self.pods.remove(uid) else { return Over::default() };
        let passed = Some(between(since, at));
        Over { stopped: passed.filter(|_| !has_stopped), gone: passed }
    }
}

fn runs(container: &ContainerStatus) -> bool {
    matches!(container.state, ContainerState::Running { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        metrics::starts::tests::{at, ended, running, status},
        status::Phase,
    };

    fn stopping(state: ContainerState) -> PodStatus {
        PodStatus { terminating: true, ..status(Phase::Running, vec![], vec![state]) }
    }

    fn seconds(over: Over) -> (Option<u64>, Option<u64>) {
        (over.stopped.map(|time| time.as_secs()), over.gone.map(|time| time.as_secs()))
    }

    #[test]
    fn a_stop_is_measured_until_nothing_runs_and_until_nothing_is_left() {
        let runs = status(Phase::Running, vec![], vec![running(1)]);
        let (asked, stopped) = (stopping(running(1)), stopping(ended(1, 15)));
        let mut ends = Ends::default();
        let mut published = |before: Option<&PodStatus>, now: &PodStatus, remains, second| {
            seconds(ends.published(before, now, remains, at(second)))
        };
        assert_eq!(published(None, &runs, Remains::Something, 1), (None, None));
        assert_eq!(published(Some(&runs), &asked, Remains::Something, 10), (None, None));
        assert_eq!(published(Some(&asked), &asked, Remains::Something, 12), (None, None));
        assert_eq!(published(Some(&asked), &stopped, Remains::Something, 15), (Some(5), None));
        assert_eq!(published(Some(&stopped), &stopped, Remains::Leftovers, 16), (None, None));
        assert_eq!(published(Some(&stopped), &stopped, Remains::Directories, 17), (None, Some(7)));
        assert_eq!(seconds(ends.withdrawn(&runs.uid, at(18))), (None, None), "once");
    }

    #[test]
    fn a_pod_that_goes_without_another_word_is_over_as_well_and_one_that_was_found_is_not_measured() {
        let runs = status(Phase::Running, vec![], vec![running(1)]);
        let asked = stopping(running(1));
        let mut ends = Ends::default();
        ends.published(Some(&runs), &asked, Remains::Something, at(10));
        assert_eq!(seconds(ends.withdrawn(&runs.uid, at(14))), (Some(4), Some(4)));
        ends.published(None, &asked, Remains::Something, at(20));
        assert_eq!(seconds(ends.withdrawn(&runs.uid, at(24))), (None, None));
        assert!(ends.pods.is_empty());
    }
}
