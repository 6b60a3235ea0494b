//! Families are as the kubelet has them: names, types, labels and bounds, which alerts and dashboards go by.
//!
//! Sources: `pkg/kubelet/metrics/metrics.go`, `pkg/kubelet/certificate/kubelet.go`, `cmd/kubelet/app/server.go`,
//! `pkg/kubelet/prober/prober_manager.go`, `pkg/volume/util/metrics.go`, `k8s.io/component-base/metrics`.

use berth_core::{
    metrics::{Infeasible, Requested, ResizeMeasure, Trigger},
    status::ConditionKind,
};
use prometheus::proto::{MetricFamily, MetricType};

use super::{resizes::resizing, *};

const DEFAULT: &str = "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10";
const OPERATION: &str = "0.005 0.0125 0.03125 0.078125 0.1953125 0.48828125 1.220703125 3.0517578125 7.62939453125 19.073486328125 \
                         47.6837158203125 119.20928955078125 298.0232238769531 745.0580596923828";
const START: &str = "0.5 1 2 3 4 5 6 8 10 20 30 45 60 120 180 240 300 360 480 600 900 1200 1800 2700 3600";
const PULL: &str = "1 5 10 20 30 60 120 180 240 300 360 480 600 900 1200 1800 2700 3600";
const VOLUME: &str = "0.1 0.25 0.5 1 2.5 5 10 15 25 50 120 300 600";
const TOLD: &str = "0.01 0.05 0.1 0.5 1 5 10 20 30 45 60";
const RESIZE: &str = "10 50 100 500 1000 2000 5000 10000 20000 30000 60000 120000 300000 600000";
const ROTATION: &str = "60 3600 14400 86400 604800 2592000 7776000 15552000 31104000 124416000";

