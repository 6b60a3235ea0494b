//! What becomes of resizes.

use berth_core::{
    metrics::{Requested, ResizeMeasure},
    status::{Condition, ConditionKind, PodStatus},
};
use prometheus::{GaugeVec, HistogramVec, IntCounterVec, Registry, Result};

use super::families::{Families, number};

/// Milliseconds that a resize may take.
const MILLISECONDS: [f64; 14] = [
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0, 120_000.0,
    300_000.0, 600_000.0,
];

/// Families of resizes.
#[derive(Debug)]
pub(super) struct Resizes {
    requested: IntCounterVec,
    took: HistogramVec,
    infeasible: IntCounterVec,
    accepted: IntCounterVec,
    pending: GaugeVec,
    in_progress: GaugeVec,
}

impl Resizes {
    pub(super) fn new(registry: &Registry) -> Result<Self> {
        let families = Families(registry);
        Ok(Self {
            requested: families.counter(
                "kubelet_container_requested_resizes_total",
                "Changes of what containers ask for, each resource for itself.",
                &["resource", "requirement", "operation"],
            )?,
            took: families.histogram(
                "kubelet_pod_resize_duration_milliseconds",
                "Milliseconds of each try to put a resize into force.",
                &["success"],
                &MILLISECONDS,
            )?,
            infeasible: families.counter(
                "kubelet_pod_infeasible_resizes_total",
                "Resizes that can never be done.",
                &["reason_detail"],
            )?,
            accepted: families.counter(
                "kubelet_pod_deferred_accepted_resizes_total",
                "Resizes that were allocated after they had waited.",
                &["retry_trigger"],
            )?,
            pending: families.gauge(
                "kubelet_pod_pending_resizes",
                "Resizes that are not allocated.",
                &["reason"],
            )?,
            in_progress: families.gauge(
                "kubelet_pod_in_progress_resizes",
                "Resizes that are allocated and not in force everywhere.",
                &[],
            )?,
        })
    }

    /// This was measured.
    pub(super) fn measured(&self, measure: &ResizeMeasure) {
        match measure {
            ResizeMeasure::Requested(Requested { resource, requirement, operation }) => {
                self.requested.with_label_values(&[*resource, *requirement, *operation]).inc();
            }
            ResizeMeasure::Infeasible(why) => self.infeasible.with_label_values(&[why.as_str()]).inc(),
            ResizeMeasure::Accepted(trigger) => self.accepted.with_label_values(&[trigger.as_str()]).inc(),
            ResizeMeasure::Tried { is_done, took } => {
                let label = if *is_done { "true" } else { "false" };
                self.took.with_label_values(&[label]).observe(took.as_secs_f64() * 1000.0);
            }
        }
    }

    /// Counts those that there are.
    pub(super) fn count<'a>(&self, pods: impl Iterator<Item = &'a PodStatus> + Clone) {
        let of = |kind: ConditionKind| {
            let all = pods.clone().flat_map(|status| &status.conditions);
            all.filter(move |one: &&Condition| one.kind == kind)
        };
        self.pending.reset();
        for condition in of(ConditionKind::PodResizePending) {
            self.pending.with_label_values(&[condition.reason.to_lowercase()]).inc();
        }
        let in_progress = of(ConditionKind::PodResizeInProgress).count();
        self.in_progress.with_label_values::<&str>(&[]).set(number(in_progress));
    }
}
