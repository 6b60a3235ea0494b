//! The file, drop-ins, defaults and flags over one another.

use super::*;

/// Flags come after the defaults (`kubeletConfigFlagPrecedence` of `cmd/kubelet/app/server.go`).
#[test]
fn a_zero_of_a_flag_counts() {
    const FILE: &str = "address: 10.0.0.1\nhealthzBindAddress: '::1'\nmaxPods: 7\nmaxOpenFiles: 7\n\
                        registryBurst: 7\nseccompDefault: true\nsyncFrequency: 7s\n";
    for (flag, field, expected) in [
        ("--max-pods=0", "/maxPods", json!(0)),
        ("--max-open-files=0", "/maxOpenFiles", json!(0)),
        ("--registry-burst=0", "/registryBurst", json!(0)),
        ("--event-burst=0", "/eventBurst", json!(0)),
        ("--kube-api-burst=0", "/kubeAPIBurst", json!(0)),
        ("--sync-frequency=0", "/syncFrequency", json!("0s")),
        ("--file-check-frequency=0", "/fileCheckFrequency", json!("0s")),
        ("--http-check-frequency=0", "/httpCheckFrequency", json!("0s")),
        ("--node-status-update-frequency=0", "/nodeStatusUpdateFrequency", json!("0s")),
        ("--minimum-image-ttl-duration=0", "/imageMinimumGCAge", json!("0s")),
        ("--volume-stats-agg-period=0", "/volumeStatsAggPeriod", json!("0s")),
        ("--cpu-manager-reconcile-period=0", "/cpuManagerReconcilePeriod", json!("0s")),
        ("--eviction-pressure-transition-period=0", "/evictionPressureTransitionPeriod", json!("0s")),
        ("--streaming-connection-idle-timeout=0", "/streamingConnectionIdleTimeout", json!("0s")),
        ("--authentication-token-webhook-cache-ttl=0", "/authentication/webhook/cacheTTL", json!("0s")),
        (
            "--authorization-webhook-cache-authorized-ttl=0",
            "/authorization/webhook/cacheAuthorizedTTL",
            json!("0s"),
        ),
        (
            "--authorization-webhook-cache-unauthorized-ttl=0",
            "/authorization/webhook/cacheUnauthorizedTTL",
            json!("0s"),
        ),
        ("--kube-api-content-type=", "/contentType", json!("")),
        ("--volume-plugin-dir=", "/volumePluginDir", json!("")),
        ("--cgroup-driver=", "/cgroupDriver", json!("")),
        // These say nothing there.
        ("--address=", "/address", json!("10.0.0.1")),
        ("--healthz-bind-address=", "/healthzBindAddress", json!("::1")),
        ("--seccomp-default=false", "/seccompDefault", json!(true)),
    ] {
        let kubelet = json!(load_text(FILE, &[flag]).unwrap().kubelet);
        assert_eq!(kubelet.pointer(field), Some(&expected), "{flag}");
    }
    let both = ["--seccomp-default", "--seccomp-default=false"];
    assert_eq!(load_text("", &both).unwrap().kubelet.seccomp_default, Some(false), "the last one counts");
}

#[test]
fn a_zero_of_a_flag_that_a_kubelet_does_not_start_with_is_refused() {
    const ENDPOINT: &str = "--container-runtime-endpoint: containerRuntimeEndpoint: `` is not the address of \
                            a unix socket, such as unix:///run/containerd/containerd.sock";
    let zero = |flag: &str, field: &str| format!("--{flag}: {field}: must not be empty or zero");
    for (text, flag, expected) in [
        ("", "--container-runtime-endpoint=", ENDPOINT.to_owned()),
        ("", "--port=0", "--port: port: 0 is not within 1 and 65535".to_owned()),
        ("", "--pod-logs-dir=", zero("pod-logs-dir", "podLogsDir")),
        ("", "--runtime-request-timeout=0", zero("runtime-request-timeout", "runtimeRequestTimeout")),
        (
            "staticPodPath: /x\n",
            "--file-check-frequency=0",
            zero("file-check-frequency", "fileCheckFrequency"),
        ),
    ] {
        assert_eq!(load_text(text, &[flag]).unwrap_err(), expected, "{flag}");
    }
    for flag in [
        "--authorization-mode=",
        "--container-log-max-size=",
        "--cpu-manager-policy=",
        "--hairpin-mode=",
        "--logging-format=",
    ] {
        assert!(load_text("", &[flag]).is_err(), "{flag}");
    }
}

