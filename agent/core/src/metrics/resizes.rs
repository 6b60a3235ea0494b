//! What is measured of resizes.
//!
//! Source: `recordContainerResizeOperations` of `pkg/kubelet/kubelet.go`, `pkg/kubelet/allocation/allocation_manager.go`, `doPodResizeAction` of
//! `pkg/kubelet/kuberuntime/kuberuntime_manager.go`.

use std::time::Duration;

use crate::{
    pod::is_resizable,
    spec::{Container, Pod, Quantities},
};

/// Something of a resize that is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResizeMeasure {
    /// A container asks for another amount of something.
    Requested(Requested),
    /// A pod asks for what it can never have.
    Infeasible(Infeasible),
    /// What had waited is allocated.
    Accepted(Trigger),
    /// A try to put into force what is allocated has ended.
    Tried {
        /// Whether all of it is in force.
        is_done: bool,
        /// How long it took.
        took: Duration,
    },
}

/// Another amount that a container asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requested {
    /// `cpu` or `memory`.
    pub resource: &'static str,
    /// `requests` or `limits`.
    pub requirement: &'static str,
    /// `add`, `remove`, `increase` or `decrease`.
    pub operation: &'static str,
}

/// Why a resize can never be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Infeasible {
    /// Of memory of a container that may swap.
    Swap,
}

impl Infeasible {
    /// As the label has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Swap => "swap_limitation",
        }
    }
}

/// After what those that wait are judged again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// A pod asks for other resources.
    PodUpdated,
    /// A pod takes less.
    PodResized,
    /// A pod has ended.
    PodTerminated,
    /// A pod is gone.
    PodsRemoved,
    /// The node has changed, which a kubelet finds when it looks by itself.
    Node,
}

impl Trigger {
    /// As the label has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PodUpdated => "pod_updated",
            Self::PodResized => "pod_resized",
            Self::PodTerminated => "pod_terminated",
            Self::PodsRemoved => "pods_removed",
            Self::Node => "periodic_retry",
        }
    }
}

/// What containers of a pod ask for that they did not ask for in its version before.
pub(crate) fn requested<'a>(before: &'a Pod, now: &'a Pod) -> impl Iterator<Item = ResizeMeasure> + 'a {
    let resizable = |pod: &'a Pod| pod.fixed_containers().filter(|one| is_resizable(one));
    let before_of = move |now: &Container| resizable(before).find(|one| one.name == now.name);
    let both = resizable(now).filter_map(move |now| Some((before_of(now)?, now)));
    both.flat_map(|(before, now)| {
        let (before, now) = (&before.resources, &now.resources);
        let levels = [("requests", &before.requests, &now.requests), ("limits", &before.limits, &now.limits)];
        levels.into_iter().flat_map(|(requirement, before, now)| of_level(requirement, before, now))
    })
}

fn of_level(
    requirement: &'static str,
    before: &Quantities,
    now: &Quantities,
) -> impl Iterator<Item = ResizeMeasure> {
    let amounts =
        [("memory", before.memory_bytes, now.memory_bytes), ("cpu", before.cpu_milli, now.cpu_milli)];
    amounts.into_iter().filter_map(move |(resource, before, now)| {
        let operation = operation(before.unwrap_or(0), now.unwrap_or(0))?;
        Some(ResizeMeasure::Requested(Requested { resource, requirement, operation }))
    })
}

fn operation(before: u64, now: u64) -> Option<&'static str> {
    match (before, now) {
        _ if before == now => None,
        (_, 0) => Some("remove"),
        (0, _) => Some("add"),
        _ if now < before => Some("decrease"),
        _ => Some("increase"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures, spec::ContainerKind};

    /// Requests and limits, each of CPU and memory.
    type Amounts = ((u64, u64), (u64, u64));

    fn pod(kind: ContainerKind, (requests, limits): Amounts) -> Pod {
        let resources = fixtures::resources(requests, limits);
        fixtures::pod(vec![Container { kind, resources, ..fixtures::container("web") }])
    }

    #[test]
    fn each_amount_that_changes_counts_for_itself() {
        use ContainerKind::{Ephemeral, Init, Main};
        let nothing = ((0, 0), (0, 0));
        for (kind, before, now, expected) in [
            (Main, nothing, nothing, vec![]),
            (Main, ((1, 1), (1, 1)), ((1, 1), (1, 1)), vec![]),
            (Main, nothing, ((1, 0), (0, 0)), vec![("cpu", "requests", "add")]),
            (Main, ((0, 0), (0, 1)), nothing, vec![("memory", "limits", "remove")]),
            (
                Main,
                ((2, 1), (1, 2)),
                ((1, 2), (2, 1)),
                vec![
                    ("memory", "requests", "increase"),
                    ("cpu", "requests", "decrease"),
                    ("memory", "limits", "decrease"),
                    ("cpu", "limits", "increase"),
                ],
            ),
            (Init, nothing, ((1, 0), (0, 0)), vec![("cpu", "requests", "add")]),
            (Ephemeral, nothing, ((1, 0), (0, 0)), vec![]),
        ] {
            let (before, now) = (pod(kind, before), pod(kind, now));
            let all: Vec<_> = requested(&before, &now).collect();
            let expected: Vec<_> = expected
                .into_iter()
                .map(|(resource, requirement, operation)| {
                    ResizeMeasure::Requested(Requested { resource, requirement, operation })
                })
                .collect();
            assert_eq!(all, expected);
        }
    }
}
