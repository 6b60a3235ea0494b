//! `docs/differences.md` names what a kubelet measures and the agent does not, all of it and nothing else.
//!
//! Sources: what is registered by `pkg/kubelet`, `pkg/volume`, `pkg/credentialprovider` and `k8s.io/component-base/metrics/prometheus`,
//! `github.com/prometheus/client_golang/prometheus/process_collector.go`, `pkg/kubelet/kuberuntime/instrumented_services.go`.

use super::{table::FAMILIES, *};

const PAGE: &str = include_str!("../../../../docs/differences.md");

/// Families of a kubelet on Linux that are not here. Of what libraries measure of themselves one of each kind.
const MISSING: &[&str] = &[
    "apiserver_delegated_authn_request_total",
    "authenticated_user_requests",
    "authentication_attempts",
    "authentication_duration_seconds",
    "authentication_token_cache_active_fetch_count",
    "authentication_token_cache_fetch_total",
    "authentication_token_cache_request_duration_seconds",
    "authentication_token_cache_request_total",
    "authorization_attempts_total",
    "authorization_duration_seconds",
    "cardinality_enforcement_unexpected_categorizations_total",
    "csi_operations_seconds",
    "disabled_metrics_total",
    "dra_grpc_operations_duration_seconds",
    "dra_operations_duration_seconds",
    "dra_resource_claims_in_use",
    "field_validation_request_duration_seconds",
    "force_cleaned_failed_volume_operation_errors_total",
    "force_cleaned_failed_volume_operations_total",
    "hidden_metrics_total",
    "informer_queued_items",
    "kubelet_container_aligned_compute_resources_count",
    "kubelet_container_aligned_compute_resources_failure_count",
    "kubelet_cpu_manager_allocation_per_numa",
    "kubelet_cpu_manager_exclusive_cpu_allocation_count",
    "kubelet_cpu_manager_pinning_errors_total",
    "kubelet_cpu_manager_pinning_requests_total",
    "kubelet_cpu_manager_shared_pool_size_millicores",
    "kubelet_credential_provider_config_info",
    "kubelet_credential_provider_plugin_duration",
    "kubelet_credential_provider_plugin_errors_total",
    "kubelet_cri_losing_support",
    "kubelet_device_plugin_alloc_duration_seconds",
    "kubelet_device_plugin_registration_total",
    "kubelet_evented_pleg_connection_error_count",
    "kubelet_evented_pleg_connection_latency_seconds",
    "kubelet_evented_pleg_connection_success_count",
    "kubelet_eviction_stats_age_seconds",
    "kubelet_evictions",
    "kubelet_graceful_shutdown_end_time_seconds",
    "kubelet_graceful_shutdown_start_time_seconds",
    "kubelet_image_manager_ensure_image_requests_total",
    "kubelet_imagemanager_image_mustpull_checks_total",
    "kubelet_imagemanager_inmemory_pulledrecords_usage_percent",
    "kubelet_imagemanager_inmemory_pullintents_usage_percent",
    "kubelet_imagemanager_ondisk_pulledrecords",
    "kubelet_imagemanager_ondisk_pullintents",
    "kubelet_lifecycle_handler_http_fallbacks_total",
    "kubelet_memory_manager_pinning_errors_total",
    "kubelet_memory_manager_pinning_requests_total",
    "kubelet_memory_qos_node_memory_low_bytes",
    "kubelet_memory_qos_node_memory_min_bytes",
    "kubelet_metrics_provider",
    "kubelet_orphan_pod_cleaned_volumes",
    "kubelet_orphan_pod_cleaned_volumes_errors",
    "kubelet_pleg_pod_relist_duration_seconds",
    "kubelet_pod_resources_endpoint_errors_get",
    "kubelet_pod_resources_endpoint_errors_get_allocatable",
    "kubelet_pod_resources_endpoint_errors_list",
    "kubelet_pod_resources_endpoint_requests_get",
    "kubelet_pod_resources_endpoint_requests_get_allocatable",
    "kubelet_pod_resources_endpoint_requests_list",
    "kubelet_pod_resources_endpoint_requests_total",
    "kubelet_pod_watch_events_dropped_total",
    "kubelet_podcertificate_states",
    "kubelet_sleep_action_terminated_early_total",
    "kubelet_started_host_process_containers_errors_total",
    "kubelet_started_host_process_containers_total",
    "kubelet_topology_manager_admission_duration_ms",
    "kubelet_topology_manager_admission_errors_total",
    "kubelet_topology_manager_admission_requests_total",
    "kubelet_volume_metric_collection_duration_seconds",
    "kubelet_volume_stats_available_bytes",
    "kubelet_volume_stats_capacity_bytes",
    "kubelet_volume_stats_health_status_abnormal",
    "kubelet_volume_stats_inodes",
    "kubelet_volume_stats_inodes_free",
    "kubelet_volume_stats_inodes_used",
    "kubelet_volume_stats_used_bytes",
    "leader_election_master_status",
    "leader_election_slowpath_total",
    "plugin_manager_total_plugins",
    "process_network_receive_bytes_total",
    "process_network_transmit_bytes_total",
    "reconstruct_volume_operations_errors_total",
    "reconstruct_volume_operations_total",
    "registered_metrics_total",
    "resource_manager_allocation_errors_total",
    "resource_manager_allocations_total",
    "resource_manager_container_assignments",
    "rest_client_dns_resolution_duration_seconds",
    "rest_client_exec_plugin_call_total",
    "rest_client_exec_plugin_certificate_rotation_age",
    "rest_client_exec_plugin_policy_call_total",
    "rest_client_exec_plugin_ttl_seconds",
    "rest_client_rate_limiter_duration_seconds",
    "rest_client_request_retries_total",
    "rest_client_request_size_bytes",
    "rest_client_response_size_bytes",
    "rest_client_transport_ca_reload_total",
    "rest_client_transport_cache_entries",
    "rest_client_transport_cache_gc_calls_total",
    "rest_client_transport_cert_rotation_gc_calls_total",
    "rest_client_transport_create_calls_total",
    "running_managed_controllers",
    "volume_manager_selinux_container_errors_total",
    "volume_manager_selinux_container_warnings_total",
    "volume_manager_selinux_pod_context_mismatch_errors_total",
    "volume_manager_selinux_pod_context_mismatch_warnings_total",
    "volume_manager_selinux_volume_context_mismatch_errors_total",
    "volume_manager_selinux_volume_context_mismatch_warnings_total",
    "volume_manager_selinux_volumes_admitted_total",
    "workqueue_depth",
];

