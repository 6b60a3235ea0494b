//! The kubelet's defaults. Source: `pkg/kubelet/apis/config/v1beta1/defaults.go` of Kubernetes 1.36.

use std::time::Duration;

use super::{
    KubeletFlags,
    duration::GoDuration,
    kubelet::{
        Anonymous, Authentication, Authorization, CrashLoopBackOff, FlushFrequency, KubeletConfiguration,
        Logging, MemorySwap, UserNamespaces, WebhookAuthentication, WebhookAuthorization, X509,
    },
    resolve::IDS_PER_POD,
};
use crate::document::{Entry, Node, Place, Value};

/// `evictionHard` of a file that has none.
const EVICTION_HARD: [(&str, &str); 5] = [
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
];

/// Where a value is said to be written that nobody has written.
pub(super) fn place() -> Place {
    Place { file: "defaults".into(), line: 0 }
}

/// Puts default signals into the tree of a file, of which a drop-in changes one by one: all where it has no `evictionHard`, and beside
/// those that it names where its `mergeDefaultEvictionSettings` asks for it (KEP-4580). Without a file there are none. Source:
/// `loadConfigFile` of `cmd/kubelet/app/server.go`.
pub(super) fn fill_eviction(kubelet: &mut Node) {
    let switch = kubelet.get("mergeDefaultEvictionSettings");
    let is_asked = switch.is_some_and(|node| node.value == Value::Bool(true));
    let Value::Map(entries) = &mut kubelet.value else { return };
    match entries.iter_mut().find(|entry| entry.key == "evictionHard") {
        Some(Entry { value: Node { value: Value::Map(signals), .. }, .. }) if is_asked => {
            for signal in default_signals() {
                if signals.iter().all(|named| named.key != signal.key) {
                    signals.push(signal);
                }
            }
        }
        Some(_) => {}
        None => {
            let value = Node { place: place(), value: Value::Map(default_signals().collect()) };
            entries.push(Entry { place: place(), key: "evictionHard".to_owned(), value });
        }
    }
}

fn default_signals() -> impl Iterator<Item = Entry> {
    EVICTION_HARD.into_iter().map(|(signal, value)| Entry {
        place: place(),
        key: signal.to_owned(),
        value: Node { place: place(), value: Value::Text(value.to_owned()) },
    })
}

/// Puts into a tree how often the node is looked at and reported, where it does not say: a report goes by the update that is written
/// there, and by no later one of a drop-in or a flag.
pub(super) fn fill_frequencies(kubelet: &mut Node) {
    const UPDATE: &str = "nodeStatusUpdateFrequency";
    const REPORT: &str = "nodeStatusReportFrequency";
    let is_zero = |node: &Node| {
        let time = node.text().and_then(|text| text.parse::<GoDuration>().ok());
        time.is_some_and(|time| time.0.is_zero())
    };
    let written = |key: &str| kubelet.get(key).filter(|node| !is_zero(node)).cloned();
    let (update, report) = (written(UPDATE), written(REPORT));
    let default = |time: &str| Node { place: place(), value: Value::Text(time.to_owned()) };
    let report = report.or_else(|| update.clone()).unwrap_or_else(|| default("5m0s"));
    let update = update.unwrap_or_else(|| default("10s"));
    let Value::Map(entries) = &mut kubelet.value else { return };
    for (key, value) in [(UPDATE, update), (REPORT, report)] {
        match entries.iter_mut().find(|entry| entry.key == key) {
            Some(entry) => entry.value = value,
            None => entries.push(Entry { place: value.place.clone(), key: key.to_owned(), value }),
        }
    }
}

/// Fills every absent field that has a default, but those that [`super::files::load`] has filled into the tree (`evictionHard`, the
/// frequencies of the node's status). A zero in a field that cannot tell zero from absent counts as absent, unless a flag gives it: flags
/// come after the defaults. Source: `kubeletConfigFlagPrecedence` of `cmd/kubelet/app/server.go`.
pub(super) fn apply(config: &mut KubeletConfiguration, flags: &KubeletFlags) {
    apply_zeroes(config, flags);
    apply_times(config);
    apply_sections(config, flags);
    apply_values(config, flags);
}

