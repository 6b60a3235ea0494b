//! What flags and fields say of the node in its cluster.

use std::collections::BTreeMap;

use berth_core::cluster::{
    node::{Cloud, Family, NodeIps, NodeSettings, Taint},
    throttle::Rate,
};

use super::*;

fn cluster(text: &str, flags: &[&str]) -> Result<Cluster, String> {
    let flags: Vec<_> = ["--kubeconfig=/x"].iter().chain(flags).copied().collect();
    let config = load_text(text, &flags)?.resolve(&facts()).map_err(|faults| faults.to_string())?;
    Ok(config.cluster.unwrap())
}

fn node(text: &str, flags: &[&str]) -> Result<NodeSettings, String> {
    Ok(cluster(text, flags)?.node)
}

#[test]
fn without_a_kubeconfig_there_is_no_cluster() {
    assert_eq!(load_text("", &[]).unwrap().resolve(&facts()).unwrap().cluster, None);
    let node = node("", &[]).unwrap();
    assert_eq!((node.name.as_str(), node.pods_max, node.images_max), ("node-1", 110, Some(50)));
    assert_eq!((node.update_every, node.report_every), (Duration::from_secs(10), Duration::from_secs(300)));
    assert_eq!((node.port, node.lease_seconds, node.registers), (10250, 40, true));
    assert_eq!((node.cloud, node.ips), (Cloud::None, NodeIps::Unset));
}

/// Source: `SetDefaults_KubeletConfiguration` of `pkg/kubelet/apis/config/v1beta1/defaults.go`, which is called for the file of
/// `--config` and again for what drop-ins make of it.
#[test]
fn the_report_follows_the_update_that_is_written_beside_it() {
    const UPDATE: &str = "nodeStatusUpdateFrequency: 20s\n";
    const OTHER: &str = "nodeStatusUpdateFrequency: 15s\n";
    const ZERO: &str = "nodeStatusReportFrequency: 0s\n";
    let (with_report, both) = (format!("{UPDATE}nodeStatusReportFrequency: 60s\n"), format!("{OTHER}{ZERO}"));
    let zeroes = format!("nodeStatusUpdateFrequency: 0s\n{ZERO}");
    let (ten, fifteen) = ("--node-status-update-frequency=10s", "--node-status-update-frequency=15s");
    for (file, drop_in, flag, expected) in [
        (None, None, None, (10, 300)),
        (None, None, Some(fifteen), (15, 300)),
        (Some(""), None, Some(ten), (10, 300)),
        (Some(UPDATE), None, None, (20, 20)),
        (Some(UPDATE), None, Some(ten), (10, 20)),
        (Some("nodeStatusUpdateFrequency: 20s\nnodeStatusReportFrequency: 0s\n"), None, Some(ten), (10, 20)),
        (Some("nodeStatusUpdateFrequency: 0s\n"), None, None, (10, 300)),
        (Some(""), Some(OTHER), None, (15, 300)),
        (Some(UPDATE), Some(OTHER), None, (15, 20)),
        (Some(UPDATE), Some("nodeStatusUpdateFrequency: 0s\n"), None, (10, 20)),
        (Some("nodeStatusReportFrequency: 60s\n"), Some(OTHER), Some(ten), (10, 60)),
        (Some(""), Some(ZERO), None, (10, 10)),
        (Some(""), Some("nodeStatusReportFrequency: null\n"), None, (10, 10)),
        (Some(""), Some(zeroes.as_str()), None, (10, 300)),
        (Some(""), Some(ZERO), Some(fifteen), (15, 10)),
        (Some(UPDATE), Some(ZERO), None, (20, 20)),
        (Some(with_report.as_str()), Some(ZERO), None, (20, 20)),
        (Some(UPDATE), Some(both.as_str()), None, (15, 15)),
        (None, Some(OTHER), None, (15, 300)),
        (None, Some(ZERO), None, (10, 10)),
        (None, Some(ZERO), Some(fifteen), (15, 15)),
        (None, Some("maxPods: 3\n"), Some(fifteen), (15, 300)),
    ] {
        let flags: Vec<_> = ["--kubeconfig=/x"].into_iter().chain(flag).collect();
        let config = load_layers(file, drop_in, &flags).resolve(&facts()).unwrap();
        let node = config.cluster.unwrap().node;
        let found = (node.update_every.as_secs(), node.report_every.as_secs());
        assert_eq!(found, expected, "{file:?} {drop_in:?} {flag:?}");
    }
}

