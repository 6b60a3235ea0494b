use super::*;
use crate::fixtures;

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn pod(policy: DnsPolicy, network: NetworkMode) -> Pod {
    Pod { dns_policy: policy, network, ..fixtures::pod(vec![]) }
}

const OF_CLUSTER: &str = "search shop.svc.cluster.local svc.cluster.local cluster.local example.com\n\
                          nameserver 10.96.0.10\noptions ndots:5\n";
const OF_NODE: &str = "search example.com\nnameserver 198.51.100.1\n";

#[test]
fn policies() {
    use DnsPolicy::{ClusterFirst, ClusterFirstWithHostNet, Default, None};
    for (policy, network, expected) in [
        (ClusterFirst, NetworkMode::Pod, OF_CLUSTER),
        (ClusterFirst, NetworkMode::Node, OF_NODE),
        (ClusterFirstWithHostNet, NetworkMode::Node, OF_CLUSTER),
        (ClusterFirstWithHostNet, NetworkMode::Pod, OF_CLUSTER),
        (Default, NetworkMode::Pod, OF_NODE),
        (None, NetworkMode::Pod, ""),
    ] {
        let dns = of(&pod(policy, network), &fixtures::node()).unwrap();
        assert_eq!(dns.content(), expected, "{policy:?} {network:?}");
        assert_eq!((dns.warnings, dns.node_warning), (vec![], Option::None));
    }
}

#[test]
fn a_cluster_without_dns_falls_back_and_says_so() {
    let mut node = fixtures::node();
    node.dns.cluster_dns.clear();
    let dns = of(&pod(DnsPolicy::ClusterFirst, NetworkMode::Pod), &node).unwrap();
    assert_eq!(dns.content(), OF_NODE);
    assert_eq!(dns.warnings.len(), 1);
    assert_eq!(dns.warnings[0].reason, "MissingClusterDNS");
    assert!(
        dns.warnings[0]
            .message
            .starts_with("pod: \"web-node-1_shop(0b1c-2d)\". kubelet does not have ClusterDNS")
    );
    let of_node = dns.node_warning.expect("the node's owner is told");
    assert_eq!(of_node.reason, "MissingClusterDNS");
    let text = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
                \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
    assert_eq!(of_node.message, text);
}

#[test]
fn a_cluster_without_a_domain_adds_no_search() {
    let mut node = fixtures::node();
    node.dns.cluster_domain.clear();
    let dns = of(&pod(DnsPolicy::ClusterFirst, NetworkMode::Pod), &node).unwrap();
    assert_eq!(dns.searches, ["example.com"]);
}

#[test]
fn a_node_without_a_resolver_asks_itself_and_an_empty_file_says_nothing() {
    let text = |text: &str| ResolvConf::Text(text.into());
    for (file, ips, expected) in [
        (
            ResolvConf::Nothing,
            &["192.0.2.1", "2001:db8::1"][..],
            "search .\nnameserver 127.0.0.1\nnameserver ::1\n",
        ),
        (ResolvConf::Nothing, &[], "search .\nnameserver 127.0.0.1\n"),
        (text(""), &["192.0.2.1"], ""),
        (text(" \n"), &[], ""),
        (text("# written by nobody\n"), &[], ""),
    ] {
        let mut node = fixtures::node();
        node.dns.node_resolv_conf = file.clone();
        node.ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        let dns = of(&pod(DnsPolicy::Default, NetworkMode::Pod), &node).unwrap();
        assert_eq!(dns.content(), expected, "{file:?} {ips:?}");
    }
}

/// Source: `GetPodDNS` reads the file before it looks at the pod's policy.
#[test]
fn without_a_usable_file_no_pod_has_a_resolv_conf() {
    use DnsPolicy::{ClusterFirst, ClusterFirstWithHostNet, Default, None};
    const MISSING: &str = "open /run/resolv.conf: No such file or directory";
    for (file, why) in [
        (ResolvConf::Unreadable(MISSING.into()), MISSING),
        (
            ResolvConf::Text("nameserver 192.0.2.53\nnameserver \n".into()),
            "Encountered error while parsing resolv conf file. Error: nameserver list is empty ",
        ),
    ] {
        for policy in [ClusterFirst, ClusterFirstWithHostNet, Default, None] {
            let mut node = fixtures::node();
            node.dns.node_resolv_conf = file.clone();
            let error = of(&pod(policy, NetworkMode::Pod), &node).unwrap_err();
            assert_eq!(error.to_string(), why, "{policy:?}");
        }
    }
}

#[test]
fn what_a_resolv_conf_says() {
    for (text, nameservers, searches, options) in [
        ("nameserver 1.1.1.1\nnameserver 2.2.2.2", &["1.1.1.1", "2.2.2.2"][..], &[][..], &[][..]),
        ("search a b\nsearch c.", &[], &["c"], &[]),
        ("search . a.", &[], &["a"], &[]),
        ("search", &[], &[], &[]),
        ("options ndots:1 rotate\noptions ndots:3", &[], &[], &["ndots:3", "rotate"]),
        ("# nameserver 1\n; x\n#search y\n", &[], &[], &[]),
        ("\tnameserver\t 3.3.3.3 ignored", &["3.3.3.3"], &[], &[]),
        ("domain example.com\nsortlist 1", &[], &[], &[]),
        ("nameserver 4.4.4.4\r\nsearch x\r\n", &["4.4.4.4"], &["x"], &[]),
    ] {
        let dns = parse(text).unwrap();
        assert_eq!(dns.nameservers, nameservers, "{text:?}");
        assert_eq!(dns.searches, searches, "{text:?}");
        assert_eq!(dns.options, options, "{text:?}");
    }
}

