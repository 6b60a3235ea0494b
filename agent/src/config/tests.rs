use std::{collections::BTreeMap, fs, net::IpAddr, path::PathBuf, time::Duration};

use berth_core::{
    config::{AppArmor, CgroupDriver, CgroupVersion, ImageCollection, ResolvConf},
    selinux::SeLinux,
    spec::Quantities,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::document::{Faults, read};

mod acted_on;
mod cgroups;
mod cluster;
mod differences;
mod layers;
mod server;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// Loads `text` (without head) as the file of `--config`, with further flags.
pub(crate) fn load_text(text: &str, flags: &[&str]) -> Result<Settings, String> {
    let directory = TempDir::new().map_err(|error| error.to_string())?;
    let path = directory.path().join("config.yaml");
    fs::write(&path, format!("{HEAD}{text}")).map_err(|error| error.to_string())?;
    load_in(&directory, flags)
}

fn load_in(directory: &TempDir, flags: &[&str]) -> Result<Settings, String> {
    let config = format!("--config={}", directory.path().join("config.yaml").display());
    let mut all = vec![config.as_str()];
    all.extend(flags);
    let flags = KubeletFlags::parse(&all).map_err(|error| error.to_string())?;
    Settings::load(flags).map_err(|faults| shown(&faults, directory))
}

/// Loads a file of `--config`, one drop-in, and flags, each where it is given.
fn load_layers(file: Option<&str>, drop_in: Option<&str>, flags: &[&str]) -> Settings {
    let directory = TempDir::new().unwrap();
    let mut all = Vec::new();
    for (flag, name, text) in [("config", "config.yaml", file), ("config-dir", "conf.d/10.conf", drop_in)] {
        let Some(text) = text else { continue };
        let path = directory.path().join(name);
        let above = path.parent().unwrap();
        fs::create_dir_all(above).unwrap();
        fs::write(&path, format!("{HEAD}{text}")).unwrap();
        let named = if flag == "config" { path.as_path() } else { above };
        all.push(format!("--{flag}={}", named.display()));
    }
    let all: Vec<_> = all.iter().map(String::as_str).chain(flags.iter().copied()).collect();
    Settings::load(KubeletFlags::parse(&all).unwrap()).unwrap()
}

fn shown(faults: &Faults, directory: &TempDir) -> String {
    faults.to_string().replace(&format!("{}/", directory.path().display()), "")
}

pub(crate) fn facts() -> Facts {
    Facts {
        hostname: "node-1".to_owned(),
        kernel_hostname: "Node-1".to_owned(),
        ips: vec![IpAddr::from([10, 0, 0, 5])],
        capacity: Quantities {
            cpu_milli: Some(4000),
            memory_bytes: Some(8 << 30),
            ephemeral_storage_bytes: Some(100 << 30),
            hugepages_bytes: BTreeMap::from([(2 << 20, 64 << 20)]),
            ..Quantities::default()
        },
        cgroup_version: CgroupVersion::V2,
        pids_max: Some(32_768),
        cpus: Some("0-3".to_owned()),
        hugepage_sizes: [2 << 20].into(),
        swap: Swap { is_on: false, is_counted: true, bytes: 2 << 30 },
        has_noswap: false,
        page_bytes: 4096,
        booted_with_systemd: true,
        oom_score_adj: 0,
        capabilities: 0x1ff,
        kernel_capabilities: 0x1ff_ffff_ffff,
        app_armor: AppArmor::Absent,
        selinux_contexts: None,
        thermal_counters: Vec::new(),
        hosts: "127.0.0.1 localhost\n".to_owned(),
        sub_ids: None,
    }
}

#[test]
fn defaults_are_the_kubelets() {
    let settings = load_text("", &[]).unwrap();
    let expected: Value = serde_json::from_str(include_str!("tests/defaults.json")).unwrap();
    assert_eq!(serde_json::to_value(&settings.kubelet).unwrap(), expected, "{:#}", json!(settings.kubelet));
}

#[test]
fn a_zero_that_go_cannot_tell_from_absent_is_the_default() {
    // What kubeadm writes, and other fields of that kind.
    let settings = load_text(
        "syncFrequency: 0s\nfileCheckFrequency: 0s\nruntimeRequestTimeout: 0s\nimageMaximumGCAge: 0s\ncontainerRuntimeEndpoint: \"\"\nmemoryReservationPolicy: \"\"\nlogging:\n  format: \"\"\n  flushFrequency: 0\n  verbosity: 0\n  options: {json: {infoBufferSize: \"0\"}, text: {infoBufferSize: \"0\"}}\nmemorySwap: {}\nauthentication: {webhook: {enabled: true, cacheTTL: 0s}}\nauthorization: {mode: \"\"}\nevictionPressureTransitionPeriod: 0s\nmaxOpenFiles: 0\n",
        &["--kubeconfig=/x"],
    );
    // `flushFrequency: 0` is a number of nanoseconds there.
    let settings = settings.unwrap();
    assert_eq!(settings.kubelet.file_check_frequency, Some(GoDuration(Duration::from_secs(20))));
    assert_eq!(
        settings.kubelet.container_runtime_endpoint.as_deref(),
        Some("unix:///run/containerd/containerd.sock")
    );
    let webhook = settings.kubelet.authentication.as_ref().and_then(|section| section.webhook.as_ref());
    assert_eq!(webhook.and_then(|webhook| webhook.cache_ttl), Some(GoDuration(Duration::from_secs(120))));
    assert_eq!(
        settings.kubelet.authorization.as_ref().and_then(|section| section.mode.as_deref()),
        Some("Webhook")
    );
    assert_eq!(settings.kubelet.max_open_files, Some(1_000_000));
    assert_eq!(settings.kubelet.memory_reservation_policy.as_deref(), Some("None"));
    let logging = settings.kubelet.logging.as_ref();
    assert_eq!(logging.and_then(|section| section.format.as_deref()), Some("text"));
    let names: Vec<_> = ignored(&settings).into_iter().map(|ignored| ignored.name).collect();
    assert_eq!(names, ["evictionHard: no pod is evicted"]);
}

#[test]
fn faults_name_file_line_and_field() {
    for (text, expected) in [
        ("staticPodPaht: /x\n", "config.yaml:3: staticPodPaht: unknown field, did you mean `staticPodPath`?"),
        ("clusterDns: [10.0.0.10]\n", "config.yaml:3: clusterDns: unknown field, did you mean `clusterDNS`?"),
        (
            "authentication:\n  webhok: {}\n",
            "config.yaml:4: authentication.webhok: unknown field, did you mean `webhook`?",
        ),
        (
            "fileCheckFrequency: 20\n",
            "config.yaml:3: fileCheckFrequency: expected a string, found integer `20`: put it in quotes",
        ),
        (
            "fileCheckFrequency: 20x\n",
            "config.yaml:3: fileCheckFrequency: `20x` is not a duration: write numbers with units, such as `20s`, `1h30m` or `500ms`",
        ),
        (
            "fileCheckFrequency: -1s\n",
            "config.yaml:3: fileCheckFrequency: `-1s` is negative: a duration must be zero or more",
        ),
        ("maxPods: many\n", "config.yaml:3: maxPods: expected a whole number, found string \"many\""),
        ("maxPods: 1\nmaxPods: 2\n", "config.yaml:4: `maxPods` is given twice, first in line 3"),
        ("failSwapOn: 1\n", "config.yaml:3: failSwapOn: expected `true` or `false`, found integer `1`"),
        (
            "cgroupDriver: systemdd\n",
            "config.yaml:3: cgroupDriver: `systemdd` is not one of `cgroupfs`, `systemd`, did you mean `systemd`?",
        ),
        ("oomScoreAdj: -1001\n", "config.yaml:3: oomScoreAdj: -1001 is not within -1000 and 1000"),
        (
            "containerLogMaxFiles: 1\n",
            "config.yaml:3: containerLogMaxFiles: 1 is not within 2 and 2147483647",
        ),
        (
            "containerLogMaxSize: 10 MB\n",
            "config.yaml:3: containerLogMaxSize: `10 MB` is not a quantity: write a number with an optional suffix, such as `500m`, `2`, `128Mi` or `1G`",
        ),
        ("kubeReserved:\n  memory: -1Gi\n", "config.yaml:4: kubeReserved.memory: `-1Gi` is negative"),
        (
            "kubeReserved:\n  memmory: 1Gi\n",
            "config.yaml:4: kubeReserved.memmory: `memmory` is not one of `cpu`, `ephemeral-storage`, `memory`, `pid`, did you mean `memory`?",
        ),
        (
            "crashLoopBackOff:\n  maxContainerRestartPeriod: 6m\n",
            "config.yaml:4: crashLoopBackOff.maxContainerRestartPeriod: 6m0s is more than 300s",
        ),
        (
            "serializeImagePulls: true\nmaxParallelImagePulls: 5\n",
            "config.yaml:4: maxParallelImagePulls: must be 1 or absent while serializeImagePulls is true",
        ),
        ("clusterDNS: 10.0.0.10\n", "config.yaml:3: clusterDNS: expected a list, found string \"10.0.0.10\""),
        (
            "imageGCLowThresholdPercent: 90\n",
            "config.yaml:3: imageGCLowThresholdPercent: must be less than imageGCHighThresholdPercent",
        ),
        ("podLogsDir: logs\n", "config.yaml:3: podLogsDir: `logs` is not an absolute path without `..`"),
        (
            "---\napiVersion: v1\nkind: Pod\n",
            "config.yaml:4: apiVersion: Pod of v1 is not known here: only KubeletConfiguration of kubelet.config.k8s.io/v1beta1 and BerthConfiguration of berth.dev/v1alpha1",
        ),
        (
            "---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\nruntime: {ociRuntime: ./crun}\n",
            "config.yaml:6: runtime.ociRuntime: `./crun` is none of `auto`, a name such as `crun`, or an absolute path",
        ),
        (
            "---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\ncni:\n  binDir: /x\n",
            "config.yaml:7: cni.binDir: unknown field, did you mean `binDirs`?",
        ),
    ] {
        assert_eq!(load_text(text, &[]).unwrap_err(), expected);
    }
}

#[test]
fn rules_about_several_values_are_the_kubelets() {
    const ENFORCE: &str = "enforceNodeAllocatable";
    const BY_PRIORITY: &str =
        "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 10}]\n";
    for (text, expected) in [
        ("kubeAPIQPS: -1\n".to_owned(), "3: kubeAPIQPS: -1 is not within 0 and 2147483647"),
        (
            format!("{ENFORCE}: [none, pods]\n"),
            "3: enforceNodeAllocatable: `none` goes without other entries only",
        ),
        (format!("{ENFORCE}: [pods, pods]\n"), "3: enforceNodeAllocatable[1]: `pods` is given twice"),
        (
            format!("{ENFORCE}: [kube-reserved, kube-reserved-compressible]\nkubeReservedCgroup: /k\n"),
            "3: enforceNodeAllocatable: kube-reserved goes without kube-reserved-compressible only",
        ),
        (
            format!("{ENFORCE}: [system-reserved-compressible, system-reserved]\nsystemReservedCgroup: /s\n"),
            "3: enforceNodeAllocatable: system-reserved goes without system-reserved-compressible only",
        ),
        (
            format!("{ENFORCE}: [kube-reserved-compressible]\n"),
            "3: enforceNodeAllocatable: kube-reserved needs kubeReservedCgroup",
        ),
        ("shutdownGracePeriod: 500ms\n".to_owned(), "3: shutdownGracePeriod: must be 0 or at least 1s"),
        (
            "shutdownGracePeriod: 1s\nshutdownGracePeriodCriticalPods: 999ms\n".to_owned(),
            "4: shutdownGracePeriodCriticalPods: must be 0 or at least 1s",
        ),
        (
            "shutdownGracePeriod: 1s\nshutdownGracePeriodCriticalPods: 2s\n".to_owned(),
            "4: shutdownGracePeriodCriticalPods: must not be more than shutdownGracePeriod",
        ),
        (
            format!("shutdownGracePeriod: 1s\n{BY_PRIORITY}"),
            "4: shutdownGracePeriodByPodPriority: goes without shutdownGracePeriod and shutdownGracePeriodCriticalPods only",
        ),
        (
            "serverTLSBootstrap: true\nfeatureGates: {RotateKubeletServerCertificate: false}\n".to_owned(),
            "3: serverTLSBootstrap: needs `featureGates: {RotateKubeletServerCertificate: true}`",
        ),
        (
            "preloadedImagesVerificationAllowlist: [a.io/web]\n".to_owned(),
            "3: preloadedImagesVerificationAllowlist: needs `imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages`",
        ),
        (
            "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [a.io/web, a.io/web:1]\n".to_owned(),
            "4: preloadedImagesVerificationAllowlist[1]: `a.io/web:1`: neither tag nor digest is accepted in an image reference",
        ),
        (
            "serverTLSBootstrap: true\nfeatureGates: {AllBeta: false}\n".to_owned(),
            "3: serverTLSBootstrap: needs `featureGates: {RotateKubeletServerCertificate: true}`",
        ),
    ] {
        assert_eq!(load_text(&text, &[]).unwrap_err(), format!("config.yaml:{expected}"));
    }
    for text in [
        "kubeAPIQPS: 0\n",
        "enforceNodeAllocatable: [none]\n",
        "enforceNodeAllocatable: [pods, kube-reserved, system-reserved-compressible]\nkubeReservedCgroup: /k\nsystemReservedCgroup: /s\n",
        "shutdownGracePeriod: 1s\nshutdownGracePeriodCriticalPods: 1s\n",
        "shutdownGracePeriod: 1ms\nfeatureGates: {GracefulNodeShutdown: false}\n",
        BY_PRIORITY,
        "serverTLSBootstrap: true\nfeatureGates: {AllBeta: false, RotateKubeletServerCertificate: true}\n",
        "serverTLSBootstrap: false\nfeatureGates: {RotateKubeletServerCertificate: false}\n",
    ] {
        load_text(text, &[]).unwrap_or_else(|fault| panic!("{text}: {fault}"));
    }
}

#[test]
fn all_faults_are_told_at_once() {
    let faults = load_text("foo: 1\nport: 0\nhealthzPort: -1\nbar: 2\n", &[]).unwrap_err();
    assert_eq!(faults.lines().count(), 2, "{faults}");
    let faults = load_text("healthzPort: -1\noomScoreAdj: 5000\n", &[]).unwrap_err();
    assert_eq!(
        faults,
        "config.yaml:3: healthzPort: -1 is not within 0 and 65535\nconfig.yaml:4: oomScoreAdj: 5000 is not within -1000 and 1000"
    );
}

#[test]
fn drop_ins_are_merged_in_lexical_order_and_flags_win() {
    let directory = TempDir::new().unwrap();
    let drop_ins = directory.path().join("conf.d");
    fs::create_dir_all(drop_ins.join("sub")).unwrap();
    let write =
        |name: &str, text: &str| fs::write(directory.path().join(name), format!("{HEAD}{text}")).unwrap();
    write(
        "config.yaml",
        "maxPods: 1\nclusterDNS: [10.0.0.1]\nkubeReserved: {cpu: 1, memory: 1Gi}\n"
            .replace("cpu: 1,", "cpu: \"1\",")
            .as_str(),
    );
    write(
        "conf.d/20.conf",
        "maxPods: 3\nkubeReserved: {memory: 2Gi}\nevictionHard: {memory.available: 200Mi}\n",
    );
    write("conf.d/10.conf", "maxPods: 2\nclusterDNS: [10.0.0.2, 10.0.0.3]\nclusterDomain: a\n");
    write("conf.d/sub/30.conf", "clusterDomain: null\n");
    fs::write(drop_ins.join("README.md"), "not one").unwrap();
    let dir = format!("--config-dir={}", drop_ins.display());
    let settings = load_in(&directory, &[&dir, "--pod-max-pids=99", "--kube-reserved=memory=3Gi"]).unwrap();
    let kubelet = &settings.kubelet;
    assert_eq!(kubelet.max_pods, Some(3));
    assert_eq!(kubelet.cluster_dns, Some(vec!["10.0.0.2".to_owned(), "10.0.0.3".to_owned()]));
    assert_eq!(kubelet.cluster_domain, None);
    assert_eq!(kubelet.pod_pids_limit, Some(99));
    let reserved = kubelet.kube_reserved.clone().unwrap();
    assert_eq!(reserved, BTreeMap::from([("memory".to_owned(), "3Gi".to_owned())]));
    let reserved = load_in(&directory, &[&dir]).unwrap().kubelet.kube_reserved.unwrap();
    assert_eq!((reserved["cpu"].as_str(), reserved["memory"].as_str()), ("1", "2Gi"));
    // A drop-in changes one signal; the file itself would have replaced them all.
    let signals = kubelet.eviction_hard.clone().unwrap();
    assert_eq!(
        (signals["memory.available"].as_str(), signals["nodefs.available"].as_str()),
        ("200Mi", "10%")
    );
}

/// Source: `Set` of `langle_separated_map_string_string.go` of `component-base/cli/flag`, and `kubeletConfigFlagPrecedence` of
/// `cmd/kubelet/app/server.go`.
#[test]
fn a_map_of_a_flag_takes_the_place_of_that_of_files_and_gates_are_merged() {
    let drop_ins = TempDir::new().unwrap();
    fs::write(drop_ins.path().join("10.conf"), format!("{HEAD}maxPods: 3\n")).unwrap();
    let drop_in = format!("--config-dir={}", drop_ins.path().display());
    let (pids, disk) = ("--eviction-hard=pid.available<1000", "--eviction-hard=nodefs.available<1Gi");
    let file = "evictionHard: {memory.available: 200Mi}\n";
    let merging = "evictionHard: {memory.available: 200Mi}\nmergeDefaultEvictionSettings: true\n";
    for (text, flags, expected) in [
        (file, &["--eviction-hard="][..], &[][..]),
        (file, &[pids], &["pid.available"]),
        (file, &[pids, disk], &["nodefs.available", "pid.available"]),
        (merging, &[pids], &["pid.available"]),
        ("", &[drop_in.as_str(), disk], &["nodefs.available"]),
    ] {
        let signals = load_text(text, flags).unwrap().kubelet.eviction_hard.unwrap();
        assert_eq!(signals.keys().collect::<Vec<_>>(), expected, "{text}{flags:?}");
    }
    let flag = "--feature-gates=PodLevelResources=true";
    let settings = load_text("featureGates: {EnvFiles: false}\n", &[flag]).unwrap();
    let gates = settings.kubelet.feature_gates.unwrap();
    assert_eq!(gates.keys().collect::<Vec<_>>(), ["EnvFiles", "PodLevelResources"]);
}

/// Guaranteed pods get -997 and shims -998 wherever the kernel lets the agent give less than it has itself.
#[test]
fn scores_are_bounded_by_the_agents_own_only_without_the_capability() {
    const SYS_RESOURCE: u64 = 1 << 24;
    let settings = load_text("oomScoreAdj: -998\n", &[]).unwrap();
    for (capabilities, own, floor) in
        [(SYS_RESOURCE, 0, -1000), (SYS_RESOURCE, -999, -1000), (0, 0, 0), (!SYS_RESOURCE, -500, -500)]
    {
        let facts = Facts { capabilities, oom_score_adj: own, ..facts() };
        let config = settings.resolve(&facts).unwrap();
        assert_eq!(
            (config.node.oom_score_floor, config.oom_score_adj),
            (floor, -998),
            "{capabilities:x} {own}"
        );
    }
}

#[test]
fn flags_stand_for_fields_and_their_faults_name_them() {
    let flags = [
        "--cgroup-driver=systemd",
        "--fail-swap-on=false",
        "--seccomp-default",
        "-v=4",
        "--eviction-hard=memory.available<5%,nodefs.available<1Gi",
        "--feature-gates=EventedPLEG=true,EnvFiles=false,PodLevelResources=true",
        "--cluster-dns=10.0.0.1,10.0.0.2",
        "--runtime-cgroups=/x",
        "--oom-score-adj",
        "-5",
    ];
    let settings = Settings::load(KubeletFlags::parse(&flags).unwrap()).unwrap();
    assert_eq!(settings.kubelet.cgroup_driver.as_deref(), Some("systemd"));
    assert_eq!(settings.kubelet.fail_swap_on, Some(false));
    assert_eq!(settings.kubelet.seccomp_default, Some(true));
    assert_eq!(settings.kubelet.logging.as_ref().unwrap().verbosity, Some(4));
    assert_eq!(settings.kubelet.eviction_hard.as_ref().unwrap().len(), 2);
    assert_eq!(settings.kubelet.oom_score_adj, Some(-5));
    let names: Vec<_> = ignored(&settings).into_iter().map(|ignored| ignored.name).collect();
    assert_eq!(
        names,
        ["featureGates.EventedPLEG", "featureGates.EnvFiles", "evictionHard: no pod is evicted"]
    );
    for (flag, expected) in [
        ("--max-pods=x", "--max-pods: maxPods: expected a whole number, found string \"x\""),
        (
            "--seccomp-default=maybe",
            "--seccomp-default: seccompDefault: expected `true` or `false`, found string \"maybe\"",
        ),
        (
            "--node-ip=10.0.0.1,10.0.0.2",
            "--node-ip: `10.0.0.1,10.0.0.2` is neither one address nor one of each family",
        ),
    ] {
        let faults = Settings::load(KubeletFlags::parse(&[flag]).unwrap()).unwrap_err();
        assert_eq!(faults.to_string(), expected);
    }
}

#[test]
fn the_configuration_of_a_machine() {
    let berth = "---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\nstateDir: /run/b\nruntime:\n  ociRuntime: /usr/bin/youki\n  handlers: {kata: io.containerd.kata.v2}\n  defaultHandler: kata\nsnapshotter: native\n";
    let text = format!(
        "cgroupDriver: systemd\ncgroupRoot: /kubelet/\nstaticPodPath: manifests\npodPidsLimit: 100\nmaxParallelImagePulls: 4\nresolvConf: \"\"\ncontainerLogMaxSize: 1Mi\n{berth}"
    );
    let settings =
        load_text(&text, &["--root-dir=/data/", "--hostname-override=Node-2", "--node-ip=10.1.0.1,fd00::1"])
            .unwrap();
    let config = settings.resolve(&facts()).unwrap();
    assert_eq!(config.node.name, "node-2");
    assert_eq!(config.node.ips.len(), 2);
    assert_eq!(config.node.cgroups.driver, CgroupDriver::Systemd);
    assert_eq!(config.node.cgroups.root, "/kubelet");
    assert_eq!(config.node.cgroups.pod_pids_max, Some(100));
    assert_eq!(config.node.pulls.parallel_max, Some(4));
    assert_eq!(config.node.paths.root, "/data");
    assert_eq!(config.node.paths.seccomp, "/data/seccomp");
    assert_eq!(config.node.logs.max_size_bytes, 1 << 20);
    assert_eq!(config.node.dns.node_resolv_conf, ResolvConf::Nothing);
    assert_eq!(config.control_socket, PathBuf::from("/run/b/berth.sock"));
    assert_eq!(config.oci_runtime, OciRuntime::Path("/usr/bin/youki".into()));
    assert_eq!(config.runtime.handlers[""].runtime.name(), "io.containerd.kata.v2");
    assert_eq!(config.runtime.handlers["berth"].runtime, PodRuntime::Berth { binary: None });
    assert_eq!(config.runtime.snapshotter, "native");
    assert_eq!(config.containerd_socket, PathBuf::from("/run/containerd/containerd.sock"));
    // Relative to the file that names it.
    let static_pods = config.static_pod_path.unwrap();
    assert!(
        static_pods.is_absolute()
            && static_pods.ends_with("manifests")
            && static_pods.components().count() > 2
    );
    assert_eq!(config.node.pulls.qps, 5);
}

#[test]
fn images_are_removed_by_the_kubelets_thresholds_unless_none_can_be_met() {
    let collection = |text: &str| load_text(text, &[]).unwrap().resolve(&facts()).unwrap().node.collection;
    let of = |high, low, age_min, age_max: Option<u64>| {
        Some(ImageCollection {
            high_percent: high,
            low_percent: low,
            age_min: Duration::from_secs(age_min),
            age_max: age_max.map(Duration::from_secs),
        })
    };
    for (text, expected) in [
        ("", of(85, 80, 120, None)),
        ("imageGCHighThresholdPercent: 1\nimageGCLowThresholdPercent: 0\n", of(1, 0, 120, None)),
        ("imageMinimumGCAge: 0s\nimageMaximumGCAge: 24h\n", of(85, 80, 120, Some(86_400))),
        ("imageGCHighThresholdPercent: 100\nimageMaximumGCAge: 1h\n", of(100, 80, 120, Some(3600))),
        ("imageGCHighThresholdPercent: 100\n", None),
    ] {
        assert_eq!(collection(text), expected, "{text}");
    }
}

#[test]
fn containerds_own_word_takes_app_armor_away_and_gives_it_to_no_node() {
    use AppArmor::{Absent, Enforced, Unused};
    for (found, is_disabled, expected) in [
        (Enforced, false, Enforced),
        (Enforced, true, Unused),
        (Unused, false, Unused),
        (Unused, true, Unused),
        (Absent, false, Absent),
        (Absent, true, Absent),
    ] {
        let mut settings = load_text("", &[]).unwrap();
        settings.containerd.disable_apparmor = is_disabled;
        let config = settings.resolve(&Facts { app_armor: found, ..facts() }).unwrap();
        assert_eq!(config.node.app_armor, expected, "{found:?} {is_disabled}");
    }
}

/// As containerd: on a node without SELinux its setting does nothing, and without its setting SELinux does nothing.
#[test]
fn containers_have_labels_where_containerd_says_so_and_the_kernel_has_selinux() {
    let contexts =
        "process = \"system_u:system_r:container_t:s0\"\nfile = \"system_u:object_r:container_file_t:s0\"\n";
    for (found, is_enabled, expected) in [
        (None, false, None),
        (None, true, None),
        (Some(contexts), false, None),
        (Some(contexts), true, Some(SeLinux::of(contexts, 512))),
        (Some(""), true, Some(SeLinux { categories: 512, ..SeLinux::default() })),
    ] {
        let mut settings = load_text("", &[]).unwrap();
        settings.containerd.enable_selinux = is_enabled;
        settings.containerd.selinux_categories = 512;
        let facts = Facts { selinux_contexts: found.map(str::to_owned), ..facts() };
        assert_eq!(settings.resolve(&facts).unwrap().node.se_linux, expected, "{found:?} {is_enabled}");
    }
}

#[test]
fn without_parallel_pulls_they_are_serialised() {
    let config = Settings::load(KubeletFlags::default()).unwrap().resolve(&facts()).unwrap();
    assert_eq!(config.node.pulls.parallel_max, Some(1));
    let config = load_text("serializeImagePulls: false\n", &[]).unwrap().resolve(&facts()).unwrap();
    assert_eq!(config.node.pulls.parallel_max, None);
    assert_eq!(config.node.cgroups.root, "/");
}

#[test]
fn what_is_written_out_can_be_read_again() {
    let settings = Settings::load(KubeletFlags::default()).unwrap();
    let text = serde_json::to_string(&settings.kubelet).unwrap();
    let node = crate::document::parse("again", &text).unwrap().remove(0);
    assert_eq!(read::<KubeletConfiguration>(&node), Ok(settings.kubelet));
}
