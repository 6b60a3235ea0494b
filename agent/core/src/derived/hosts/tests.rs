use super::*;
use crate::fixtures;

fn names(hostname: &str, domain: &str) -> HostNames {
    HostNames { hostname: hostname.into(), domain: domain.into() }
}

fn alias(ip: &str, hostnames: &[&str]) -> HostAlias {
    HostAlias { ip: ip.into(), hostnames: hostnames.iter().map(|name| (*name).to_owned()).collect() }
}

const HEAD: &str = "# Kubernetes-managed hosts file.\n\
    127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";

#[test]
fn managed_file() {
    let node = fixtures::node();
    let ips = ["10.1.2.3".parse().unwrap(), "fd00::3".parse().unwrap()];
    let mut pod = fixtures::pod(vec![]);
    assert_eq!(
        content(&pod, &node, &names("web", ""), &ips),
        Some(format!("{HEAD}10.1.2.3\tweb\nfd00::3\tweb\n"))
    );
    pod.host_aliases = vec![alias("10.0.0.1", &["a", "b.example"]), alias("10.0.0.2", &["c"])];
    assert_eq!(
        content(&pod, &node, &names("web", "sub.shop.svc.cluster.local"), &ips[..1]),
        Some(format!(
            "{HEAD}10.1.2.3\tweb.sub.shop.svc.cluster.local\tweb\n\n# Entries added by HostAliases.\n\
             10.0.0.1\ta\tb.example\n10.0.0.2\tc\n"
        ))
    );
}

#[test]
fn the_nodes_file_in_the_nodes_network() {
    let node = fixtures::node();
    let mut pod = fixtures::pod(vec![]);
    pod.network = NetworkMode::Node;
    let head = "# Kubernetes-managed hosts file (host network).\n127.0.0.1\tlocalhost\n";
    assert_eq!(content(&pod, &node, &names("web", ""), &[]), Some(head.to_owned()));
    pod.host_aliases = vec![alias("10.0.0.1", &["a"])];
    assert_eq!(
        content(&pod, &node, &names("web", ""), &[]),
        Some(format!("{head}\n# Entries added by HostAliases.\n10.0.0.1\ta\n"))
    );
}

#[test]
fn no_file_without_an_address() {
    assert_eq!(content(&fixtures::pod(vec![]), &fixtures::node(), &names("web", ""), &[]), None);
}
