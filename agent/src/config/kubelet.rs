//! `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1`: every field of Kubernetes 1.36, as written.
//!
//! Source: `staging/src/k8s.io/kubelet/config/v1beta1/types.go`. An absent field is `None`; defaults are applied in
//! `resolve`. [`ACTED_ON`] names the fields that this version acts on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::duration::GoDuration;
use crate::quantity;

type Map = BTreeMap<String, String>;

macro_rules! kubelet_configuration {
    ($($field:ident: $kind:ty,)*) => {
        /// The document.
        #[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
        #[serde(rename_all = "camelCase")]
        pub struct KubeletConfiguration {
            $(#[serde(default, skip_serializing_if = "Option::is_none")] pub $field: Option<$kind>,)*
            /// Not the camel case that serde would make of it.
            #[serde(default, rename = "staticPodURL", skip_serializing_if = "Option::is_none")]
            pub static_pod_url: Option<String>,
            #[serde(default, rename = "staticPodURLHeader", skip_serializing_if = "Option::is_none")]
            pub static_pod_url_header: Option<BTreeMap<String, Vec<String>>>,
            #[serde(default, rename = "clusterDNS", skip_serializing_if = "Option::is_none")]
            pub cluster_dns: Option<Vec<String>>,
            #[serde(default, rename = "podCIDR", skip_serializing_if = "Option::is_none")]
            pub pod_cidr: Option<String>,
            #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
            pub provider_id: Option<String>,
            #[serde(default, rename = "serverTLSBootstrap", skip_serializing_if = "Option::is_none")]
            pub server_tls_bootstrap: Option<bool>,
            #[serde(default, rename = "registryPullQPS", skip_serializing_if = "Option::is_none")]
            pub registry_pull_qps: Option<i32>,
            #[serde(default, rename = "eventRecordQPS", skip_serializing_if = "Option::is_none")]
            pub event_record_qps: Option<i32>,
            #[serde(default, rename = "kubeAPIQPS", skip_serializing_if = "Option::is_none")]
            pub kube_api_qps: Option<i32>,
            #[serde(default, rename = "kubeAPIBurst", skip_serializing_if = "Option::is_none")]
            pub kube_api_burst: Option<i32>,
            #[serde(default, rename = "imageMinimumGCAge", skip_serializing_if = "Option::is_none")]
            pub image_minimum_gc_age: Option<GoDuration>,
            #[serde(default, rename = "imageMaximumGCAge", skip_serializing_if = "Option::is_none")]
            pub image_maximum_gc_age: Option<GoDuration>,
            #[serde(default, rename = "imageGCHighThresholdPercent", skip_serializing_if = "Option::is_none")]
            pub image_gc_high_threshold_percent: Option<i32>,
            #[serde(default, rename = "imageGCLowThresholdPercent", skip_serializing_if = "Option::is_none")]
            pub image_gc_low_threshold_percent: Option<i32>,
            #[serde(default, rename = "cgroupsPerQOS", skip_serializing_if = "Option::is_none")]
            pub cgroups_per_qos: Option<bool>,
            #[serde(default, rename = "singleProcessOOMKill", skip_serializing_if = "Option::is_none")]
            pub single_process_oom_kill: Option<bool>,
            #[serde(default, rename = "cpuCFSQuota", skip_serializing_if = "Option::is_none")]
            pub cpu_cfs_quota: Option<bool>,
            #[serde(default, rename = "cpuCFSQuotaPeriod", skip_serializing_if = "Option::is_none")]
            pub cpu_cfs_quota_period: Option<GoDuration>,
            #[serde(default, rename = "makeIPTablesUtilChains", skip_serializing_if = "Option::is_none")]
            pub make_iptables_util_chains: Option<bool>,
            #[serde(default, rename = "reservedSystemCPUs", skip_serializing_if = "Option::is_none")]
            pub reserved_system_cpus: Option<String>,
        }
    };
}

kubelet_configuration! {
    // Where pods come from.
    static_pod_path: String,
    pod_logs_dir: String,
    sync_frequency: GoDuration,
    file_check_frequency: GoDuration,
    http_check_frequency: GoDuration,
    run_once: bool,
    config_map_and_secret_change_detection_strategy: String,
    // The server.
    enable_server: bool,
    address: String,
    port: i32,
    read_only_port: i32,
    tls_cert_file: String,
    tls_private_key_file: String,
    tls_cipher_suites: Vec<String>,
    tls_min_version: String,
    tls_curve_preferences: Vec<i32>,
    rotate_certificates: bool,
    authentication: Authentication,
    authorization: Authorization,
    enable_debugging_handlers: bool,
    enable_contention_profiling: bool,
    enable_profiling_handler: bool,
    enable_debug_flags_handler: bool,
    enable_system_log_handler: bool,
    enable_system_log_query: bool,
    healthz_port: i32,
    healthz_bind_address: String,
    streaming_connection_idle_timeout: GoDuration,
    show_hidden_metrics_for_version: String,
    tracing: Tracing,
    logging: Logging,
    // The API server.
    event_burst: i32,
    content_type: String,
    register_node: bool,
    register_with_taints: Vec<Taint>,
    node_status_update_frequency: GoDuration,
    node_status_report_frequency: GoDuration,
    node_lease_duration_seconds: i32,
    node_status_max_images: i32,
    max_pods: i32,
    pods_per_core: i32,
    // DNS and network.
    cluster_domain: String,
    resolv_conf: String,
    hairpin_mode: String,
    iptables_masquerade_bit: i32,
    iptables_drop_bit: i32,
    // The runtime.
    container_runtime_endpoint: String,
    image_service_endpoint: String,
    runtime_request_timeout: GoDuration,
    seccomp_default: bool,
    pod_pids_limit: i64,
    oom_score_adj: i32,
    user_namespaces: UserNamespaces,
    max_open_files: i64,
    allowed_unsafe_sysctls: Vec<String>,
    default_pod_sysctls: Map,
    crash_loop_back_off: CrashLoopBackOff,
    // Images.
    registry_burst: i32,
    serialize_image_pulls: bool,
    max_parallel_image_pulls: i32,
    image_pull_credentials_verification_policy: String,
    preloaded_images_verification_allowlist: Vec<String>,
    // cgroups and what is kept from pods.
    cgroup_driver: String,
    cgroup_root: String,
    kubelet_cgroups: String,
    system_cgroups: String,
    fail_cgroup_v1: bool,
    kube_reserved: Map,
    system_reserved: Map,
    kube_reserved_cgroup: String,
    system_reserved_cgroup: String,
    enforce_node_allocatable: Vec<String>,
    qos_reserved: Map,
    memory_throttling_factor: f64,
    memory_reservation_policy: String,
    fail_swap_on: bool,
    memory_swap: MemorySwap,
    cpu_manager_policy: String,
    cpu_manager_policy_options: Map,
    cpu_manager_reconcile_period: GoDuration,
    memory_manager_policy: String,
    reserved_memory: Vec<ReservedMemory>,
    topology_manager_policy: String,
    topology_manager_scope: String,
    topology_manager_policy_options: Map,
    // Eviction.
    eviction_hard: Map,
    eviction_soft: Map,
    eviction_soft_grace_period: Map,
    eviction_minimum_reclaim: Map,
    eviction_pressure_transition_period: GoDuration,
    eviction_max_pod_grace_period: i32,
    merge_default_eviction_settings: bool,
    kernel_memcg_notification: bool,
    local_storage_capacity_isolation: bool,
    // Container logs.
    container_log_max_size: String,
    container_log_max_files: i32,
    container_log_max_workers: i32,
    container_log_monitor_interval: GoDuration,
    // Shutdown.
    shutdown_grace_period: GoDuration,
    shutdown_grace_period_critical_pods: GoDuration,
    shutdown_grace_period_by_pod_priority: Vec<ShutdownByPriority>,
    // Volumes.
    volume_plugin_dir: String,
    volume_stats_agg_period: GoDuration,
    enable_controller_attach_detach: bool,
    // Everything else.
    protect_kernel_defaults: bool,
    feature_gates: BTreeMap<String, bool>,
}

/// Fields that this version acts on. Every other field is read and checked, and named by `berth check-config`.
pub(super) const ACTED_ON: &[&str] = &[
    "address",
    "allowedUnsafeSysctls",
    "authentication",
    "authorization",
    "cgroupDriver",
    "cgroupRoot",
    "clusterDNS",
    "clusterDomain",
    "containerLogMaxFiles",
    "containerLogMaxSize",
    "containerRuntimeEndpoint",
    "cpuCFSQuota",
    "cpuCFSQuotaPeriod",
    "crashLoopBackOff",
    "enableControllerAttachDetach",
    "enableDebuggingHandlers",
    "enableServer",
    "enableSystemLogHandler",
    "enableSystemLogQuery",
    "enforceNodeAllocatable",
    "eventBurst",
    "eventRecordQPS",
    "evictionHard",
    "failCgroupV1",
    "failSwapOn",
    "featureGates",
    "fileCheckFrequency",
    "healthzBindAddress",
    "healthzPort",
    "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent",
    "imageMaximumGCAge",
    "imageMinimumGCAge",
    "imagePullCredentialsVerificationPolicy",
    "kubeAPIBurst",
    "kubeAPIQPS",
    "kubeReserved",
    "logging",
    "makeIPTablesUtilChains",
    "maxParallelImagePulls",
    "maxPods",
    "memoryReservationPolicy",
    "memorySwap",
    "memoryThrottlingFactor",
    "mergeDefaultEvictionSettings",
    "nodeLeaseDurationSeconds",
    "nodeStatusMaxImages",
    "nodeStatusReportFrequency",
    "nodeStatusUpdateFrequency",
    "oomScoreAdj",
    "podLogsDir",
    "podPidsLimit",
    "podsPerCore",
    "port",
    "preloadedImagesVerificationAllowlist",
    "protectKernelDefaults",
    "providerID",
    "readOnlyPort",
    "registerNode",
    "registerWithTaints",
    "registryBurst",
    "registryPullQPS",
    "resolvConf",
    "rotateCertificates",
    "runOnce",
    "runtimeRequestTimeout",
    "seccompDefault",
    "serializeImagePulls",
    "serverTLSBootstrap",
    "singleProcessOOMKill",
    "staticPodPath",
    "streamingConnectionIdleTimeout",
    "syncFrequency",
    "systemCgroups",
    "systemReserved",
    "tlsCertFile",
    "tlsCipherSuites",
    "tlsCurvePreferences",
    "tlsMinVersion",
    "tlsPrivateKeyFile",
    "userNamespaces",
    "volumeStatsAggPeriod",
];

/// Feature gates that this version acts on, off by default; any other is named by `berth check-config`.
pub(super) const GATES: &[&str] = &["MemoryQoS", "PodLogsQuerySplitStreams"];

impl KubeletConfiguration {
    /// Whether an alpha feature is asked for, by its own gate or with all others.
    pub(super) fn has_gate(&self, name: &str) -> bool {
        let gates = self.feature_gates.as_ref();
        let gate = |name: &str| gates.and_then(|gates| gates.get(name)).copied();
        gate(name).or_else(|| gate("AllAlpha")).unwrap_or(false)
    }

    /// Whether a beta feature that is on by default stays so, by its own gate or with all others.
    pub(super) fn keeps_gate(&self, name: &str) -> bool {
        let gates = self.feature_gates.as_ref();
        let gate = |name: &str| gates.and_then(|gates| gates.get(name)).copied();
        gate(name).or_else(|| gate("AllBeta")).unwrap_or(true)
    }
}

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$attribute:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $($(#[$attribute])* #[serde(default, skip_serializing_if = "Option::is_none")] pub $field: Option<$kind>,)*
        }
    };
}

