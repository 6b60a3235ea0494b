//! What CNI plugins are told about a pod.
//!
//! Source: `pkg/kubelet/kuberuntime/kuberuntime_sandbox.go` `generatePodSandboxConfig`, containerd
//! `internal/cri/server/sandbox_run.go` `cniNamespaceOpts`, `internal/cri/bandwidth`.

pub mod upkeep;

use std::{collections::BTreeSet, net::IpAddr};

use thiserror::Error;

use crate::spec::{NetworkMode, Pod, Protocol};

/// Bytes that may come at once: without bound, as the rate is what is wanted.
pub const BURST: u64 = u32::MAX as u64;
/// Least and most bits per second that make sense: 1 kbit, 1 Pbit.
const RATE_MIN: u64 = 1_000;
const RATE_MAX: u64 = 1_000_000_000_000_000;

/// The addresses that a pod is known by: the first of each family, that of the node's first address before the other.
/// Source: `sortPodIPs` of `pkg/kubelet/kubelet_pods.go`.
#[must_use]
pub fn known_ips(all: &[IpAddr], node: &[IpAddr]) -> Vec<IpAddr> {
    let is_v6_first = node.first().is_some_and(IpAddr::is_ipv6);
    let first = |is_v6| all.iter().find(|ip| ip.is_ipv6() == is_v6).copied();
    [first(is_v6_first), first(!is_v6_first)].into_iter().flatten().collect()
}

/// One port of the node that leads to the pod: an entry of the `portMappings` capability.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortMapping {
    /// Port on the node.
    pub host_port: u16,
    /// Port in the pod.
    pub container_port: u16,
    /// Protocol.
    pub protocol: Protocol,
    /// Address on the node; empty for all.
    pub host_ip: String,
}

/// Ports of the node that the pod asks for: of its main containers, not of its sidecars. None in the node's own network.
#[must_use]
pub fn port_mappings(pod: &Pod) -> Vec<PortMapping> {
    match pod.network {
        NetworkMode::Node => return Vec::new(),
        NetworkMode::Pod => {}
    }
    let mut seen = BTreeSet::new();
    pod.containers
        .iter()
        .flat_map(|container| &container.ports)
        .filter_map(|port| {
            let mapping = PortMapping {
                host_port: port.host_port.filter(|port| *port > 0)?,
                container_port: port.container_port,
                protocol: port.protocol,
                host_ip: port.host_ip.clone().unwrap_or_default(),
            };
            seen.insert(mapping.clone()).then_some(mapping)
        })
        .collect()
}

/// Bits per second into and out of a pod: the `bandwidth` capability, with [`BURST`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// Into the pod.
    pub ingress_rate: Option<u64>,
    /// Out of the pod.
    pub egress_rate: Option<u64>,
}

/// An annotation that bounds nothing sensible.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BandwidthError {
    /// No quantity.
    #[error("annotation {annotation} is not a quantity: {value:?}")]
    NotAQuantity {
        /// Which annotation.
        annotation: &'static str,
        /// What it says.
        value: String,
    },
    /// Less than 1 kbit.
    #[error("annotation {annotation}: resource is unreasonably small (< 1kbit)")]
    Small {
        /// Which annotation.
        annotation: &'static str,
    },
    /// More than 1 Pbit.
    #[error("annotation {annotation}: resource is unreasonably large (> 1Pbit)")]
    Large {
        /// Which annotation.
        annotation: &'static str,
    },
}

/// The pod's bandwidth; `quantity` reads a Kubernetes quantity as a whole number, rounded up.
///
/// # Errors
///
/// When an annotation cannot be taken.
pub fn bandwidth(
    pod: &Pod,
    quantity: impl Fn(&str) -> Option<u64>,
) -> Result<Option<Bandwidth>, BandwidthError> {
    let rate = |annotation: &'static str| {
        let Some(value) = pod.annotations.get(annotation) else { return Ok(None) };
        match quantity(value) {
            None => Err(BandwidthError::NotAQuantity { annotation, value: value.clone() }),
            Some(..RATE_MIN) => Err(BandwidthError::Small { annotation }),
            Some(rate) if rate > RATE_MAX => Err(BandwidthError::Large { annotation }),
            Some(rate) => Ok(Some(rate)),
        }
    };
    let bandwidth = Bandwidth {
        ingress_rate: rate("kubernetes.io/ingress-bandwidth")?,
        egress_rate: rate("kubernetes.io/egress-bandwidth")?,
    };
    Ok(Some(bandwidth).filter(|bandwidth| *bandwidth != Bandwidth::default()))
}

#[cfg(test)]
mod tests;
