//! What the kubelet refuses in a configuration. Source: `pkg/kubelet/apis/config/validation/validation.go`.

use std::{collections::BTreeMap, fmt::Display, net::IpAddr, ops::RangeInclusive, time::Duration};

use super::{GoDuration, kubelet::KubeletConfiguration, verification};
use crate::{
    document::{Fault, Node, suggestion},
    quantity::Quantity,
};

/// Eviction signals. Source: `pkg/kubelet/eviction/api/types.go`.
const SIGNALS: &[&str] = &[
    "allocatableMemory.available",
    "containerfs.available",
    "containerfs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "pid.available",
];

/// Resources that can be kept from pods.
const RESERVABLE: &[&str] = &["cpu", "ephemeral-storage", "memory", "pid"];

/// Everything that is wrong with the values; `config` has its defaults, `tree` knows the places.
pub(super) fn check(config: &KubeletConfiguration, tree: &Node) -> Vec<Fault> {
    let mut checks = Checks { tree, faults: Vec::new() };
    checks.ranges(config);
    checks.names(config);
    checks.maps(config);
    checks.paths(config);
    checks.zeroes(config);
    checks.together(config);
    checks.enforced(config);
    checks.shutdown(config);
    checks.faults.extend(verification::read(config, tree).err().into_iter().flatten());
    checks.faults
}

struct Checks<'a> {
    tree: &'a Node,
    faults: Vec<Fault>,
}