section!(
    /// `authentication`.
    Authentication { x509: X509, webhook: WebhookAuthentication, anonymous: Anonymous, }
);
section!(
    /// `authentication.x509`.
    X509 { #[serde(rename = "clientCAFile")] client_ca_file: String, }
);
section!(
    /// `authentication.webhook`.
    WebhookAuthentication { enabled: bool, #[serde(rename = "cacheTTL")] cache_ttl: GoDuration, }
);
section!(
    /// `authentication.anonymous`.
    Anonymous { enabled: bool, }
);
section!(
    /// `authorization`.
    Authorization { mode: String, webhook: WebhookAuthorization, }
);
section!(
    /// `authorization.webhook`.
    WebhookAuthorization {
        #[serde(rename = "cacheAuthorizedTTL")] cache_authorized_ttl: GoDuration,
        #[serde(rename = "cacheUnauthorizedTTL")] cache_unauthorized_ttl: GoDuration,
    }
);
section!(
    /// `tracing`.
    Tracing { endpoint: String, sampling_rate_per_million: i32, }
);
section!(
    /// `logging`.
    Logging {
        format: String,
        flush_frequency: FlushFrequency,
        verbosity: u32,
        vmodule: Vec<VModule>,
        options: LoggingOptions,
    }
);
section!(
    /// One entry of `logging.vmodule`.
    VModule { file_pattern: String, verbosity: u32, }
);
section!(
    /// `logging.options`.
    LoggingOptions { text: FormatOptions, json: FormatOptions, }
);
section!(
    /// `logging.options.text` and `.json`.
    FormatOptions { split_stream: bool, info_buffer_size: QuantityText, }
);
section!(
    /// One entry of `registerWithTaints`.
    Taint { key: String, value: String, effect: String, time_added: String, }
);
section!(
    /// `userNamespaces`.
    UserNamespaces { ids_per_pod: i64, }
);
section!(
    /// `crashLoopBackOff`.
    CrashLoopBackOff { max_container_restart_period: GoDuration, }
);
section!(
    /// `memorySwap`.
    MemorySwap { swap_behavior: String, }
);
section!(
    /// One entry of `reservedMemory`.
    ReservedMemory { numa_node: i32, limits: BTreeMap<String, QuantityText>, }
);
section!(
    /// One entry of `shutdownGracePeriodByPodPriority`.
    ShutdownByPriority { priority: i32, shutdown_grace_period_seconds: i64, }
);

/// A duration, or the number of nanoseconds that older releases wrote (`TimeOrMetaDuration`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FlushFrequency(pub GoDuration);

impl<'de> Deserialize<'de> for FlushFrequency {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl serde::de::Visitor<'_> for Either {
            type Value = FlushFrequency;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("a duration such as `5s`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<FlushFrequency, E> {
                text.parse().map(FlushFrequency).map_err(E::custom)
            }

            fn visit_i64<E: serde::de::Error>(self, nanoseconds: i64) -> Result<FlushFrequency, E> {
                let nanoseconds =
                    u64::try_from(nanoseconds).map_err(|_negative| E::custom("must not be negative"))?;
                Ok(FlushFrequency(GoDuration(std::time::Duration::from_nanos(nanoseconds))))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// A quantity, checked, kept as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QuantityText(pub String);

impl<'de> Deserialize<'de> for QuantityText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Quantity(String);
        let Quantity(text) = Quantity::deserialize(deserializer)?;
        text.parse::<quantity::Quantity>().map_err(serde::de::Error::custom)?;
        Ok(Self(text))
    }
}
