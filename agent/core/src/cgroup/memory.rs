//! Memory that is protected, slowed down and swapped.
//!
//! Source: `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go` and `pkg/kubelet/cm/helpers_linux.go` of Kubernetes
//! 1.36 (KEP-2570, KEP-2400). The fractions are computed as there, in floating point, so that no file differs by a byte.

use crate::{
    config::{CgroupSettings, MemoryReservation, NodeConfig, SwapBehavior},
    spec::{Pod, QosClass, Quantities, Resources},
};

/// Memory in bytes that reclaim leaves alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Protection {
    /// Whatever happens (`memory.min`).
    pub(crate) min: u64,
    /// As long as there is other memory to take (`memory.low`).
    pub(crate) low: u64,
}

/// What is protected of `request` bytes; `None` where that is left as it is.
pub(crate) fn protection(qos: QosClass, request: u64, settings: &CgroupSettings) -> Option<Protection> {
    let policy = settings.memory_qos?.reservation;
    Some(match (policy, qos) {
        (MemoryReservation::Tiered, QosClass::Guaranteed) => Protection { min: request, low: 0 },
        (MemoryReservation::Tiered, QosClass::Burstable) => Protection { min: 0, low: request },
        (MemoryReservation::Tiered, QosClass::BestEffort) | (MemoryReservation::None, _) => {
            Protection { min: 0, low: 0 }
        }
    })
}

/// Bytes from which a container is slowed down (`memory.high`): part of the way from its request to its limit, or to what
/// all pods may use. `None` is without bound, as where the request is the limit.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "bytes of memory are below 2^53, and a negative result saturates to zero, which is no bound"
)]
pub(crate) fn high(resources: &Resources, node: &NodeConfig) -> Option<u64> {
    let qos = node.cgroups.memory_qos?;
    let (request, limit) = (memory(&resources.requests), memory(&resources.limits));
    if request == limit {
        return None;
    }
    let top = if limit > 0 { limit } else { memory(&node.unreserved) };
    let bytes = request as f64 + (top as f64 - request as f64) * qos.throttling_factor;
    let pages = (bytes.floor() / qos.page_bytes as f64) as u64;
    Some(pages * qos.page_bytes).filter(|high| top > 0 && *high > request)
}

/// Bytes that a container may swap; `None` is without bound.
pub(crate) fn swap_max(pod: &Pod, resources: &Resources, node: &NodeConfig) -> Option<u64> {
    match node.cgroups.swap {
        SwapBehavior::Uncounted => None,
        SwapBehavior::NoSwap => Some(0),
        SwapBehavior::LimitedSwap { node_bytes } => Some(limited_swap(pod, resources, node, node_bytes)),
    }
}

/// The container's share of the swap is its share of the memory. Pods that must not be slow get none, nor does who asked
/// for memory without room above it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "bytes of memory are below 2^53, and shares of them are not negative"
)]
fn limited_swap(pod: &Pod, resources: &Resources, node: &NodeConfig, node_swap: u64) -> u64 {
    let (request, limit) = (memory(&resources.requests), memory(&resources.limits));
    let capacity = memory(&node.capacity);
    let entitled = pod.qos == QosClass::Burstable && !pod.is_critical() && request != limit;
    if !entitled || capacity == 0 || request > capacity {
        return 0;
    }
    (request as f64 / capacity as f64 * node_swap as f64) as u64
}

