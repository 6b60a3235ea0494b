//! How pods, their containers and volumes come and go.

use std::time::Duration;

use berth_core::{
    event::Outcome,
    failure::Failure,
    image::ImageInfo,
    metrics::{Started, image_size},
    spec::{ContainerKind, UserMode},
};
use prometheus::{DEFAULT_BUCKETS, GaugeVec, HistogramVec, IntCounterVec, Registry};

use super::{
    families::{Families, PULL_SECONDS, START_SECONDS, VOLUME_SECONDS},
    image_volumes::ImageVolumes,
    subject::{OF_IMAGES, Subject, role, start_error},
};

/// Families of pods.
#[derive(Debug)]
pub(super) struct Pods {
    started: IntCounterVec,
    start_errors: IntCounterVec,
    started_with_users: IntCounterVec,
    errors_with_users: IntCounterVec,
    containers: IntCounterVec,
    container_errors: IntCounterVec,
    sandbox_seconds: HistogramVec,
    sandbox_errors: IntCounterVec,
    volume_seconds: HistogramVec,
    volume_all: HistogramVec,
    image_volumes: ImageVolumes,
    pull_seconds: HistogramVec,
    first_container: HistogramVec,
    running: HistogramVec,
    total: HistogramVec,
    service_level: HistogramVec,
    first_network: GaugeVec,
}

