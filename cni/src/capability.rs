//! Capability arguments: what the runtime asks of plugins that declare the capability.
//!
//! Names and forms are those of CNI's CONVENTIONS.md; `cgroupPath` and the annotations are those of containerd's CRI
//! (internal/cri/server/sandbox_run.go `cniNamespaceOpts`), so that plugins written for it work.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::cidr::Cidr;

/// The capability under which containerd's CRI passes the pod's annotations.
pub const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// The capability arguments of one attachment, by capability.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CapabilityArgs(Map<String, Value>);

/// A port of the host that leads to one of the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortMapping {
    /// The port on the host; mappings with 0 are dropped.
    pub host_port: u16,
    /// The port in the container.
    pub container_port: u16,
    /// The protocol.
    pub protocol: Protocol,
    /// The address on the host; none means all.
    pub host_ip: Option<IpAddr>,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// Limits on the traffic of a container, in bits per second. The burst is not limited, as in containerd.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// Towards the container.
    pub ingress: Option<u64>,
    /// From the container.
    pub egress: Option<u64>,
}

/// The resolver settings of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DnsConfig {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options.
    pub options: Vec<String>,
}

/// A range to take an address from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpRange {
    /// The subnet.
    pub subnet: Cidr,
    /// The first address, if not the subnet's first.
    pub start: Option<IpAddr>,
    /// The last address, if not the subnet's last.
    pub end: Option<IpAddr>,
    /// The gateway, if not the subnet's first.
    pub gateway: Option<IpAddr>,
}

impl CapabilityArgs {
    /// No arguments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `portMappings`; mappings without a host port are left out, and nothing is said when none remains.
    #[must_use]
    pub fn port_mappings(self, mappings: &[PortMapping]) -> Self {
        let mapped: Vec<_> = mappings.iter().filter(|m| m.host_port > 0).map(PortMapping::to_value).collect();
        if mapped.is_empty() { self } else { self.set("portMappings", mapped.into()) }
    }

    /// `bandwidth`; nothing is said when neither direction is limited.
    #[must_use]
    pub fn bandwidth(self, limits: Bandwidth) -> Self {
        /// What containerd passes: as good as no limit.
        const BURST: u64 = u32::MAX as u64;
        let mut value = Map::new();
        for (rate, burst, limit) in
            [("ingressRate", "ingressBurst", limits.ingress), ("egressRate", "egressBurst", limits.egress)]
        {
            if let Some(limit) = limit {
                value.insert(rate.into(), limit.into());
                value.insert(burst.into(), BURST.into());
            }
        }
        if value.is_empty() { self } else { self.set("bandwidth", value.into()) }
    }

    /// `dns`.
    #[must_use]
    pub fn dns(self, dns: &DnsConfig) -> Self {
        self.set("dns", json!({"servers": dns.servers, "searches": dns.searches, "options": dns.options}))
    }

    /// `ipRanges`: the outer list has one entry per address to assign.
    #[must_use]
    pub fn ip_ranges(self, sets: &[Vec<IpRange>]) -> Self {
        let sets: Vec<Vec<Value>> =
            sets.iter().map(|set| set.iter().map(IpRange::to_value).collect()).collect();
        self.set("ipRanges", sets.into())
    }

    /// `ips`: addresses to assign.
    #[must_use]
    pub fn ips(self, ips: &[Cidr]) -> Self {
        self.set("ips", ips.iter().map(ToString::to_string).collect())
    }

    /// `mac`.
    #[must_use]
    pub fn mac(self, mac: &str) -> Self {
        self.set("mac", mac.into())
    }

    /// `infinibandGUID`.
    #[must_use]
    pub fn infiniband_guid(self, guid: &str) -> Self {
        self.set("infinibandGUID", guid.into())
    }

    /// `deviceID`.
    #[must_use]
    pub fn device_id(self, id: &str) -> Self {
        self.set("deviceID", id.into())
    }

    /// `aliases`: names of the container in the network.
    #[must_use]
    pub fn aliases(self, aliases: &[String]) -> Self {
        self.set("aliases", aliases.into())
    }