fn memory(quantities: &Quantities) -> u64 {
    quantities.memory_bytes.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::MemoryQos, fixtures, spec::Source};
    use QosClass::{BestEffort, Burstable, Guaranteed};

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn node(reservation: MemoryReservation, throttling_factor: f64) -> NodeConfig {
        let mut node = fixtures::node();
        node.cgroups.memory_qos = Some(MemoryQos { throttling_factor, reservation, page_bytes: 4096 });
        node
    }

    #[test]
    fn a_request_is_protected_by_class() {
        use MemoryReservation::{None, Tiered};
        for (policy, qos, min, low) in [
            (Tiered, Guaranteed, MIB, 0),
            (Tiered, Burstable, 0, MIB),
            (Tiered, BestEffort, 0, 0),
            (None, Guaranteed, 0, 0),
            (None, Burstable, 0, 0),
        ] {
            let got = protection(qos, MIB, &node(policy, 0.9).cgroups);
            assert_eq!(got, Some(Protection { min, low }), "{policy:?} {qos:?}");
        }
        assert_eq!(protection(Guaranteed, MIB, &fixtures::node().cgroups), Option::None);
    }

    /// The expected bytes are those of the kubelet's own formula, computed by hand.
    #[test]
    fn throttling_begins_between_request_and_limit() {
        for (request, limit, factor, expected) in [
            // 100 MiB + 0.9 · 100 MiB.
            (100 * MIB, 200 * MIB, 0.9, Some(199_229_440)),
            // 64 MiB + 0.8 · 64 MiB = 120795955.2, in whole pages.
            (64 * MIB, 128 * MIB, 0.8, Some(120_795_136)),
            (0, 200 * MIB, 0.5, Some(100 * MIB)),
            // No limit: up to the 7.5 GiB that are not reserved.
            (GIB, 0, 0.9, Some(7_355_129_856)),
            (100 * MIB, 200 * MIB, 1.0, Some(200 * MIB)),
            // The limit is the request, or neither is named.
            (100 * MIB, 100 * MIB, 0.9, None),
            (0, 0, 0.9, None),
            // Nothing above the request is left.
            (8 * GIB, 0, 0.9, None),
            (100 * MIB, 100 * MIB + 4096, 0.9, None),
        ] {
            let resources = fixtures::resources((0, request), (0, limit));
            let got = high(&resources, &node(MemoryReservation::None, factor));
            assert_eq!(got, expected, "{request} {limit} {factor}");
        }
        assert_eq!(high(&fixtures::resources((0, MIB), (0, 2 * MIB)), &fixtures::node()), None);
    }

    #[test]
    fn a_large_page_is_not_split() {
        let mut node = node(MemoryReservation::None, 0.8);
        node.cgroups.memory_qos =
            node.cgroups.memory_qos.map(|qos| MemoryQos { page_bytes: 64 << 10, ..qos });
        let resources = fixtures::resources((0, 64 * MIB), (0, 128 * MIB));
        assert_eq!(high(&resources, &node), Some(1843 * (64 << 10)));
    }

    fn swap(behavior: SwapBehavior, qos: QosClass, source: Source, memory: (u64, u64)) -> Option<u64> {
        let mut node = fixtures::node();
        node.cgroups.swap = behavior;
        let pod = Pod { qos, source, ..fixtures::pod(Vec::new()) };
        swap_max(&pod, &fixtures::resources((0, memory.0), (0, memory.1)), &node)
    }

    #[test]
    fn swap_is_shared_by_request() {
        use Source::{Api, File};
        let limited = SwapBehavior::LimitedSwap { node_bytes: 4 * GIB };
        // The machine has 8 GiB of memory.
        for (behavior, qos, source, memory, expected) in [
            (SwapBehavior::Uncounted, Burstable, Api, (GIB, 2 * GIB), None),
            (SwapBehavior::NoSwap, Burstable, Api, (GIB, 2 * GIB), Some(0)),
            (limited, Burstable, Api, (GIB, 2 * GIB), Some(GIB / 2)),
            (limited, Burstable, Api, (GIB, 0), Some(GIB / 2)),
            (limited, Burstable, Api, (1000, 2000), Some(500)),
            (limited, Burstable, Api, (1001, 2000), Some(500)),
            (limited, Burstable, Api, (0, 0), Some(0)),
            (limited, Burstable, Api, (GIB, GIB), Some(0)),
            (limited, Burstable, Api, (9 * GIB, 0), Some(0)),
            (limited, Burstable, File, (GIB, 2 * GIB), Some(0)),
            (limited, Guaranteed, Api, (GIB, GIB), Some(0)),
            (limited, BestEffort, Api, (0, 0), Some(0)),
        ] {
            let got = swap(behavior, qos, source, memory);
            assert_eq!(got, expected, "{behavior:?} {qos:?} {source:?} {memory:?}");
        }
    }
}
