//! `oom_score_adj` of a container.
//!
//! Source: `pkg/kubelet/qos/policy.go` `GetContainerOOMScoreAdjust`.

use crate::{
    config::NodeConfig,
    derived::totals,
    spec::{Container, ContainerKind, Pod, QosClass},
};

/// The last to be killed.
const GUARANTEED: i32 = -997;
/// The first.
const BEST_EFFORT: i32 = 1000;
/// The class of pods without which the node is none. Its priority alone does not count (`IsNodeCriticalPod` of
/// `pkg/kubelet/types/pod_update.go`).
const NODE_CRITICAL: &str = "system-node-critical";

/// The score for the kernel's choice of whom to kill, never below what the agent may give.
#[must_use]
pub fn score_adj(pod: &Pod, container: &Container, node: &NodeConfig) -> i32 {
    wanted(pod, container, node).max(node.oom_score_floor)
}

fn wanted(pod: &Pod, container: &Container, node: &NodeConfig) -> i32 {
    if pod.is_critical() && pod.priority_class == NODE_CRITICAL {
        return GUARANTEED;
    }
    match pod.qos {
        QosClass::Guaranteed => GUARANTEED,
        QosClass::BestEffort => BEST_EFFORT,
        QosClass::Burstable => burstable(pod, container, node),
    }
}

/// A container that asks for a tenth of the memory gets 900: it is a target once it uses more than it asked for.
fn burstable(pod: &Pod, container: &Container, node: &NodeConfig) -> i32 {
    let capacity = i128::from(node.capacity.memory_bytes.unwrap_or(0).max(1));
    let share = i128::from(unassigned_share(pod));
    let score = |request: u64| 1000 - 1000 * (i128::from(request) + share) / capacity;
    let mut wanted = score(request(container));
    match container.kind {
        // A sidecar serves the main containers: it must not be killed before them.
        ContainerKind::Sidecar => {
            if let Some(least) = pod.containers.iter().map(|main| request(main)).min() {
                wanted = wanted.min(score(least));
            }
        }
        ContainerKind::Main | ContainerKind::Init | ContainerKind::Ephemeral => {}
    }
    let clamped = wanted.clamp(i128::from(1000 + GUARANTEED), i128::from(BEST_EFFORT - 1));
    i32::try_from(clamped).unwrap_or(BEST_EFFORT - 1)
}

fn request(container: &Container) -> u64 {
    container.resources.requests.memory_bytes.unwrap_or(0)
}

/// Memory that the pod asks for beyond its containers' requests, split evenly (KEP-2837).
fn unassigned_share(pod: &Pod) -> u64 {
    let Some(whole) = pod.resources.as_ref().and_then(|own| own.requests.memory_bytes) else { return 0 };
    let containers = totals::of_containers(&pod.init_containers, &pod.containers);
    let assigned = containers.requests.memory_bytes.unwrap_or(0);
    let count = u64::try_from(pod.fixed_containers().count()).unwrap_or(u64::MAX).max(1);
    whole.saturating_sub(assigned) / count
}