    /// `cgroupPath`: the pod's cgroup.
    #[must_use]
    pub fn cgroup_path(self, path: &str) -> Self {
        if path.is_empty() { self } else { self.set("cgroupPath", path.into()) }
    }

    /// The pod's annotations, under containerd's name for them.
    #[must_use]
    pub fn pod_annotations(self, annotations: &BTreeMap<String, String>) -> Self {
        self.set(POD_ANNOTATIONS, json!(annotations))
    }

    /// Any other capability.
    #[must_use]
    pub fn set(mut self, capability: &str, value: Value) -> Self {
        self.0.insert(capability.to_owned(), value);
        self
    }

    /// The argument of a capability.
    #[must_use]
    pub fn get(&self, capability: &str) -> Option<&Value> {
        self.0.get(capability)
    }

    /// There is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl PortMapping {
    fn to_value(&self) -> Value {
        let protocol = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        };
        let mut value =
            json!({"hostPort": self.host_port, "containerPort": self.container_port, "protocol": protocol});
        if let Some(ip) = self.host_ip {
            value["hostIP"] = ip.to_string().into();
        }
        value
    }
}

impl IpRange {
    fn to_value(&self) -> Value {
        let mut value = json!({"subnet": self.subnet});
        for (key, ip) in [("rangeStart", self.start), ("rangeEnd", self.end), ("gateway", self.gateway)] {
            if let Some(ip) = ip {
                value[key] = ip.to_string().into();
            }
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_the_conventional_form() {
        let mapping =
            |host_port, protocol, host_ip| PortMapping { host_port, container_port: 80, protocol, host_ip };
        let args = CapabilityArgs::new()
            .port_mappings(&[
                mapping(8080, Protocol::Tcp, Some([127, 0, 0, 1].into())),
                mapping(0, Protocol::Tcp, None),
                mapping(53, Protocol::Udp, None),
                mapping(99, Protocol::Sctp, None),
            ])
            .bandwidth(Bandwidth { ingress: Some(1_000_000), egress: None })
            .dns(&DnsConfig { servers: vec!["10.96.0.10".into()], ..DnsConfig::default() })
            .ip_ranges(&[vec![IpRange {
                subnet: "10.1.0.0/16".parse().unwrap(),
                start: Some([10, 1, 0, 9].into()),
                end: None,
                gateway: None,
            }]])
            .ips(&["10.1.2.3/24".parse().unwrap()])
            .mac("c2:11:22:33:44:55")
            .infiniband_guid("g")
            .device_id("d")
            .aliases(&["a".into()])
            .cgroup_path("/kubepods/pod1")
            .pod_annotations(&BTreeMap::from([("k".into(), "v".into())]));
        assert_eq!(
            serde_json::to_value(args).unwrap(),
            json!({
                "portMappings": [
                    {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"},
                    {"hostPort": 53, "containerPort": 80, "protocol": "udp"},
                    {"hostPort": 99, "containerPort": 80, "protocol": "sctp"},
                ],
                "bandwidth": {"ingressRate": 1_000_000, "ingressBurst": 4_294_967_295_u64},
                "dns": {"servers": ["10.96.0.10"], "searches": [], "options": []},
                "ipRanges": [[{"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.9"}]],
                "ips": ["10.1.2.3/24"],
                "mac": "c2:11:22:33:44:55",
                "infinibandGUID": "g",
                "deviceID": "d",
                "aliases": ["a"],
                "cgroupPath": "/kubepods/pod1",
                "io.kubernetes.cri.pod-annotations": {"k": "v"},
            })
        );
    }

    #[test]
    fn nothing_to_say_is_not_said() {
        let unmapped =
            PortMapping { host_port: 0, container_port: 80, protocol: Protocol::Tcp, host_ip: None };
        let args =
            CapabilityArgs::new().port_mappings(&[unmapped]).bandwidth(Bandwidth::default()).cgroup_path("");
        assert!(args.is_empty());
    }
}
