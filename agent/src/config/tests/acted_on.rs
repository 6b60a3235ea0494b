//! What `docs/configuration.md` and `check-config` promise to act on has an effect.

use std::{collections::BTreeMap, path::Path};

use berth_core::image::access::{Allowlist, Verification};
use serde_json::Value;

use super::{facts, load_text};
use crate::config::{BerthConfiguration, CniSection, Config, OciRuntime, RuntimeSection, kubelet::ACTED_ON};

const PAGE: &str = include_str!("../../../../docs/configuration.md");

/// A field, and a setting of it that differs from its default.
const SETTINGS: [(&str, &str); 69] = [
    ("address", "127.0.0.1"),
    ("allowedUnsafeSysctls", "[net.core.somaxconn]"),
    ("authentication", "{anonymous: {enabled: true}}"),
    ("authorization", "{mode: AlwaysAllow}"),
    ("cgroupDriver", "cgroupfs"),
    ("cgroupRoot", "/x"),
    ("clusterDNS", "[10.96.0.10]"),
    ("clusterDomain", "x.local"),
    ("containerLogMaxFiles", "3"),
    ("containerLogMaxSize", "1Mi"),
    ("containerRuntimeEndpoint", "unix:///x.sock"),
    ("cpuCFSQuota", "false"),
    ("cpuCFSQuotaPeriod", "50ms"),
    ("crashLoopBackOff", "{maxContainerRestartPeriod: 10s}"),
    ("enableControllerAttachDetach", "false"),
    ("enableDebuggingHandlers", "false"),
    ("enableServer", "false"),
    ("enableSystemLogHandler", "false"),
    ("enableSystemLogQuery", "true"),
    ("eventBurst", "7"),
    ("eventRecordQPS", "7"),
    ("evictionHard", "{memory.available: 1Gi}"),
    ("fileCheckFrequency", "5s"),
    ("healthzBindAddress", "'::1'"),
    ("healthzPort", "10249"),
    ("imageGCHighThresholdPercent", "90"),
    ("imageGCLowThresholdPercent", "70"),
    ("imageMaximumGCAge", "24h"),
    ("imageMinimumGCAge", "1m"),
    ("imagePullCredentialsVerificationPolicy", "AlwaysVerify"),
    ("kubeAPIBurst", "7"),
    ("kubeAPIQPS", "7"),
    ("kubeReserved", "{cpu: 100m}"),
    ("makeIPTablesUtilChains", "false"),
    ("maxParallelImagePulls", "3"),
    ("maxPods", "20"),
    ("memorySwap", "{swapBehavior: LimitedSwap}"),
    ("nodeLeaseDurationSeconds", "20"),
    ("nodeStatusMaxImages", "7"),
    ("nodeStatusReportFrequency", "1m"),
    ("nodeStatusUpdateFrequency", "5s"),
    ("oomScoreAdj", "-5"),
    ("podLogsDir", "/x"),
    ("podPidsLimit", "1000"),
    ("podsPerCore", "3"),
    ("port", "10251"),
    ("protectKernelDefaults", "true"),
    ("providerID", "kind://x"),
    ("readOnlyPort", "10255"),
    ("registerNode", "false"),
    ("registerWithTaints", "[{key: k, effect: NoSchedule}]"),
    ("registryBurst", "20"),
    ("registryPullQPS", "7"),
    ("resolvConf", "/proc/version"),
    ("rotateCertificates", "true"),
    ("runtimeRequestTimeout", "1m"),
    ("seccompDefault", "true"),
    ("serializeImagePulls", "false"),
    ("serverTLSBootstrap", "true"),
    ("singleProcessOOMKill", "true"),
    ("staticPodPath", "/x"),
    ("streamingConnectionIdleTimeout", "1h"),
    ("syncFrequency", "10s"),
    ("systemReserved", "{cpu: 100m}"),
    ("tlsCipherSuites", "[TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]"),
    ("tlsCurvePreferences", "[29]"),
    ("tlsMinVersion", "VersionTLS13"),
    ("userNamespaces", "{idsPerPod: 131072}"),
    ("volumeStatsAggPeriod", "5m"),
];

/// Fields whose effect has a test of its own, or is not in [`Config`]: `logging` sets up the log before there is one, and `runOnce` is
/// refused.
const ELSEWHERE: [&str; 13] = [
    "enforceNodeAllocatable",
    "failCgroupV1",
    "failSwapOn",
    "featureGates",
    "logging",
    "memoryReservationPolicy",
    "memoryThrottlingFactor",
    "mergeDefaultEvictionSettings",
    "preloadedImagesVerificationAllowlist",
    "runOnce",
    "systemCgroups",
    "tlsCertFile",
    "tlsPrivateKeyFile",
];

/// Of a node in a cluster.
const FLAGS: &str = "--kubeconfig=/x";

fn defaults() -> Config {
    load_text("", &[FLAGS]).unwrap().resolve(&facts()).unwrap()
}