impl Pods {
    #[expect(clippy::too_many_lines, reason = "a list of families, each with its words")]
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let families = Families(registry);
        Ok(Self {
            started: families.counter("kubelet_started_pods_total", "Sandboxes that were started.", &[])?,
            start_errors: families.counter(
                "kubelet_started_pods_errors_total",
                "Sandboxes that could not be started.",
                &[],
            )?,
            started_with_users: families.counter(
                "kubelet_started_user_namespaced_pods_total",
                "Sandboxes with a user namespace of their own that were started.",
                &[],
            )?,
            errors_with_users: families.counter(
                "kubelet_started_user_namespaced_pods_errors_total",
                "Sandboxes with a user namespace of their own, and containers in them, that could not be started.",
                &[],
            )?,
            containers: families.counter(
                "kubelet_started_containers_total",
                "Containers whose start was tried.",
                &["container_type"],
            )?,
            container_errors: families.counter(
                "kubelet_started_containers_errors_total",
                "Containers that could not be started, by the reason that their status shows.",
                &["container_type", "code"],
            )?,
            sandbox_seconds: families.histogram(
                "kubelet_run_podsandbox_duration_seconds",
                "Seconds that starts of sandboxes take, by handler.",
                &["runtime_handler"],
                DEFAULT_BUCKETS,
            )?,
            sandbox_errors: families.counter(
                "kubelet_run_podsandbox_errors_total",
                "Starts of sandboxes that failed, by handler.",
                &["runtime_handler"],
            )?,
            volume_seconds: families.histogram(
                "storage_operation_duration_seconds",
                "Seconds that volumes take to be made.",
                &["volume_plugin", "operation_name", "status", "migrated"],
                &VOLUME_SECONDS,
            )?,
            volume_all: families.histogram(
                "volume_operation_total_seconds",
                "Seconds from when a volume is wanted until it is made.",
                &["plugin_name", "operation_name"],
                &VOLUME_SECONDS,
            )?,
            image_volumes: ImageVolumes::new(registry)?,
            pull_seconds: families.histogram(
                "kubelet_image_pull_duration_seconds",
                "Seconds that pulls take, by the size of the image.",
                &["image_size_in_bytes"],
                &PULL_SECONDS,
            )?,
            first_container: families.histogram(
                "kubelet_pod_worker_start_duration_seconds",
                "Seconds from seeing a pod to the start of its first container.",
                &[],
                DEFAULT_BUCKETS,
            )?,
            running: families.histogram(
                "kubelet_pod_start_duration_seconds",
                "Seconds from seeing a pod to its running.",
                &[],
                &START_SECONDS,
            )?,
            total: families.histogram(
                "kubelet_pod_start_total_duration_seconds",
                "Seconds from the creation of a pod to all its containers running.",
                &[],
                &START_SECONDS,
            )?,
            service_level: families.histogram(
                "kubelet_pod_start_sli_duration_seconds",
                "The same without pulls and init containers, for pods whose volumes need nothing of others.",
                &[],
                &START_SECONDS,
            )?,
            first_network: families.gauge(
                "kubelet_first_network_pod_start_sli_duration_seconds",
                "The same of the first pod with a network of its own.",
                &[],
            )?,
        })
    }

    /// An effect has ended.
    pub(super) fn ended(&self, subject: &Subject, outcome: &Result<Outcome, Failure>, took: Duration) {
        match subject {
            Subject::Container(kind, users) => {
                self.container(*kind, outcome);
                if start_error(outcome).is_some() {
                    self.not_started_with(*users);
                }
            }
            Subject::Sandbox(handler, users) => {
                self.sandbox(handler, outcome.is_ok(), took);
                match users {
                    UserMode::Pod => self.started_with_users.with_label_values::<&str>(&[]).inc(),
                    UserMode::Node => {}
                }
                if outcome.is_err() {
                    self.not_started_with(*users);
                }
            }
            Subject::Volume(plugin) => {
                if *plugin == OF_IMAGES {
                    self.image_volumes.ended(outcome.is_ok());
                }
                let status = if outcome.is_ok() { "success" } else { "fail-unknown" };
                let labels = [*plugin, "volume_mount", status, "false"];
                self.volume_seconds.with_label_values(&labels).observe(took.as_secs_f64());
                if outcome.is_ok() {
                    let all = self.volume_all.with_label_values(&[*plugin, "overall_volume_mount"]);
                    all.observe(took.as_secs_f64());
                }
            }
            Subject::Probe(..) | Subject::Collected(_) | Subject::Other => {}
        }
    }

    /// A container could not be started for want of its image, which its status says by this reason.
    pub(super) fn without_image(&self, kind: ContainerKind, code: &str) {
        self.containers.with_label_values(&[role(kind)]).inc();
        self.container_errors.with_label_values(&[role(kind), code]).inc();
    }

    /// An image was pulled.
    pub(super) fn pulled(&self, image: &ImageInfo, took: Duration) {
        let class = image_size(image.size_bytes);
        self.pull_seconds.with_label_values(&[class]).observe(took.as_secs_f64());
    }

    /// This is known of a start now.
    pub(super) fn start(&self, started: &Started) {
        let observe = |family: &HistogramVec, labels: &[&str], took: Option<Duration>| {
            if let Some(took) = took {
                family.with_label_values(labels).observe(took.as_secs_f64());
            }
        };
        observe(&self.first_container, &[], started.first_container);
        observe(&self.running, &[], started.running);
        observe(&self.total, &[], started.total);
        observe(&self.service_level, &[], started.service_level);
        if let Some(took) = started.service_level.filter(|_| started.is_first_network) {
            self.first_network.with_label_values::<&str>(&[]).set(took.as_secs_f64());
        }
    }

    fn container(&self, kind: ContainerKind, outcome: &Result<Outcome, Failure>) {
        let role = role(kind);
        self.containers.with_label_values(&[role]).inc();
        if let Some(code) = start_error(outcome) {
            self.container_errors.with_label_values(&[role, code]).inc();
        }
    }

    /// Something of a pod with these users could not be started.
    fn not_started_with(&self, users: UserMode) {
        match users {
            UserMode::Pod => self.errors_with_users.with_label_values::<&str>(&[]).inc(),
            UserMode::Node => {}
        }
    }

    fn sandbox(&self, handler: &str, is_well: bool, took: Duration) {
        self.started.with_label_values::<&str>(&[]).inc();
        self.sandbox_seconds.with_label_values(&[handler]).observe(took.as_secs_f64());
        if !is_well {
            self.start_errors.with_label_values::<&str>(&[]).inc();
            self.sandbox_errors.with_label_values(&[handler]).inc();
        }
    }
}