#[test]
fn an_empty_path_by_flag_is_none() {
    let empty = [
        "--config=",
        "--config-dir=",
        "--kubeconfig=",
        "--bootstrap-kubeconfig=",
        "--image-credential-provider-config=",
        "--image-credential-provider-bin-dir=",
    ];
    let after_another = [&["--kubeconfig=/x"][..], &empty[..]].concat();
    for flags in [&empty[..], &after_another[..]] {
        assert_eq!(KubeletFlags::parse(flags).unwrap(), KubeletFlags::default(), "{flags:?}");
    }
    for flag in ["--cert-dir=", "--root-dir="] {
        assert!(KubeletFlags::parse(&[flag]).is_err(), "{flag}");
    }
}

/// Source: `loadConfigFile` and `mergeKubeletConfigurations` of `cmd/kubelet/app/server.go`.
#[test]
fn the_file_alone_has_thresholds_by_default() {
    const ALL: [&str; 5] = [
        "imagefs.available",
        "imagefs.inodesFree",
        "memory.available",
        "nodefs.available",
        "nodefs.inodesFree",
    ];
    const ONE: &str = "evictionHard: {pid.available: \"1000\"}\n";
    let merged = format!("{ONE}mergeDefaultEvictionSettings: true\n");
    let with_one = [ALL.as_slice(), &["pid.available"]].concat();
    for (file, drop_in, flags, expected) in [
        (None, None, &[][..], &[][..]),
        (None, None, &["--eviction-hard=pid.available<1000"], &["pid.available"]),
        (None, Some("maxPods: 3\n"), &[], &[]),
        (None, Some(ONE), &[], &["pid.available"]),
        (None, Some(merged.as_str()), &[], &["pid.available"]),
        (Some(""), None, &[], &ALL[..]),
        (Some("evictionHard: null\n"), None, &[], &ALL[..]),
        (Some("evictionHard: {}\n"), None, &[], &[]),
        (Some(ONE), None, &[], &["pid.available"]),
        (Some(merged.as_str()), None, &[], &with_one[..]),
        (Some(""), Some(ONE), &[], &with_one[..]),
        (Some(""), Some("evictionHard: null\n"), &[], &[]),
        (Some(ONE), Some("mergeDefaultEvictionSettings: true\n"), &[], &["pid.available"]),
    ] {
        let settings = load_layers(file, drop_in, flags);
        let signals: Vec<_> = settings.kubelet.eviction_hard.iter().flatten().map(|(name, _)| name).collect();
        assert_eq!(signals, expected, "{file:?} {drop_in:?} {flags:?}");
        let is_told = ignored(&settings).iter().any(|one| one.name == "evictionHard: no pod is evicted");
        assert_eq!(is_told, !expected.is_empty(), "{file:?} {drop_in:?} {flags:?}");
    }
}

/// Without a threshold nothing but huge pages is kept from pods.
#[test]
fn without_a_file_nothing_is_kept_for_the_time_before_an_eviction() {
    let allocatable = |file| {
        let node = load_layers(file, None, &[]).resolve(&facts()).unwrap().node;
        (node.allocatable.memory_bytes, node.allocatable.ephemeral_storage_bytes)
    };
    let (memory, disk) = ((8 << 30) - (64 << 20), 100 << 30);
    assert_eq!(allocatable(None), (Some(memory), Some(disk)));
    let (Some(less_memory), Some(less_disk)) = allocatable(Some("")) else { panic!("no amounts") };
    assert_eq!(less_memory, memory - (100 << 20));
    assert!(less_disk < disk, "{less_disk}");
}
