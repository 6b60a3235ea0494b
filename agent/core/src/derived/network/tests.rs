use std::{net::IpAddr, sync::Arc};

use super::*;
use crate::{
    fixtures,
    spec::{Container, ContainerKind, Port},
};

fn port(host_port: Option<u16>, container_port: u16, protocol: Protocol, host_ip: Option<&str>) -> Port {
    Port { name: None, container_port, host_port, host_ip: host_ip.map(str::to_owned), protocol }
}

fn container(kind: ContainerKind, ports: Vec<Port>) -> Container {
    Container { kind, ports, ..fixtures::container("web") }
}

fn mapping(host_port: u16, container_port: u16, protocol: Protocol, host_ip: &str) -> PortMapping {
    PortMapping { host_port, container_port, protocol, host_ip: host_ip.into() }
}

#[test]
fn ports_of_main_containers_alone() {
    let mut pod = fixtures::pod(vec![container(
        ContainerKind::Main,
        vec![
            port(Some(8080), 80, Protocol::Tcp, None),
            port(None, 81, Protocol::Tcp, None),
            port(Some(0), 82, Protocol::Tcp, None),
            port(Some(8080), 80, Protocol::Udp, None),
            port(Some(8080), 80, Protocol::Tcp, Some("127.0.0.1")),
            port(Some(8080), 80, Protocol::Tcp, None),
        ],
    )]);
    pod.init_containers = vec![
        Arc::new(container(ContainerKind::Init, vec![port(Some(1), 1, Protocol::Tcp, None)])),
        Arc::new(container(ContainerKind::Sidecar, vec![port(Some(2), 2, Protocol::Sctp, Some("::1"))])),
    ];
    assert_eq!(
        port_mappings(&pod),
        [
            mapping(8080, 80, Protocol::Tcp, ""),
            mapping(8080, 80, Protocol::Udp, ""),
            mapping(8080, 80, Protocol::Tcp, "127.0.0.1"),
        ]
    );
    pod.network = NetworkMode::Node;
    assert_eq!(port_mappings(&pod), []);
}

#[test]
fn a_pod_is_known_by_an_address_of_each_family_the_nodes_first() {
    let (v4, other_v4, v6, other_v6) = ("10.0.0.2", "10.0.1.2", "fd00::2", "fd00::3");
    let ips = |all: &[&str]| -> Vec<IpAddr> { all.iter().map(|ip| ip.parse().unwrap()).collect() };
    for (all, node, expected) in [
        (&[v4][..], &["192.0.2.1"][..], &[v4][..]),
        (&[v4, v6], &["192.0.2.1", "2001:db8::1"], &[v4, v6]),
        (&[v4, v6], &["2001:db8::1", "192.0.2.1"], &[v6, v4]),
        (&[v4, v6], &["2001:db8::1"], &[v6, v4]),
        (&[v6, v4], &[], &[v4, v6]),
        (&[v4, other_v4, v6, other_v6], &["192.0.2.1"], &[v4, v6]),
        (&[v6], &["192.0.2.1"], &[v6]),
        (&[], &["192.0.2.1"], &[]),
    ] {
        assert_eq!(known_ips(&ips(all), &ips(node)), ips(expected), "{all:?} {node:?}");
    }
}

#[test]
fn bandwidth_of_annotations() {
    let quantity = |text: &str| {
        text.strip_suffix('k').map_or(text.parse().ok(), |k| Some(k.parse::<u64>().ok()? * 1000))
    };
    let ingress = "kubernetes.io/ingress-bandwidth";
    let egress = "kubernetes.io/egress-bandwidth";
    let rates = |ingress_rate, egress_rate| Ok(Some(Bandwidth { ingress_rate, egress_rate }));
    for (annotations, expected) in [
        (vec![], Ok(None)),
        (vec![(ingress, "10k")], rates(Some(10_000), None)),
        (vec![(ingress, "1k"), (egress, "1000000000000000")], rates(Some(1000), Some(RATE_MAX))),
        (vec![(egress, "999")], Err(BandwidthError::Small { annotation: egress })),
        (vec![(ingress, "0")], Err(BandwidthError::Small { annotation: ingress })),
        (vec![(ingress, "1000000000000001")], Err(BandwidthError::Large { annotation: ingress })),
        (
            vec![(ingress, "fast")],
            Err(BandwidthError::NotAQuantity { annotation: ingress, value: "fast".into() }),
        ),
    ] {
        let mut pod = fixtures::pod(vec![]);
        pod.annotations = annotations.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        assert_eq!(bandwidth(&pod, quantity), expected, "{annotations:?}");
    }
}
