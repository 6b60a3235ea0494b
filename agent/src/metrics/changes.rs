//! What becomes of pods and containers, counted as their statuses and events tell it.

use std::time::Duration;

use berth_core::{
    metrics::{Changes, Over},
    spec::Source,
};
use prometheus::{DEFAULT_BUCKETS, HistogramVec, IntCounterVec, Registry, Result, exponential_buckets};

use super::{
    families::{Families, number},
    subject::role,
};

/// Families of changes.
#[derive(Debug)]
pub(super) struct Changed {
    ended: IntCounterVec,
    rejected: IntCounterVec,
    preempted: IntCounterVec,
    restarted: IntCounterVec,
    unrecorded: IntCounterVec,
    containers: HistogramVec,
    work: HistogramVec,
}

impl Changed {
    pub(super) fn new(registry: &Registry) -> Result<Self> {
        let families = Families(registry);
        let changed = Self {
            ended: families.counter(
                "kubelet_terminated_containers_total",
                "Containers that have ended.",
                &["container_type", "exit_code", "reason"],
            )?,
            rejected: families.counter(
                "kubelet_admission_rejections_total",
                "Pods that were not admitted, by reason.",
                &["reason"],
            )?,
            preempted: families.counter(
                "kubelet_preemptions",
                "Pods that were stopped for critical ones.",
                &["preemption_signal"],
            )?,
            restarted: families.counter(
                "kubelet_restarted_pods_total",
                "Pods that were wanted again under their UID while they were taken down.",
                &["static"],
            )?,
            unrecorded: families.counter(
                "kubelet_orphaned_runtime_pods_total",
                "Pods that the runtime had when the agent began, without a record of them.",
                &[],
            )?,
            containers: families.histogram(
                "kubelet_containers_per_pod_count",
                "Main containers of each pod that begins.",
                &[],
                &exponential_buckets(1.0, 2.0, 5)?,
            )?,
            work: families.histogram(
                "kubelet_pod_worker_duration_seconds",
                "Seconds of work on a pod: its start, the stop of its containers, and all until it is gone.",
                &["operation_type"],
                DEFAULT_BUCKETS,
            )?,
        };
        for label in ["", "true"] {
            changed.restarted.with_label_values(&[label]).inc_by(0);
        }
        Ok(changed)
    }

    /// Containers of a pod have ended.
    pub(super) fn ended(&self, changes: &Changes) {
        for end in &changes.ended {
            let labels = [role(end.kind), &end.exit_code.to_string(), &end.reason];
            self.ended.with_label_values(&labels).inc();
        }
    }

    /// A pod was not admitted.
    pub(super) fn rejected(&self, label: &str) {
        self.rejected.with_label_values(&[label]).inc();
    }

    /// A pod gave way to a critical one. What there was too little of is not told with it.
    pub(super) fn preempted(&self) {
        self.preempted.with_label_values(&[""]).inc();
    }

    /// A pod of a source begins anew under its UID.
    pub(super) fn restarted(&self, source: Source) {
        let label = if source == Source::Api { "" } else { "true" };
        self.restarted.with_label_values(&[label]).inc();
    }

    /// So many pods were found without a record.
    pub(super) fn unrecorded(&self, count: usize) {
        self.unrecorded.with_label_values::<&str>(&[]).inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// A pod with so many main containers begins.
    pub(super) fn begins(&self, containers: usize) {
        self.containers.with_label_values::<&str>(&[]).observe(number(containers));
    }

    /// A pod runs, so long after it was seen.
    pub(super) fn started(&self, took: Option<Duration>) {
        self.worked("create", took);
    }

    /// A stop of a pod is over.
    pub(super) fn over(&self, over: Over) {
        self.worked("kill", over.stopped);
        self.worked("terminated", over.gone);
    }

    fn worked(&self, operation: &str, took: Option<Duration>) {
        if let Some(took) = took {
            self.work.with_label_values(&[operation]).observe(took.as_secs_f64());
        }
    }
}