#[test]
fn every_field_acted_on_has_an_effect() {
    let default = defaults();
    assert_eq!(default, defaults(), "where the file is makes no difference");
    for (field, value) in SETTINGS {
        let config = load_text(&format!("{field}: {value}\n"), &[FLAGS]).unwrap().resolve(&facts()).unwrap();
        assert_ne!(config, default, "{field}: {value}");
    }
    let mut all: Vec<_> = SETTINGS.iter().map(|(field, _)| *field).chain(ELSEWHERE).collect();
    all.sort_unstable();
    assert_eq!(all, ACTED_ON);
}

/// Name and default of each row below a heading.
fn rows(heading: &str) -> Vec<(&'static str, &'static str)> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`'));
        (cells.nth(1).unwrap(), cells.next().unwrap())
    })
    .collect()
}

#[test]
fn the_page_has_the_fields_acted_on_with_their_defaults() {
    let rows = rows("Fields of KubeletConfiguration");
    assert_eq!(rows.iter().map(|(field, _)| *field).collect::<Vec<_>>(), ACTED_ON);
    let defaults: BTreeMap<String, Value> = serde_json::from_str(include_str!("defaults.json")).unwrap();
    for (field, default) in rows.into_iter().filter(|(_, default)| *default != "see below") {
        let expected = match defaults.get(field) {
            None => "none".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        assert_eq!(default, expected, "{field}");
    }
}

/// Names of the leaves, dotted.
fn leaves(prefix: &str, value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                leaves(&format!("{prefix}.{name}"), value, into);
            }
        }
        _ => into.push(prefix.trim_start_matches('.').to_owned()),
    }
}

#[test]
fn the_page_has_our_own_fields_with_their_defaults() {
    let document = BerthConfiguration {
        cni: Some(CniSection::default()),
        runtime: Some(RuntimeSection::default()),
        ..BerthConfiguration::default()
    };
    let mut fields = Vec::new();
    leaves("", &serde_json::to_value(document).unwrap(), &mut fields);
    let config = defaults();
    assert_eq!(config.oci_runtime, OciRuntime::Auto);
    let runtime = &config.runtime;
    let handlers: Vec<_> =
        runtime.handlers.keys().map(String::as_str).filter(|name| !name.is_empty()).collect();
    assert!(handlers.iter().all(|name| runtime.handlers[*name] == runtime.handlers[""]), "{runtime:?}");
    let text = |path: &Path| path.display().to_string();
    let defaults = BTreeMap::from([
        ("stateDir", config.node.paths.run.clone()),
        ("cni.confDir", text(&runtime.cni_conf_dir)),
        ("cni.binDirs", runtime.cni_bin_dirs.iter().map(|path| text(path)).collect()),
        ("cni.cacheDir", text(&config.cni.cache_dir)),
        ("cni.gcPeriod", format!("{}h", config.cni.gc_period.as_secs() / 3600)),
        ("cni.pluginGC", config.cni.plugin_gc.to_string()),
        ("runtime.ociRuntime", "auto".to_owned()),
        ("containerdConfig", "/etc/containerd/config.toml".to_owned()),
        ("runtime.handlers", handlers.join("` `")),
        ("runtime.defaultHandler", "runc".to_owned()),
        ("snapshotter", runtime.snapshotter.clone()),
        ("registryConfigDir", runtime.registry_dirs.iter().map(|path| text(path)).collect()),
        ("imagePullProgressTimeout", format!("{}m", config.pull_progress_timeout.as_secs() / 60)),
    ]);
    let rows: BTreeMap<_, _> =
        rows("BerthConfiguration").into_iter().map(|(name, default)| (name, default.to_owned())).collect();
    assert_eq!(rows, defaults);
    fields.sort();
    assert_eq!(rows.into_keys().collect::<Vec<_>>(), fields);
}

/// The list needs its policy beside it.
#[test]
fn images_ask_for_credentials_by_their_policy() {
    let of = |text: &str| load_text(text, &[FLAGS]).unwrap().resolve(&facts()).unwrap().image_verification;
    let listed = |patterns: &[&str]| {
        let mut list = Allowlist::default();
        patterns.iter().for_each(|pattern| list.add(pattern).unwrap());
        Verification::Unlisted(list)
    };
    for (text, expected) in [
        ("", Verification::Pulled),
        ("imagePullCredentialsVerificationPolicy: NeverVerify", Verification::Never),
        ("imagePullCredentialsVerificationPolicy: NeverVerifyPreloadedImages", Verification::Pulled),
        ("imagePullCredentialsVerificationPolicy: AlwaysVerify", Verification::Always),
        ("imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages", listed(&[])),
        (
            "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n\
             preloadedImagesVerificationAllowlist: [a.io/web, 'b.io/*']",
            listed(&["a.io/web", "b.io/*"]),
        ),
    ] {
        assert_eq!(of(&format!("{text}\n")), expected, "{text}");
    }
}

/// It needs another field beside it.
#[test]
fn the_cgroup_of_the_system_is_shown() {
    let of = |text: &str| load_text(text, &[FLAGS]).unwrap().resolve(&facts()).unwrap().stats.system_cgroup;
    assert_eq!(of("cgroupRoot: /x\n"), None);
    assert_eq!(of("cgroupRoot: /x\nsystemCgroups: /system.slice\n").as_deref(), Some("/system.slice"));
}