/// Name, type, labels in alphabetical order, and bounds of a histogram.
pub(super) const FAMILIES: &[(&str, &str, &str, &str)] = &[
    ("kubelet_active_pods", "gauge", "static", ""),
    ("kubelet_admission_rejections_total", "counter", "reason", ""),
    ("kubelet_certificate_manager_client_expiration_renew_errors", "counter", "", ""),
    ("kubelet_certificate_manager_client_ttl_seconds", "gauge", "", ""),
    ("kubelet_certificate_manager_server_rotation_seconds", "histogram", "", ROTATION),
    ("kubelet_certificate_manager_server_ttl_seconds", "gauge", "", ""),
    ("kubelet_cgroup_manager_duration_seconds", "histogram", "operation_type", DEFAULT),
    ("kubelet_container_requested_resizes_total", "counter", "operation requirement resource", ""),
    ("kubelet_containers_per_pod_count", "histogram", "", "1 2 4 8 16"),
    ("kubelet_desired_pods", "gauge", "static", ""),
    ("kubelet_first_network_pod_start_sli_duration_seconds", "gauge", "", ""),
    ("kubelet_image_garbage_collected_total", "counter", "reason", ""),
    ("kubelet_image_pull_duration_seconds", "histogram", "image_size_in_bytes", PULL),
    ("kubelet_image_volume_mounted_errors_total", "counter", "", ""),
    ("kubelet_image_volume_mounted_succeed_total", "counter", "", ""),
    ("kubelet_image_volume_requested_total", "counter", "", ""),
    ("kubelet_managed_ephemeral_containers", "gauge", "", ""),
    ("kubelet_mirror_pods", "gauge", "", ""),
    ("kubelet_node_name", "gauge", "node", ""),
    ("kubelet_node_startup_duration_seconds", "gauge", "", ""),
    ("kubelet_node_startup_post_registration_duration_seconds", "gauge", "", ""),
    ("kubelet_node_startup_pre_kubelet_duration_seconds", "gauge", "", ""),
    ("kubelet_node_startup_pre_registration_duration_seconds", "gauge", "", ""),
    ("kubelet_node_startup_registration_duration_seconds", "gauge", "", ""),
    ("kubelet_orphaned_runtime_pods_total", "counter", "", ""),
    ("kubelet_pleg_discard_events", "counter", "", ""),
    ("kubelet_pleg_last_seen_seconds", "gauge", "", ""),
    ("kubelet_pleg_relist_duration_seconds", "histogram", "", DEFAULT),
    ("kubelet_pleg_relist_interval_seconds", "histogram", "", DEFAULT),
    ("kubelet_pod_deferred_accepted_resizes_total", "counter", "retry_trigger", ""),
    ("kubelet_pod_in_progress_resizes", "gauge", "", ""),
    ("kubelet_pod_infeasible_resizes_total", "counter", "reason_detail", ""),
    ("kubelet_pod_pending_resizes", "gauge", "reason", ""),
    ("kubelet_pod_resize_duration_milliseconds", "histogram", "success", RESIZE),
    ("kubelet_pod_start_duration_seconds", "histogram", "", START),
    ("kubelet_pod_start_sli_duration_seconds", "histogram", "", START),
    ("kubelet_pod_start_total_duration_seconds", "histogram", "", START),
    ("kubelet_pod_status_sync_duration_seconds", "histogram", "", TOLD),
    ("kubelet_pod_worker_duration_seconds", "histogram", "operation_type", DEFAULT),
    ("kubelet_pod_worker_start_duration_seconds", "histogram", "", DEFAULT),
    ("kubelet_preemptions", "counter", "preemption_signal", ""),
    ("kubelet_restarted_pods_total", "counter", "static", ""),
    ("kubelet_run_podsandbox_duration_seconds", "histogram", "runtime_handler", DEFAULT),
    ("kubelet_run_podsandbox_errors_total", "counter", "runtime_handler", ""),
    ("kubelet_running_containers", "gauge", "container_state", ""),
    ("kubelet_running_pods", "gauge", "", ""),
    ("kubelet_runtime_operations_duration_seconds", "histogram", "operation_type", OPERATION),
    ("kubelet_runtime_operations_errors_total", "counter", "operation_type", ""),
    ("kubelet_runtime_operations_total", "counter", "operation_type", ""),
    ("kubelet_server_expiration_renew_errors", "counter", "", ""),
    ("kubelet_started_containers_errors_total", "counter", "code container_type", ""),
    ("kubelet_started_containers_total", "counter", "container_type", ""),
    ("kubelet_started_pods_errors_total", "counter", "", ""),
    ("kubelet_started_pods_total", "counter", "", ""),
    ("kubelet_started_user_namespaced_pods_errors_total", "counter", "", ""),
    ("kubelet_started_user_namespaced_pods_total", "counter", "", ""),
    ("kubelet_terminated_containers_total", "counter", "container_type exit_code reason", ""),
    ("kubelet_websocket_streaming_requests_total", "counter", "subresource", ""),
    ("kubelet_working_pods", "gauge", "config lifecycle static", ""),
    ("kubernetes_feature_enabled", "gauge", "name stage", ""),
    ("process_cpu_seconds_total", "counter", "", ""),
    ("process_max_fds", "gauge", "", ""),
    ("process_open_fds", "gauge", "", ""),
    ("process_resident_memory_bytes", "gauge", "", ""),
    ("process_start_time_seconds", "gauge", "", ""),
    ("process_virtual_memory_bytes", "gauge", "", ""),
    ("process_virtual_memory_max_bytes", "gauge", "", ""),
    (
        "storage_operation_duration_seconds",
        "histogram",
        "migrated operation_name status volume_plugin",
        VOLUME,
    ),
    ("volume_manager_total_volumes", "gauge", "plugin_name state", ""),
    ("volume_operation_total_seconds", "histogram", "operation_name plugin_name", VOLUME),
];

/// What no kubelet has, or has otherwise: what is built says one version of two programs.
const OWN: [&str; 4] =
    ["berth_build_info", "berth_effect_duration_seconds", "kubernetes_build_info", "process_threads"];

#[test]
fn families_are_those_that_alerts_and_dashboards_know() {
    let view = View::default();
    let metrics = Metrics::new("n", view.clone()).unwrap();
    everything_happens(&metrics, &view);
    let text = metrics.text();
    let families = metrics.0.registry.gather();
    let found = families.iter().filter(|family| !OWN.contains(&family.name())).map(row);
    let found: Vec<_> = found.collect();
    let expected = FAMILIES
        .iter()
        .map(|(name, kind, labels, bounds)| [*name, kind, labels, bounds].map(str::to_owned))
        .collect::<Vec<_>>();
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len(), "{text}");
}

