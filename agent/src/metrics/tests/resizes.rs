//! Resizes: what was measured of them, and those that there are.

use berth_core::{
    metrics::{Infeasible, Requested, ResizeMeasure, Trigger},
    status::{Condition, ConditionKind},
};

use super::*;

/// A pod with this condition.
pub(super) fn resizing(kind: ConditionKind, reason: &str) -> Published {
    let mut published = published(Phase::Running, ContainerState::Running { started_at: at(1) });
    let condition = Condition {
        kind,
        holds: true,
        reason: reason.to_owned(),
        message: String::new(),
        since: at(1),
        generation: Some(2),
    };
    let status = PodStatus { conditions: vec![condition], ..PodStatus::clone(&published.status) };
    published.status = Arc::new(status);
    published
}

/// As `recordPendingResizeCount` and `recordInProgressResizeCount` of `pkg/kubelet/status/status_manager.go` count them.
#[test]
fn those_that_there_are_are_counted_at_each_look() {
    let view = View::default();
    let metrics = Metrics::new("n", view.clone()).unwrap();
    let in_progress = "kubelet_pod_in_progress_resizes";
    assert_eq!(value(&metrics.text(), in_progress), Some(0.0), "from the beginning on");
    for (kind, reason, expected) in [
        (ConditionKind::PodResizePending, "Deferred", [Some(1.0), None, Some(0.0)]),
        (ConditionKind::PodResizePending, "Infeasible", [None, Some(1.0), Some(0.0)]),
        (ConditionKind::PodResizeInProgress, "Error", [None, None, Some(1.0)]),
        (ConditionKind::Ready, "", [None, None, Some(0.0)]),
    ] {
        view.publish(resizing(kind, reason));
        let text = metrics.text();
        let series = [
            "kubelet_pod_pending_resizes{reason=\"deferred\"}",
            "kubelet_pod_pending_resizes{reason=\"infeasible\"}",
            in_progress,
        ];
        assert_eq!(series.map(|series| value(&text, series)), expected, "{kind:?} {reason}");
    }
}

#[test]
fn what_was_measured_is_shown() {
    let metrics = Metrics::new("n", View::default()).unwrap();
    let asks = Requested { resource: "memory", requirement: "limits", operation: "decrease" };
    metrics.resizes(&[
        ResizeMeasure::Requested(asks),
        ResizeMeasure::Infeasible(Infeasible::Swap),
        ResizeMeasure::Accepted(Trigger::PodResized),
        ResizeMeasure::Tried { is_done: false, took: Duration::from_millis(40) },
        ResizeMeasure::Tried { is_done: true, took: seconds(3) },
    ]);
    let text = metrics.text();
    for (series, expected) in [
        (
            "kubelet_container_requested_resizes_total{operation=\"decrease\",requirement=\"limits\",resource=\"memory\"}",
            1.0,
        ),
        ("kubelet_pod_infeasible_resizes_total{reason_detail=\"swap_limitation\"}", 1.0),
        ("kubelet_pod_deferred_accepted_resizes_total{retry_trigger=\"pod_resized\"}", 1.0),
        ("kubelet_pod_resize_duration_milliseconds_sum{success=\"false\"}", 40.0),
        ("kubelet_pod_resize_duration_milliseconds_bucket{success=\"true\",le=\"5000\"}", 1.0),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series}\n{text}");
    }
}