/// Source: `DefaultQPS`, `DefaultBurst` of `staging/src/k8s.io/client-go/rest/config.go`.
#[test]
fn what_a_zero_of_a_flag_stands_for() {
    let flags = [
        "--kubeconfig=/x",
        "--max-pods=0",
        "--event-qps=0",
        "--event-burst=0",
        "--kube-api-burst=0",
        "--node-status-update-frequency=0",
    ];
    let config = load_text("maxPods: 7\neventBurst: 7\n", &flags).unwrap().resolve(&facts()).unwrap();
    let cluster = config.cluster.unwrap();
    assert_eq!((config.node.pods_max, cluster.node.pods_max), (0, 0));
    assert_eq!(cluster.events, EventRate(Rate { per_second: 5, burst: 10 }));
    assert_eq!(cluster.requests, RequestRate(Rate { per_second: 50, burst: 10 }));
    assert_eq!(cluster.node.update_every, Duration::from_secs(1));
}

/// Four numbers, each with its own meaning.
#[test]
fn events_and_other_requests_have_rates_of_their_own() {
    let file = "eventRecordQPS: 1\neventBurst: 2\nkubeAPIQPS: 3\nkubeAPIBurst: 4\n";
    let flags = ["--event-qps=1", "--event-burst=2", "--kube-api-qps=3", "--kube-api-burst=4"];
    for (text, flags, events, requests) in [
        (file, &[][..], (1, 2), (3, 4)),
        ("", &flags, (1, 2), (3, 4)),
        ("", &[], (50, 100), (50, 100)),
        ("eventRecordQPS: 0\nkubeAPIBurst: 0\n", &[], (5, 100), (50, 100)),
    ] {
        let cluster = cluster(text, flags).unwrap();
        let rate = |(per_second, burst)| Rate { per_second, burst };
        assert_eq!(cluster.events, EventRate(rate(events)), "{text}{flags:?}");
        assert_eq!(cluster.requests, RequestRate(rate(requests)), "{text}{flags:?}");
    }
}

/// The drop-in of kubeadm's packages has `$KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS`.
#[test]
fn an_administrators_flags_come_after_those_of_kubeadm_and_count() {
    let kubeadm = [
        "--node-ip=10.1.0.1",
        "--max-pods=5",
        "--register-with-taints=k=v:NoSchedule",
        "--node-labels=a=1,b=1",
    ];
    let extra =
        ["--node-ip=10.1.0.2", "--max-pods=6", "--register-with-taints=l:NoExecute", "--node-labels=b=2"];
    let settings = node("", &[kubeadm, extra].concat()).unwrap();
    assert_eq!(settings.ips, NodeIps::Given("10.1.0.2".parse().unwrap(), None));
    assert_eq!(settings.pods_max, 6);
    let taint = Taint { key: "l".to_owned(), value: String::new(), effect: "NoExecute".to_owned() };
    assert_eq!(settings.taints, [taint]);
    let labels = [("a", "1"), ("b", "2")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(settings.labels, BTreeMap::from(labels));
}

#[test]
fn the_node_has_what_kubeadm_kind_and_clouds_pass() {
    let flags = [
        "--node-labels=a=b,node.kubernetes.io/x=",
        "--node-labels=topology.kubernetes.io/zone=z,example.com/gpu, pool = c ",
        "--register-with-taints=k=v:NoSchedule,example.com/k:NoExecute",
        "--provider-id=kind://docker/kind/kind-worker",
        "--cloud-provider=external",
        "--node-ip=10.1.0.1,fd00::1",
    ];
    let settings = node("maxPods: 100\npodsPerCore: 10\nnodeStatusMaxImages: -1\n", &flags).unwrap();
    let labels = [
        ("a", "b"),
        ("example.com/gpu", ""),
        ("node.kubernetes.io/x", ""),
        ("pool", "c"),
        ("topology.kubernetes.io/zone", "z"),
    ];
    let labels: BTreeMap<_, _> =
        labels.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    assert_eq!(settings.labels, labels);
    let taint = |key: &str, value: &str, effect: &str| Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
    };
    assert_eq!(settings.taints, [taint("k", "v", "NoSchedule"), taint("example.com/k", "", "NoExecute")]);
    assert_eq!(settings.provider_id, "kind://docker/kind/kind-worker");
    assert_eq!(settings.cloud, Cloud::External);
    assert_eq!((settings.pods_max, settings.images_max), (40, None));
    let [first, second] = ["10.1.0.1", "fd00::1"].map(|ip| ip.parse().unwrap());
    assert_eq!(settings.ips, NodeIps::Given(first, Some(second)));
    for (flag, ips) in [
        ("--node-ip=::", NodeIps::OfFamily(Family::V6)),
        ("--node-ip=0.0.0.0", NodeIps::OfFamily(Family::V4)),
        ("--node-ip=10.1.0.1", NodeIps::Given(first, None)),
        ("--node-ip=", NodeIps::Unset),
    ] {
        assert_eq!(node("", &[flag]).unwrap().ips, ips, "{flag}");
    }
}

