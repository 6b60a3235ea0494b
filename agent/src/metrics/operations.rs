//! What effects are measured as. Dashboards know the operations of the CRI, of cgroups and of volumes by the kubelet's words.

use std::time::Duration;

use prometheus::{DEFAULT_BUCKETS, HistogramVec, IntCounterVec, Registry, Result};

use super::families::{Families, operation_seconds};

/// What an effect is to those who read metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    /// Of the runtime.
    Runtime(&'static str),
    /// On a cgroup.
    Cgroup(&'static str),
    /// Nothing that the kubelet counts.
    Own,
}

/// The operation of an effect by its name (`KINDS`).
fn of(effect: &str) -> Operation {
    match effect {
        "ensure-sandbox" => Operation::Runtime("run_podsandbox"),
        "remove-sandbox" => Operation::Runtime("remove_podsandbox"),
        "kill-shim" => Operation::Runtime("stop_podsandbox"),
        "ensure-rootfs" => Operation::Runtime("create_container"),
        "start-container" => Operation::Runtime("start_container"),
        "resize-container" => Operation::Runtime("update_container"),
        "signal" => Operation::Runtime("stop_container"),
        "remove-container" => Operation::Runtime("remove_container"),
        "look-at-task" => Operation::Runtime("container_status"),
        "inspect-image" => Operation::Runtime("image_status"),
        "pull-image" => Operation::Runtime("pull_image"),
        "list-images" => Operation::Runtime("list_images"),
        "remove-image" => Operation::Runtime("remove_image"),
        "ensure-cgroup" => Operation::Cgroup("create"),
        "remove-cgroup" => Operation::Cgroup("destroy"),
        "set-qos" => Operation::Cgroup("update"),
        _ => Operation::Own,
    }
}

/// Families of operations.
#[derive(Debug)]
pub(super) struct Operations {
    total: IntCounterVec,
    errors: IntCounterVec,
    seconds: HistogramVec,
    cgroup_seconds: HistogramVec,
    own_seconds: HistogramVec,
    web_sockets: IntCounterVec,
    collected: IntCounterVec,
}

impl Operations {
    pub(super) fn new(registry: &Registry) -> Result<Self> {
        let families = Families(registry);
        let (labels, seconds) = (&["operation_type"], operation_seconds()?);
        Ok(Self {
            total: families.counter(
                "kubelet_runtime_operations_total",
                "Operations of the container runtime.",
                labels,
            )?,
            errors: families.counter(
                "kubelet_runtime_operations_errors_total",
                "Operations of the container runtime that failed.",
                labels,
            )?,
            seconds: families.histogram(
                "kubelet_runtime_operations_duration_seconds",
                "Seconds that operations of the container runtime take.",
                labels,
                &seconds,
            )?,
            cgroup_seconds: families.histogram(
                "kubelet_cgroup_manager_duration_seconds",
                "Seconds that operations on cgroups of pods take.",
                labels,
                DEFAULT_BUCKETS,
            )?,
            own_seconds: families.histogram(
                "berth_effect_duration_seconds",
                "Seconds that the other effects take.",
                &["effect"],
                &seconds,
            )?,
            web_sockets: families.counter(
                "kubelet_websocket_streaming_requests_total",
                "Sessions over WebSocket by the protocols that kubectl speaks.",
                &["subresource"],
            )?,
            collected: families.counter(
                "kubelet_image_garbage_collected_total",
                "Images that were removed, since their disk was full (`space`) or nobody had used them for long (`age`).",
                &["reason"],
            )?,
        })
    }

    /// An effect has ended.
    pub(super) fn ended(&self, effect: &str, is_well: bool, took: Duration) {
        let seconds = took.as_secs_f64();
        match of(effect) {
            Operation::Runtime(operation) => self.runtime(operation, is_well, seconds),
            Operation::Cgroup(operation) => {
                self.cgroup_seconds.with_label_values(&[operation]).observe(seconds);
            }
            Operation::Own => self.own_seconds.with_label_values(&[effect]).observe(seconds),
        }
    }

    /// A session over WebSocket was asked for.
    pub(super) fn web_socket(&self, subresource: &str) {
        self.web_sockets.with_label_values(&[subresource]).inc();
    }

    /// An image was removed that nothing used.
    pub(super) fn collected(&self, reason: &str) {
        self.collected.with_label_values(&[reason]).inc();
    }

    /// An operation of the runtime has ended.
    pub(super) fn runtime(&self, operation: &str, is_well: bool, seconds: f64) {
        self.total.with_label_values(&[operation]).inc();
        self.seconds.with_label_values(&[operation]).observe(seconds);
        if !is_well {
            self.errors.with_label_values(&[operation]).inc();
        }
    }
}
