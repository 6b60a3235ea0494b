//! What pods that are here take of the node, added up, so that the next one is not compared with each of them.

use std::collections::BTreeMap;

use super::resources::amounts;
use crate::{
    derived::totals,
    spec::{ContainerKind, Pod, Port},
};

/// What is taken.
#[derive(Debug, Clone, Default)]
pub(in crate::node) struct Occupied {
    /// How many pods there are.
    pub(super) pods: u64,
    amounts: BTreeMap<String, u64>,
    ports: Vec<Port>,
}

impl Occupied {
    /// By these.
    pub(in crate::node) fn by<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        let mut occupied = Self::default();
        pods.into_iter().for_each(|pod| occupied.add(pod));
        occupied
    }

    /// By one more.
    pub(in crate::node) fn add(&mut self, pod: &Pod) {
        self.pods += 1;
        for (resource, amount) in amounts(&totals::requests(pod)) {
            let taken = self.amounts.entry(resource).or_default();
            *taken = taken.saturating_add(amount);
        }
        self.ports.extend(host_ports(pod).cloned());
    }

    /// How much of a resource.
    pub(super) fn amount(&self, resource: &str) -> u64 {
        self.amounts.get(resource).copied().unwrap_or(0)
    }

    /// Whether one of the pod's ports of the node.
    pub(super) fn has_port_of(&self, pod: &Pod) -> bool {
        host_ports(pod).any(|port| self.ports.iter().any(|taken| is_same(port, taken)))
    }
}

/// Ports of containers that stay.
fn host_ports(pod: &Pod) -> impl Iterator<Item = &Port> {
    let stays = pod.all_containers().filter(|container| container.kind != ContainerKind::Init);
    stays.flat_map(|container| &container.ports).filter(|port| port.host_port.is_some())
}

fn is_same(one: &Port, other: &Port) -> bool {
    let any = |ip: &Option<String>| ip.as_deref().is_none_or(|ip| ip == "0.0.0.0");
    one.protocol == other.protocol
        && one.host_port == other.host_port
        && (any(&one.host_ip) || any(&other.host_ip) || one.host_ip == other.host_ip)
}