/// Fields of which Go keeps no difference between zero and absent.
fn apply_zeroes(config: &mut KubeletConfiguration, flags: &KubeletFlags) {
    let durations = [
        ("syncFrequency", &mut config.sync_frequency),
        ("fileCheckFrequency", &mut config.file_check_frequency),
        ("httpCheckFrequency", &mut config.http_check_frequency),
        ("streamingConnectionIdleTimeout", &mut config.streaming_connection_idle_timeout),
        ("imageMinimumGCAge", &mut config.image_minimum_gc_age),
        ("volumeStatsAggPeriod", &mut config.volume_stats_agg_period),
        ("cpuManagerReconcilePeriod", &mut config.cpu_manager_reconcile_period),
        ("runtimeRequestTimeout", &mut config.runtime_request_timeout),
        ("evictionPressureTransitionPeriod", &mut config.eviction_pressure_transition_period),
    ];
    for (name, field) in durations {
        *field = field.filter(|value| !value.0.is_zero() || flags.gives(name));
    }
    let numbers = [
        ("port", &mut config.port),
        ("nodeLeaseDurationSeconds", &mut config.node_lease_duration_seconds),
        ("maxPods", &mut config.max_pods),
        ("registryBurst", &mut config.registry_burst),
        ("eventBurst", &mut config.event_burst),
        ("kubeAPIBurst", &mut config.kube_api_burst),
    ];
    for (name, field) in numbers {
        *field = field.filter(|value| *value != 0 || flags.gives(name));
    }
    let texts = [
        ("address", &mut config.address),
        ("healthzBindAddress", &mut config.healthz_bind_address),
        ("cgroupDriver", &mut config.cgroup_driver),
        ("cpuManagerPolicy", &mut config.cpu_manager_policy),
        ("memoryManagerPolicy", &mut config.memory_manager_policy),
        ("memoryReservationPolicy", &mut config.memory_reservation_policy),
        ("topologyManagerPolicy", &mut config.topology_manager_policy),
        ("topologyManagerScope", &mut config.topology_manager_scope),
        ("hairpinMode", &mut config.hairpin_mode),
        ("contentType", &mut config.content_type),
        ("containerLogMaxSize", &mut config.container_log_max_size),
        ("podLogsDir", &mut config.pod_logs_dir),
        ("containerRuntimeEndpoint", &mut config.container_runtime_endpoint),
        ("volumePluginDir", &mut config.volume_plugin_dir),
        (
            "configMapAndSecretChangeDetectionStrategy",
            &mut config.config_map_and_secret_change_detection_strategy,
        ),
        ("imagePullCredentialsVerificationPolicy", &mut config.image_pull_credentials_verification_policy),
        ("staticPodPath", &mut config.static_pod_path),
    ];
    for (name, field) in texts {
        if field.as_ref().is_some_and(String::is_empty) && !flags.gives(name) {
            *field = None;
        }
    }
}

fn apply_times(config: &mut KubeletConfiguration) {
    let seconds = |seconds| GoDuration(Duration::from_secs(seconds));
    for (field, default) in [
        (&mut config.sync_frequency, 60),
        (&mut config.file_check_frequency, 20),
        (&mut config.http_check_frequency, 20),
        (&mut config.streaming_connection_idle_timeout, 4 * 3600),
        (&mut config.image_minimum_gc_age, 120),
        (&mut config.image_maximum_gc_age, 0),
        (&mut config.volume_stats_agg_period, 60),
        (&mut config.cpu_manager_reconcile_period, 10),
        (&mut config.runtime_request_timeout, 120),
        (&mut config.container_log_monitor_interval, 10),
        (&mut config.eviction_pressure_transition_period, 300),
        (&mut config.shutdown_grace_period, 0),
        (&mut config.shutdown_grace_period_critical_pods, 0),
    ] {
        field.get_or_insert(seconds(default));
    }
    config.cpu_cfs_quota_period.get_or_insert(GoDuration(Duration::from_millis(100)));
}

fn apply_sections(config: &mut KubeletConfiguration, flags: &KubeletFlags) {
    let seconds = |seconds| GoDuration(Duration::from_secs(seconds));
    let authentication = config.authentication.get_or_insert_with(Authentication::default);
    authentication.x509.get_or_insert_with(X509::default);
    authentication.anonymous.get_or_insert_with(Anonymous::default).enabled.get_or_insert(false);
    let webhook = authentication.webhook.get_or_insert_with(WebhookAuthentication::default);
    webhook.enabled.get_or_insert(true);
    fill_time(flags, "authentication.webhook.cacheTTL", &mut webhook.cache_ttl, 120);
    let authorization = config.authorization.get_or_insert_with(Authorization::default);
    let is_of_flag = flags.gives("authorization.mode");
    authorization.mode = authorization.mode.take().filter(|mode| !mode.is_empty() || is_of_flag);
    authorization.mode.get_or_insert_with(|| "Webhook".to_owned());
    let webhook = authorization.webhook.get_or_insert_with(WebhookAuthorization::default);
    fill_time(flags, "authorization.webhook.cacheAuthorizedTTL", &mut webhook.cache_authorized_ttl, 300);
    fill_time(flags, "authorization.webhook.cacheUnauthorizedTTL", &mut webhook.cache_unauthorized_ttl, 30);
    let restarts = config.crash_loop_back_off.get_or_insert_with(CrashLoopBackOff::default);
    restarts.max_container_restart_period.get_or_insert(seconds(300));
    let logging = config.logging.get_or_insert_with(Logging::default);
    let is_of_flag = flags.gives("logging.format");
    logging.format = logging.format.take().filter(|format| !format.is_empty() || is_of_flag);
    logging.format.get_or_insert_with(|| "text".to_owned());
    logging.flush_frequency.get_or_insert(FlushFrequency(seconds(5)));
    logging.verbosity.get_or_insert(0);
    config.memory_swap.get_or_insert_with(MemorySwap::default);
    config
        .user_namespaces
        .get_or_insert_with(UserNamespaces::default)
        .ids_per_pod
        .get_or_insert(IDS_PER_POD.into());
}

