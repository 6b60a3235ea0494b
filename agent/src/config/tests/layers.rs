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
    for flag in
        ["--authorization-mode=", "--container-log-max-size=", "--cpu-manager-policy=", "--hairpin-mode="]
    {
        assert!(load_text("", &[flag]).is_err(), "{flag}");
    }
}
