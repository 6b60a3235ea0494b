//! Addresses of the node. Source: `NodeAddress` of `pkg/kubelet/nodestatus/setters.go`, `validateNodeIP` of
//! `pkg/kubelet/kubelet_node_status.go`.

use std::net::IpAddr;

use super::Cloud;

/// `--node-ip`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeIps {
    /// Not given: an IPv4 address is preferred.
    Unset,
    /// `0.0.0.0` or `::`: the node finds one itself, of this family when it can.
    OfFamily(Family),
    /// These, the primary one first.
    Given(IpAddr, Option<IpAddr>),
}

/// Family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// What the machine says of its addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Why an address that was given cannot be used.
    pub given_faults: Vec<String>,
    /// Addresses of the machine that its name stands for, in the order of the resolver.
    pub named: Vec<IpAddr>,
    /// Addresses that packets to elsewhere leave from.
    pub routed: Vec<IpAddr>,
}

/// Why an address cannot be the node's. `is_local` says whether an interface has it, where that is known.
#[must_use]
pub fn given_fault(ip: IpAddr, is_local: Option<bool>) -> Option<String> {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    if ip.is_loopback() {
        Some("nodeIP can't be loopback address".to_owned())
    } else if ip.is_multicast() {
        Some("nodeIP can't be a multicast address".to_owned())
    } else if link_local {
        Some("nodeIP can't be a link-local unicast address".to_owned())
    } else if ip.is_unspecified() {
        Some("nodeIP can't be an all zeros address".to_owned())
    } else {
        match is_local {
            Some(true) => None,
            Some(false) => Some(format!("node IP: \"{ip}\" not found in the host's network interfaces")),
            None => Some(format!("node IP: \"{ip}\": the host's network interfaces are not known")),
        }
    }
}

/// Addresses that were given must be the machine's.
pub(super) fn check(ips: NodeIps, found: &Found) -> Result<(), String> {
    match (ips, found.given_faults.first()) {
        (NodeIps::Given(..), Some(why)) => Err(format!("failed to validate nodeIP: {why}")),
        (NodeIps::Given(..), None) | (NodeIps::Unset | NodeIps::OfFamily(_), _) => Ok(()),
    }
}

/// The annotation for an external cloud provider.
pub(super) fn provided(ips: NodeIps, cloud: Cloud) -> Option<String> {
    match (cloud, ips) {
        (Cloud::External, NodeIps::Given(first, Some(second))) => Some(format!("{first},{second}")),
        (Cloud::External, NodeIps::Given(first, None)) => Some(first.to_string()),
        (Cloud::External, NodeIps::Unset | NodeIps::OfFamily(_)) | (Cloud::None, _) => None,
    }
}

/// Addresses with their types, in order.
pub(super) fn addresses(
    hostname: &str,
    ips: NodeIps,
    cloud: Cloud,
    found: &Found,
) -> Result<Vec<(&'static str, String)>, String> {
    let internal = |ip: IpAddr| ("InternalIP", ip.to_string());
    let name = ("Hostname", hostname.to_owned());
    let family = match ips {
        NodeIps::Given(first, Some(second)) => return Ok(vec![internal(first), internal(second), name]),
        NodeIps::Given(first, None) => return Ok(vec![internal(first), name]),
        // The provider will tell.
        NodeIps::Unset if cloud == Cloud::External => return Ok(vec![name]),
        NodeIps::Unset => Family::V4,
        NodeIps::OfFamily(family) => family,
    };
    let chosen = hostname.parse().ok().or_else(|| of_family(&found.named, family));
    match chosen.or_else(|| of_family(&found.routed, family)) {
        Some(ip) => Ok(vec![internal(ip), name]),
        None => Err(format!(
            "can't get ip address of node {hostname}: neither its name nor a default route gives one; give one with --node-ip"
        )),
    }
}

fn of_family(ips: &[IpAddr], family: Family) -> Option<IpAddr> {
    let preferred = ips.iter().find(|ip| ip.is_ipv4() == (family == Family::V4));
    preferred.or_else(|| ips.first()).copied()
}