/// Fills a time in which zero stands for the default, unless a flag gives it.
fn fill_time(flags: &KubeletFlags, name: &str, field: &mut Option<GoDuration>, default: u64) {
    let given = field.filter(|value| !value.0.is_zero() || flags.gives(name));
    *field = given.or(Some(GoDuration(Duration::from_secs(default))));
}

fn apply_values(config: &mut KubeletConfiguration, flags: &KubeletFlags) {
    for (field, default) in [
        (&mut config.port, 10250),
        (&mut config.read_only_port, 0),
        (&mut config.healthz_port, 10248),
        (&mut config.registry_pull_qps, 5),
        (&mut config.registry_burst, 10),
        (&mut config.event_record_qps, 50),
        (&mut config.event_burst, 100),
        (&mut config.kube_api_qps, 50),
        (&mut config.kube_api_burst, 100),
        (&mut config.oom_score_adj, -999),
        (&mut config.node_lease_duration_seconds, 40),
        (&mut config.node_status_max_images, 50),
        (&mut config.max_pods, 110),
        (&mut config.pods_per_core, 0),
        (&mut config.image_gc_high_threshold_percent, 85),
        (&mut config.image_gc_low_threshold_percent, 80),
        (&mut config.iptables_masquerade_bit, 14),
        (&mut config.iptables_drop_bit, 15),
        (&mut config.eviction_max_pod_grace_period, 0),
        (&mut config.container_log_max_files, 5),
        (&mut config.container_log_max_workers, 1),
    ] {
        field.get_or_insert(default);
    }
    for (field, default) in [
        (&mut config.enable_server, true),
        (&mut config.enable_debugging_handlers, true),
        (&mut config.enable_profiling_handler, true),
        (&mut config.enable_debug_flags_handler, true),
        (&mut config.enable_system_log_handler, true),
        (&mut config.enable_system_log_query, false),
        (&mut config.register_node, true),
        (&mut config.make_iptables_util_chains, true),
        (&mut config.cgroups_per_qos, true),
        (&mut config.cpu_cfs_quota, true),
        (&mut config.fail_cgroup_v1, true),
        (&mut config.fail_swap_on, true),
        (&mut config.seccomp_default, false),
        (&mut config.merge_default_eviction_settings, false),
        (&mut config.local_storage_capacity_isolation, true),
        (&mut config.enable_controller_attach_detach, true),
        (&mut config.protect_kernel_defaults, false),
    ] {
        field.get_or_insert(default);
    }
    apply_texts(config);
    let parallel = config.max_parallel_image_pulls.is_some_and(|pulls| pulls >= 2);
    config.serialize_image_pulls.get_or_insert(!parallel);
    config.pod_pids_limit = config.pod_pids_limit.filter(|limit| *limit >= 0).or(Some(-1));
    let given = config.max_open_files.filter(|files| *files != 0 || flags.gives("maxOpenFiles"));
    config.max_open_files = given.or(Some(1_000_000));
    config.memory_throttling_factor.get_or_insert(0.9);
    config.enforce_node_allocatable.get_or_insert_with(|| vec!["pods".to_owned()]);
}

fn apply_texts(config: &mut KubeletConfiguration) {
    for (field, default) in [
        (&mut config.address, "0.0.0.0"),
        (&mut config.healthz_bind_address, "127.0.0.1"),
        (&mut config.cgroup_driver, "cgroupfs"),
        (&mut config.cpu_manager_policy, "none"),
        (&mut config.memory_manager_policy, "None"),
        (&mut config.memory_reservation_policy, "None"),
        (&mut config.topology_manager_policy, "none"),
        (&mut config.topology_manager_scope, "container"),
        (&mut config.hairpin_mode, "promiscuous-bridge"),
        (&mut config.content_type, "application/vnd.kubernetes.protobuf"),
        (&mut config.container_log_max_size, "10Mi"),
        (&mut config.pod_logs_dir, "/var/log/pods"),
        (&mut config.resolv_conf, "/etc/resolv.conf"),
        (&mut config.container_runtime_endpoint, "unix:///run/containerd/containerd.sock"),
        (&mut config.volume_plugin_dir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"),
        (&mut config.config_map_and_secret_change_detection_strategy, "Watch"),
        (&mut config.image_pull_credentials_verification_policy, "NeverVerifyPreloadedImages"),
    ] {
        field.get_or_insert_with(|| default.to_owned());
    }
}