#[test]
fn settings_of_the_pod_are_added_without_repeats() {
    let mut pod = pod(DnsPolicy::ClusterFirst, NetworkMode::Pod);
    pod.dns_config = Some(DnsConfig {
        nameservers: strings(&["10.96.0.10", "9.9.9.9"]),
        searches: strings(&["example.com", "own.example"]),
        options: vec![
            ("ndots".into(), Some("2".into())),
            ("edns0".into(), None),
            ("timeout".into(), Some(String::new())),
        ],
    });
    let dns = of(&pod, &fixtures::node()).unwrap();
    assert_eq!(dns.nameservers, ["10.96.0.10", "9.9.9.9"]);
    assert_eq!(
        dns.searches,
        ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.com", "own.example"]
    );
    assert_eq!(dns.options, ["ndots:2", "edns0", "timeout"]);
}

#[test]
fn what_a_node_repeats_stays_for_a_pod_without_settings() {
    let mut node = fixtures::node();
    let text =
        "nameserver 10.0.0.2\nnameserver 10.0.0.2\nnameserver 10.0.0.3\nnameserver 10.0.0.4\nsearch a b a\n";
    node.dns.node_resolv_conf = ResolvConf::Text(text.into());
    let with = |dns_config| {
        let pod = Pod { dns_config, ..pod(DnsPolicy::Default, NetworkMode::Pod) };
        let dns = of(&pod, &node).unwrap();
        (dns.nameservers, dns.searches)
    };
    let plain = |servers: &[&str], searches: &[&str]| (strings(servers), strings(searches));
    assert_eq!(with(None), plain(&["10.0.0.2", "10.0.0.2", "10.0.0.3"], &["a", "b", "a"]));
    let own = Some(DnsConfig::default());
    assert_eq!(with(own), plain(&["10.0.0.2", "10.0.0.3", "10.0.0.4"], &["a", "b"]));
}

fn only(config: DnsConfig) -> PodDns {
    of(&Pod { dns_config: Some(config), ..pod(DnsPolicy::None, NetworkMode::Pod) }, &fixtures::node())
        .unwrap()
}

#[test]
fn no_more_than_three_name_servers() {
    let dns = only(DnsConfig { nameservers: strings(&["1", "2", "3", "4"]), ..DnsConfig::default() });
    assert_eq!(dns.nameservers, ["1", "2", "3"]);
    assert_eq!(
        dns.warnings,
        [DnsWarning {
            reason: "DNSConfigForming",
            message:
                "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver \
                      line is: 1 2 3"
                    .into()
        }]
    );
}

#[test]
fn search_domains_are_bounded_in_number_and_length() {
    let numbered = |count: usize, width: usize| -> Vec<String> {
        (0..count).map(|index| format!("{index:0width$}")).collect()
    };
    // Domains, how many stay.
    for (searches, kept) in [
        (numbered(32, 2), 32),
        (numbered(33, 2), 32),
        (vec!["a".repeat(253), "b".repeat(254), "c".into()], 2),
        (numbered(8, 253), 8),
        (numbered(9, 253), 8),
        (numbered(9, 226), 9),
        ([numbered(8, 253), vec!["x".repeat(16)]].concat(), 9),
        ([numbered(8, 253), vec!["x".repeat(17)]].concat(), 8),
    ] {
        let given = searches.len();
        let dns = only(DnsConfig { searches, ..DnsConfig::default() });
        assert_eq!(dns.searches.len(), kept);
        assert!(dns.searches.join(" ").len() <= SEARCH_LINE_MAX);
        assert_eq!(dns.warnings.len(), usize::from(kept < given));
    }
}

#[test]
fn what_pods_cannot_have_of_the_nodes_file() {
    let search = |domains: &[String]| format!("search {}\n", domains.join(" "));
    let many = |count: usize| search(&vec!["a.b".to_owned(); count]);
    let long = |length: usize| search(&["x".repeat(length)]);
    let line = |last: usize| search(&[vec!["x".repeat(253); 8], vec!["x".repeat(last)]].concat());
    for (text, domain, expected) in [
        (many(29), "cluster.local", None),
        (many(30), "cluster.local", Some("'/r' contains search line consisting of more than 29 domains!")),
        (many(32), "", None),
        (many(33), "", Some("'/r' contains search line consisting of more than 32 domains!")),
        (format!("{}{}", many(40), many(1)), "", None),
        (long(253), "", None),
        (long(254), "", Some("\"/r\" contains a search path which length is more than allowed 253 chars!")),
        (line(16), "", None),
        (line(17), "", Some("'/r' contains search line which length is more than allowed 2048 chars!")),
    ] {
        let mut dns = fixtures::node().dns;
        (dns.node_resolv_conf, dns.cluster_domain) = (ResolvConf::Text(text.clone()), domain.into());
        let expected = expected.map(|expected| format!("Resolv.conf file {expected}"));
        assert_eq!(node_limits(&dns, "/r"), expected, "{text} {domain:?}");
    }
    for (file, expected) in [
        (ResolvConf::Nothing, None),
        (ResolvConf::Unreadable("open /r: gone".into()), Some("open /r: gone")),
        (ResolvConf::Text("nameserver\n".into()), Some("nameserver list is empty ")),
    ] {
        let mut dns = fixtures::node().dns;
        dns.node_resolv_conf = file.clone();
        assert_eq!(node_limits(&dns, "/r").as_deref(), expected, "{file:?}");
    }
}