/// Source: `ParseNodeIPArgument` of `k8s.io/component-helpers/node/util/ips.go`.
#[test]
fn what_of_node_ip_is_no_address_is_left_out_and_told() {
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    let one = NodeIps::Given(ip("10.1.0.1"), None);
    let both = NodeIps::Given(ip("10.1.0.1"), Some(ip("fd00::1")));
    for (written, expected, unread) in [
        ("", NodeIps::Unset, vec![]),
        ("10.1.0.1", one, vec![]),
        (" 10.1.0.1 , fd00::1 ", both, vec![]),
        ("010.01.0.1,fd00::01", both, vec![]),
        ("::ffff:10.1.0.1,fd00::1", both, vec![]),
        ("10.1.0.1,", one, vec![""]),
        ("eth0,10.1.0.1", one, vec!["eth0"]),
        ("10.1.0.1, eth0 ,fd00::1", both, vec!["eth0"]),
        ("eth0,10.1.0.256", NodeIps::Unset, vec!["eth0", "10.1.0.256"]),
        (" ", NodeIps::Unset, vec![""]),
        ("0.0.0.0", NodeIps::OfFamily(Family::V4), vec![]),
        ("eth0,::", NodeIps::OfFamily(Family::V6), vec!["eth0"]),
    ] {
        let settings = load_text("", &["--kubeconfig=/x", &format!("--node-ip={written}")]).unwrap();
        assert_eq!(settings.unread_node_ips(), unread, "{written:?}");
        let config = settings.resolve(&facts()).unwrap();
        assert_eq!(config.cluster.unwrap().node.ips, expected, "{written:?}");
        let fixed: Vec<_> = match expected {
            NodeIps::Unset | NodeIps::OfFamily(_) => Vec::new(),
            NodeIps::Given(first, second) => [Some(first), second].into_iter().flatten().collect(),
        };
        assert_eq!(config.live.fixed_ips.unwrap_or_default(), fixed, "{written:?}");
    }
    for written in ["10.1.0.1,::ffff:10.1.0.2", "10.1.0.1,eth0,fd00::1,fd00::2", "10.1.0.1,::"] {
        let refused = node("", &[&format!("--node-ip={written}")]).unwrap_err();
        let expected = format!("--node-ip: `{written}` is neither one address nor one of each family");
        assert_eq!(refused, expected);
    }
}

#[test]
fn what_of_cluster_dns_is_no_address_is_left_out_and_told() {
    for (written, servers, unread) in [
        ("[10.96.0.10, 'fd00::a']", &["10.96.0.10", "fd00::a"][..], &[][..]),
        (
            "['010.096.000.010', 'FD00:0::00a', '::ffff:10.96.0.11']",
            &["10.96.0.10", "fd00::a", "10.96.0.11"],
            &[],
        ),
        ("[x, 10.96.0.10, 10.96.0.256, '']", &["10.96.0.10"], &["x", "10.96.0.256", ""]),
        ("[' 10.96.0.10', dns.kube-system]", &[], &[" 10.96.0.10", "dns.kube-system"]),
        ("[]", &[], &[]),
    ] {
        let settings = load_text(&format!("clusterDNS: {written}\n"), &[]).unwrap();
        assert_eq!(settings.unread_cluster_dns(), unread, "{written}");
        assert_eq!(settings.resolve(&facts()).unwrap().node.dns.cluster_dns, servers, "{written}");
    }
    let settings = load_text("", &["--cluster-dns=x,010.0.0.1"]).unwrap();
    assert_eq!(settings.unread_cluster_dns(), ["x"]);
    assert_eq!(settings.resolve(&facts()).unwrap().node.dns.cluster_dns, ["10.0.0.1"]);
}

#[test]
fn what_the_kubelet_refuses_is_refused() {
    for (text, flag, expected) in [
        ("", "--node-labels=kubernetes.io/role=master", "is Kubernetes' own"),
        ("", "--node-labels=x.k8s.io/role=master", "is Kubernetes' own"),
        ("", "--node-labels=node-role.kubernetes.io/worker=", "is Kubernetes' own"),
        ("", "--node-labels==a", "`` is not the name of a label"),
        ("", "--node-labels=-a=b", "is not the name of a label"),
        ("", "--node-labels=a=b c", "is not the value of a label"),
        ("", "--node-labels=_/a=b", "is not a DNS name"),
        ("", "--cloud-provider=aws", "`aws` is neither `external` nor empty"),
        ("", "--register-with-taints=k", "`` is not one of `NoSchedule`"),
        ("registerWithTaints: [{key: k, effect: Never}]\n", "-v=0", "registerWithTaints[0].effect: `Never`"),
        ("registerWithTaints: [{effect: NoSchedule}]\n", "-v=0", "registerWithTaints[0].key"),
    ] {
        let refused = node(text, &[flag]).unwrap_err();
        assert!(refused.contains(expected), "{text}{flag}: {refused}");
    }
}