impl Checks<'_> {
    fn fault(&mut self, field: &str, message: impl Into<String>) {
        self.faults.push(self.tree.fault(field, message));
    }

    fn within<T: PartialOrd + Display>(&mut self, field: &str, value: Option<T>, range: RangeInclusive<T>) {
        if let Some(value) = value.filter(|value| !range.contains(value)) {
            self.fault(field, format!("{value} is not within {} and {}", range.start(), range.end()));
        }
    }

    fn one_of(&mut self, field: &str, value: Option<&String>, known: &[&str]) {
        let Some(value) = value.filter(|value| !known.contains(&value.as_str())) else { return };
        let hint =
            suggestion(value, known).map_or_else(String::new, |name| format!(", did you mean `{name}`?"));
        let known = known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        self.fault(field, format!("`{value}` is not one of {known}{hint}"));
    }

    fn ranges(&mut self, config: &KubeletConfiguration) {
        for (field, value, range) in [
            ("port", config.port, 1..=65535),
            ("healthzPort", config.healthz_port, 0..=65535),
            ("readOnlyPort", config.read_only_port, 0..=65535),
            ("oomScoreAdj", config.oom_score_adj, -1000..=1000),
            ("imageGCHighThresholdPercent", config.image_gc_high_threshold_percent, 0..=100),
            ("imageGCLowThresholdPercent", config.image_gc_low_threshold_percent, 0..=100),
            ("iptablesMasqueradeBit", config.iptables_masquerade_bit, 0..=31),
            ("iptablesDropBit", config.iptables_drop_bit, 0..=31),
            ("nodeLeaseDurationSeconds", config.node_lease_duration_seconds, 1..=i32::MAX),
            ("nodeStatusMaxImages", config.node_status_max_images, -1..=i32::MAX),
            ("containerLogMaxFiles", config.container_log_max_files, 2..=i32::MAX),
            ("containerLogMaxWorkers", config.container_log_max_workers, 1..=i32::MAX),
            ("maxParallelImagePulls", config.max_parallel_image_pulls, 1..=i32::MAX),
            ("maxPods", config.max_pods, 0..=i32::MAX),
            ("podsPerCore", config.pods_per_core, 0..=i32::MAX),
            ("registryPullQPS", config.registry_pull_qps, 0..=i32::MAX),
            ("registryBurst", config.registry_burst, 0..=i32::MAX),
            ("eventRecordQPS", config.event_record_qps, 0..=i32::MAX),
            ("eventBurst", config.event_burst, 0..=i32::MAX),
            ("kubeAPIBurst", config.kube_api_burst, 0..=i32::MAX),
            ("kubeAPIQPS", config.kube_api_qps, 0..=i32::MAX),
        ] {
            self.within(field, value, range);
        }
        self.within("maxOpenFiles", config.max_open_files, 0..=i64::MAX);
        self.within("podPidsLimit", config.pod_pids_limit, -1..=i64::MAX);
        if config.memory_throttling_factor.is_some_and(|factor| !(factor > 0.0 && factor <= 1.0)) {
            self.fault("memoryThrottlingFactor", "must be greater than 0 and at most 1");
        }
        self.times(config);
    }

    fn times(&mut self, config: &KubeletConfiguration) {
        let restarts =
            config.crash_loop_back_off.as_ref().and_then(|section| section.max_container_restart_period);
        for (field, value, shortest, longest) in [
            (
                "cpuCFSQuotaPeriod",
                config.cpu_cfs_quota_period,
                Duration::from_millis(1),
                Duration::from_secs(1),
            ),
            (
                "containerLogMonitorInterval",
                config.container_log_monitor_interval,
                Duration::from_secs(3),
                Duration::MAX,
            ),
            (
                "crashLoopBackOff.maxContainerRestartPeriod",
                restarts,
                Duration::from_secs(1),
                Duration::from_secs(300),
            ),
        ] {
            match value {
                Some(value) if value.0 < shortest => {
                    self.fault(field, format!("{value} is less than {shortest:?}"));
                }
                Some(value) if value.0 > longest => {
                    self.fault(field, format!("{value} is more than {longest:?}"));
                }
                Some(_) | None => {}
            }
        }
    }

    fn names(&mut self, config: &KubeletConfiguration) {
        let swap = config.memory_swap.as_ref().and_then(|section| section.swap_behavior.as_ref());
        let logging = config.logging.as_ref().and_then(|section| section.format.as_ref());
        let mode = config.authorization.as_ref().and_then(|section| section.mode.as_ref());
        // An empty one, which a flag alone can give, is as `cgroupfs`.
        let driver = config.cgroup_driver.as_ref().filter(|driver| !driver.is_empty());
        for (field, value, known) in [
            ("cgroupDriver", driver, &["cgroupfs", "systemd"][..]),
            ("hairpinMode", config.hairpin_mode.as_ref(), &["promiscuous-bridge", "hairpin-veth", "none"]),
            ("cpuManagerPolicy", config.cpu_manager_policy.as_ref(), &["none", "static"]),
            ("memoryManagerPolicy", config.memory_manager_policy.as_ref(), &["None", "Static"]),
            (
                "memoryReservationPolicy",
                config.memory_reservation_policy.as_ref(),
                &["None", "TieredReservation"],
            ),
            (
                "topologyManagerPolicy",
                config.topology_manager_policy.as_ref(),
                &["none", "best-effort", "restricted", "single-numa-node"],
            ),
            ("topologyManagerScope", config.topology_manager_scope.as_ref(), &["container", "pod"]),
            (
                "configMapAndSecretChangeDetectionStrategy",
                config.config_map_and_secret_change_detection_strategy.as_ref(),
                &["Watch", "Cache", "Get"],
            ),
            (
                "imagePullCredentialsVerificationPolicy",
                config.image_pull_credentials_verification_policy.as_ref(),
                &[
                    "NeverVerify",
                    "NeverVerifyPreloadedImages",
                    "NeverVerifyAllowlistedImages",
                    "AlwaysVerify",
                ],
            ),
            ("memorySwap.swapBehavior", swap, &["", "NoSwap", "LimitedSwap"]),
            ("logging.format", logging, &["text", "json"]),
            ("authorization.mode", mode, &["Webhook", "AlwaysAllow"]),
        ] {
            self.one_of(field, value, known);
        }
        for (index, name) in config.enforce_node_allocatable.iter().flatten().enumerate() {
            let known = [
                "pods",
                "system-reserved",
                "kube-reserved",
                "system-reserved-compressible",
                "kube-reserved-compressible",
                "none",
            ];
            self.one_of(&format!("enforceNodeAllocatable[{index}]"), Some(name), &known);
        }
        if config.healthz_bind_address.as_ref().is_some_and(|address| address.parse::<IpAddr>().is_err()) {
            self.fault("healthzBindAddress", "must be an IP address");
        }
        for (index, pattern) in config.allowed_unsafe_sysctls.iter().flatten().enumerate() {
            if !sysctl_pattern(pattern) {
                let message =
                    format!("`{pattern}` is not the name of a sysctl, or a start of one ending in `*`");
                self.fault(&format!("allowedUnsafeSysctls[{index}]"), message);
            }
        }
    }

    fn maps(&mut self, config: &KubeletConfiguration) {
        for (field, map) in
            [("kubeReserved", &config.kube_reserved), ("systemReserved", &config.system_reserved)]
        {
            for (name, value) in map.iter().flatten() {
                let path = format!("{field}.{name}");
                self.one_of(&path, Some(name), RESERVABLE);
                self.amount(&path, value);
            }
        }
        for (field, map) in [
            ("evictionHard", &config.eviction_hard),
            ("evictionSoft", &config.eviction_soft),
            ("evictionMinimumReclaim", &config.eviction_minimum_reclaim),
        ] {
            self.signals(field, map.as_ref());
        }
        for signal in config.eviction_soft.iter().flat_map(BTreeMap::keys) {
            let period = config.eviction_soft_grace_period.as_ref().and_then(|periods| periods.get(signal));
            if period.is_none() {
                self.fault("evictionSoft", format!("{signal} has no entry in evictionSoftGracePeriod"));
            }
        }
        for (gate, is_on) in config.feature_gates.iter().flatten() {
            if let Some(why) = super::gates::refused(gate, *is_on) {
                self.fault(&format!("featureGates.{gate}"), why);
            }
        }
        for (signal, period) in config.eviction_soft_grace_period.iter().flatten() {
            if let Err(error) = period.parse::<GoDuration>() {
                self.fault(&format!("evictionSoftGracePeriod.{signal}"), error.to_string());
            }
        }
        match config.container_log_max_size.as_deref().map(str::parse::<Quantity>) {
            Some(Err(error)) => self.fault("containerLogMaxSize", error.to_string()),
            Some(Ok(size)) if size.units() <= 0 => self.fault("containerLogMaxSize", "must be more than 0"),
            Some(Ok(_)) | None => {}
        }
    }

    fn signals(&mut self, field: &str, map: Option<&BTreeMap<String, String>>) {
        for (signal, value) in map.into_iter().flatten() {
            let path = format!("{field}.{signal}");
            self.one_of(&path, Some(signal), SIGNALS);
            match value.strip_suffix('%') {
                Some(percent)
                    if percent.parse::<f64>().is_ok_and(|percent| (0.0..=100.0).contains(&percent)) => {}
                Some(_) => self.fault(&path, format!("`{value}` is not a percentage between 0% and 100%")),
                None => self.amount(&path, value),
            }
        }
    }

    fn amount(&mut self, path: &str, value: &str) {
        match value.parse::<Quantity>() {
            Err(error) => self.fault(path, error.to_string()),
            Ok(amount) if amount.is_negative() => self.fault(path, format!("`{value}` is negative")),
            Ok(_) => {}
        }
    }

    fn paths(&mut self, config: &KubeletConfiguration) {
        for (field, path) in [("podLogsDir", &config.pod_logs_dir), ("cgroupRoot", &config.cgroup_root)] {
            let path = path.as_deref().unwrap_or_default();
            if !path.is_empty() && (!path.starts_with('/') || path.split('/').any(|part| part == "..")) {
                self.fault(field, format!("`{path}` is not an absolute path without `..`"));
            }
        }
        if config
            .pod_logs_dir
            .as_deref()
            .is_some_and(|path| path.bytes().any(|byte| !(33..127).contains(&byte)))
        {
            self.fault("podLogsDir", "may hold only printable ASCII characters without blanks");
        }
        let endpoint = config.container_runtime_endpoint.as_deref().unwrap_or_default();
        if !endpoint.strip_prefix("unix://").unwrap_or(endpoint).starts_with('/') {
            let message = format!(
                "`{endpoint}` is not the address of a unix socket, such as unix:///run/containerd/containerd.sock"
            );
            self.fault("containerRuntimeEndpoint", message);
        }
    }

    /// What a kubelet ends with when it starts, and a flag alone can ask for: elsewhere zero is the default.
    fn zeroes(&mut self, config: &KubeletConfiguration) {
        let is_zero = |time: Option<GoDuration>| time.is_some_and(|time| time.0.is_zero());
        let has_manifests = config.static_pod_path.as_ref().is_some_and(|path| !path.is_empty());
        for (field, is_wrong) in [
            ("fileCheckFrequency", has_manifests && is_zero(config.file_check_frequency)),
            ("podLogsDir", config.pod_logs_dir.as_ref().is_some_and(String::is_empty)),
            ("runtimeRequestTimeout", is_zero(config.runtime_request_timeout)),
        ] {
            if is_wrong {
                self.fault(field, "must not be empty or zero");
            }
        }
    }

    /// Rules about fields together.
    fn together(&mut self, config: &KubeletConfiguration) {
        if config.run_once == Some(true) {
            self.fault("runOnce", "must be false: kubelets no longer run pods once");
        }
        if config.image_gc_low_threshold_percent >= config.image_gc_high_threshold_percent {
            self.fault("imageGCLowThresholdPercent", "must be less than imageGCHighThresholdPercent");
        }
        let longest = config.image_maximum_gc_age.unwrap_or_default();
        if !longest.0.is_zero() && Some(longest) <= config.image_minimum_gc_age {
            self.fault("imageMaximumGCAge", "must be more than imageMinimumGCAge, or 0 for none");
        }
        if config.serialize_image_pulls == Some(true) && config.max_parallel_image_pulls > Some(1) {
            self.fault("maxParallelImagePulls", "must be 1 or absent while serializeImagePulls is true");
        }
        let tiered = config.memory_reservation_policy.as_deref() == Some("TieredReservation");
        if tiered && !config.has_gate("MemoryQoS") {
            self.fault(
                "memoryReservationPolicy",
                "TieredReservation needs `featureGates: {MemoryQoS: true}`",
            );
        }
        if config.server_tls_bootstrap == Some(true) && !config.keeps_gate("RotateKubeletServerCertificate") {
            self.fault("serverTLSBootstrap", "needs `featureGates: {RotateKubeletServerCertificate: true}`");
        }
        let root = config.cgroup_root.as_deref().unwrap_or_default();
        if config.system_cgroups.as_ref().is_some_and(|name| !name.is_empty()) && root.is_empty() {
            self.fault("systemCgroups", "needs cgroupRoot");
        }
    }

    /// Levels of cgroups that are to be enforced.
    fn enforced(&mut self, config: &KubeletConfiguration) {
        let enforced = config.enforce_node_allocatable.as_deref().unwrap_or_default();
        let has = |wanted: &str| enforced.iter().any(|name| name == wanted);
        if config.cgroups_per_qos == Some(false) && enforced.iter().any(|name| name != "none") {
            self.fault("enforceNodeAllocatable", "must be empty or [none] while cgroupsPerQOS is false");
        }
        if has("none") && enforced.len() > 1 {
            self.fault("enforceNodeAllocatable", "`none` goes without other entries only");
        }
        for (index, name) in enforced.iter().enumerate() {
            if enforced.iter().take(index).any(|before| before == name) {
                self.fault(&format!("enforceNodeAllocatable[{index}]"), format!("`{name}` is given twice"));
            }
        }
        for (name, field, path) in [
            ("system-reserved", "systemReservedCgroup", &config.system_reserved_cgroup),
            ("kube-reserved", "kubeReservedCgroup", &config.kube_reserved_cgroup),
        ] {
            let compressible = format!("{name}-compressible");
            let (whole, part) = (has(name), has(&compressible));
            if (whole || part) && path.as_deref().unwrap_or_default().is_empty() {
                self.fault("enforceNodeAllocatable", format!("{name} needs {field}"));
            }
            if whole && part {
                let message = format!("{name} goes without {compressible} only");
                self.fault("enforceNodeAllocatable", message);
            }
        }
    }

    /// How long pods have when the node is shut down.
    fn shutdown(&mut self, config: &KubeletConfiguration) {
        let of_all = config.shutdown_grace_period.unwrap_or_default().0;
        let of_critical = config.shutdown_grace_period_critical_pods.unwrap_or_default().0;
        if of_critical > of_all {
            self.fault("shutdownGracePeriodCriticalPods", "must not be more than shutdownGracePeriod");
        }
        let is_on = config.keeps_gate("GracefulNodeShutdown");
        for (field, period) in
            [("shutdownGracePeriod", of_all), ("shutdownGracePeriodCriticalPods", of_critical)]
        {
            if is_on && !period.is_zero() && period < Duration::from_secs(1) {
                self.fault(field, "must be 0 or at least 1s");
            }
        }
        let by_priority = config.shutdown_grace_period_by_pod_priority.as_deref().unwrap_or_default();
        let has_periods = !of_all.is_zero() || !of_critical.is_zero();
        let is_on = config.keeps_gate("GracefulNodeShutdownBasedOnPodPriority");
        if is_on && !by_priority.is_empty() && has_periods {
            let message = "goes without shutdownGracePeriod and shutdownGracePeriodCriticalPods only";
            self.fault("shutdownGracePeriodByPodPriority", message);
        }
    }
}

fn sysctl_pattern(pattern: &str) -> bool {
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    let name = if pattern.ends_with('*') { name.trim_end_matches(['.', '/']) } else { name };
    !name.is_empty()
        && name.split(['.', '/']).all(|part| {
            let inner =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
            !part.is_empty()
                && part.bytes().all(inner)
                && !part.starts_with(['-', '_'])
                && !part.ends_with(['-', '_'])
        })
}