/// Name, type, labels and bounds of a family.
fn row(family: &MetricFamily) -> [String; 4] {
    let metric = &family.get_metric()[0];
    let labels: BTreeSet<&str> = metric.get_label().iter().map(|label| label.name()).collect();
    let kind = match family.get_field_type() {
        MetricType::COUNTER => "counter",
        MetricType::GAUGE => "gauge",
        MetricType::HISTOGRAM => "histogram",
        MetricType::SUMMARY | MetricType::UNTYPED => "neither",
    };
    let buckets = if kind == "histogram" { metric.get_histogram().get_bucket() } else { &[] };
    let bounds = buckets.iter().map(|bucket| bucket.upper_bound()).filter(|bound| bound.is_finite());
    let bounds: Vec<String> = bounds.map(|bound| bound.to_string()).collect();
    let labels = labels.into_iter().collect::<Vec<_>>().join(" ");
    [family.name().to_owned(), kind.to_owned(), labels, bounds.join(" ")]
}

/// Of families without a series nothing is shown.
fn everything_happens(metrics: &Metrics, view: &View) {
    let inner = &metrics.0;
    let (well, pull) = (Ok(Outcome::Done), Ok(Outcome::Image(Some(Arc::new(image())))));
    metrics.ended("ensure-cgroup", &Subject::Other, &well, seconds(1));
    metrics.ended("write-file", &Subject::Other, &well, seconds(1));
    metrics.ended("ensure-sandbox", &Subject::Sandbox(String::new(), UserMode::Node), &failed(), seconds(1));
    metrics.ended(
        "start-container",
        &Subject::Container(ContainerKind::Main, UserMode::Node),
        &failed(),
        seconds(1),
    );
    metrics.ended("ensure-volume", &Subject::Volume("v"), &well, seconds(1));
    metrics.web_socket("exec");
    metrics.ended("remove-image", &Subject::Collected(Reason::Space), &Ok(Outcome::Done), seconds(1));
    metrics.ended("pull-image", &Subject::Other, &pull, seconds(1));
    let running = |since| ContainerState::Running { started_at: at(since) };
    for (now, state, phase) in
        [(102, waiting(), Phase::Pending), (110, running(110), Phase::Running), (120, ended(), Phase::Failed)]
    {
        let published = published(phase, state);
        metrics.publishes(&published, at(now));
        view.publish(published);
    }
    let mut running_again = published(Phase::Running, running(110));
    view.publish(running_again.clone());
    let stopping = PodStatus { terminating: true, ..PodStatus::clone(&running_again.status) };
    running_again.status = Arc::new(stopping);
    metrics.publishes(&running_again, at(130));
    metrics.withdrawn(&PodUid::new("1-a"), at(140));
    metrics.turn_begins(Mono(seconds(1)));
    metrics.turn_begins(Mono(seconds(2)));
    metrics.turn_ended(seconds(1));
    metrics.watch_turns(|| None).unwrap();
    for reason in ["OutOfcpu", "Preempting"] {
        metrics.noted(&PodUid::new("1-a"), &event(reason), at(141));
    }
    let asks = Requested { resource: "cpu", requirement: "limits", operation: "add" };
    metrics.resizes(&[
        ResizeMeasure::Requested(asks),
        ResizeMeasure::Infeasible(Infeasible::Swap),
        ResizeMeasure::Accepted(Trigger::PodsRemoved),
        ResizeMeasure::Tried { is_done: true, took: seconds(1) },
    ]);
    view.publish(resizing(ConditionKind::PodResizePending, "Deferred"));
    metrics.gates(&[FeatureGate { name: "MemoryQoS", stage: "ALPHA", is_on: true }]).unwrap();
    metrics.ask_until(Certified::Client, || None).unwrap();
    metrics.ask_until(Certified::Server, || None).unwrap();
    inner.in_cluster.node_is_to_be_made();
    inner.in_cluster.node_was_made();
    inner.in_cluster.node_is_ready();
    inner.in_cluster.told(seconds(1));
    inner.in_cluster.rotated(seconds(1));
}