/// Families that the page says are not here, in the words between backticks of the first cell; `*` is for any end.
fn told() -> Vec<&'static str> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with("Metrics of the agent")).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| {
        let mut cells = row.split(" | ");
        let (names, here) = (cells.next()?, cells.next()?);
        here.starts_with("none").then_some(names)
    });
    cells.flat_map(|names| names.split('`')).filter(|name| name.contains('_')).collect()
}

/// Operations of the runtime that are counted here, by the effects or sessions that they are.
const OPERATIONS: [&str; 17] = [
    "attach",
    "container_status",
    "create_container",
    "exec",
    "exec_sync",
    "image_status",
    "list_images",
    "port_forward",
    "pull_image",
    "remove_container",
    "remove_image",
    "remove_podsandbox",
    "run_podsandbox",
    "start_container",
    "stop_container",
    "stop_podsandbox",
    "update_container",
];

/// Those of a kubelet that are not.
const MISSING_OPERATIONS: [&str; 19] = [
    "checkpoint_container",
    "close",
    "container_stats",
    "get_container_events",
    "image_fs_info",
    "list_container_stats",
    "list_containers",
    "list_metric_descriptors",
    "list_podsandbox",
    "list_podsandbox_metrics",
    "list_podsandbox_stats",
    "podsandbox_stats",
    "podsandbox_status",
    "reopen_container_log",
    "runtime_config",
    "status",
    "update_podsandbox_resources",
    "update_runtime_config",
    "version",
];

/// Effects by their names, and what was counted of them; sessions are counted elsewhere.
#[test]
fn operations_that_are_not_counted_are_told() {
    let row = PAGE.lines().find(|line| line.starts_with("| `kubelet_runtime_operations_*` |")).unwrap();
    let (_, told) = row.split_once("there is no ").unwrap();
    let told: Vec<_> = told.split('`').skip(1).step_by(2).collect();
    assert_eq!(told, MISSING_OPERATIONS);
    let metrics = Metrics::new("n", View::default()).unwrap();
    for kind in KINDS {
        metrics.ended(kind, &Subject::Other, &Ok(Outcome::Done), seconds(1));
    }
    let text = metrics.text();
    let counted = text.lines().filter_map(|line| {
        line.strip_prefix("kubelet_runtime_operations_total{operation_type=\"")?.split('"').next()
    });
    let of_sessions = ["attach", "exec", "exec_sync", "port_forward"];
    let counted: BTreeSet<_> = counted.chain(of_sessions).collect();
    assert_eq!(counted.into_iter().collect::<Vec<_>>(), OPERATIONS);
}

fn is_meant(told: &str, name: &str) -> bool {
    told.strip_suffix('*').map_or(told == name, |start| name.starts_with(start))
}

#[test]
fn what_is_not_measured_is_told() {
    let told = told();
    let untold: Vec<_> =
        MISSING.iter().filter(|name| !told.iter().any(|told| is_meant(told, name))).collect();
    assert!(untold.is_empty(), "docs/differences.md does not tell of {untold:?}");
    let go = "go_goroutines";
    let all = || MISSING.iter().copied().chain([go]);
    let nothing: Vec<_> = told.iter().filter(|told| !all().any(|name| is_meant(told, name))).collect();
    assert!(nothing.is_empty(), "no kubelet has {nothing:?}");
    let here: BTreeSet<_> = FAMILIES.iter().map(|(name, ..)| *name).collect();
    let both: Vec<_> = here
        .iter()
        .filter(|name| MISSING.contains(name) || told.iter().any(|told| is_meant(told, name)))
        .collect();
    assert!(both.is_empty(), "{both:?} are here");
}
