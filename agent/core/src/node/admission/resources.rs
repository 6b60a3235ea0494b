//! What of the node's resources a pod asks for, and what others leave of them.

use super::{Insufficient, Occupied, Room};
use crate::{
    derived::totals,
    spec::{Pod, Quantities, is_extended},
};

/// Of what there is too little. Source: `fitsRequest` of `pkg/scheduler/framework/plugins/noderesources/fit.go`.
pub(super) fn missing(pod: &Pod, here: &Occupied, room: Room<'_>) -> Vec<Insufficient> {
    let mut missing = Vec::new();
    let capacity = u64::from(room.pods_max);
    if here.pods >= capacity {
        let resource = "pods".to_owned();
        missing.push(Insufficient { resource, requested: 1, used: here.pods, capacity });
    }
    for (resource, requested) in amounts(&totals::requests(pod)) {
        // What the node does not have at all is the cluster's, not the node's (`removeMissingExtendedResources` of
        // `pkg/kubelet/lifecycle/predicate.go`).
        let is_elsewhere = is_extended(&resource) && !room.allocatable.extended.contains_key(&resource);
        if requested == 0 || is_elsewhere {
            continue;
        }
        let (used, capacity) = (here.amount(&resource), amount(room.allocatable, &resource));
        if requested > capacity.saturating_sub(used) {
            missing.push(Insufficient { resource, requested, used, capacity });
        }
    }
    missing
}

/// How much of a resource a pod asks for.
pub(super) fn requested(pod: &Pod, resource: &str) -> u64 {
    if resource == "pods" { 1 } else { amount(&totals::requests(pod), resource) }
}

fn amount(quantities: &Quantities, resource: &str) -> u64 {
    amounts(quantities).into_iter().find(|(name, _)| name == resource).map_or(0, |(_, amount)| amount)
}

/// Amounts by the API's names, in the order in which they are told. CPU counts in thousandths of a core.
pub(super) fn amounts(quantities: &Quantities) -> Vec<(String, u64)> {
    let named = [
        ("cpu", quantities.cpu_milli),
        ("memory", quantities.memory_bytes),
        ("ephemeral-storage", quantities.ephemeral_storage_bytes),
    ];
    let named = named.into_iter().filter_map(|(name, amount)| Some((name.to_owned(), amount?)));
    let huge = quantities.hugepages_bytes.iter().map(|(size, amount)| (hugepages(*size), *amount));
    let extended = quantities.extended.iter().map(|(name, amount)| (name.clone(), *amount));
    named.chain(huge).chain(extended).collect()
}

/// `hugepages-2Mi`.
fn hugepages(size: u64) -> String {
    let units = [(1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    let unit = units.into_iter().find(|(bytes, _)| size.is_multiple_of(*bytes));
    unit.map_or_else(
        || format!("hugepages-{size}"),
        |(bytes, unit)| format!("hugepages-{}{unit}", size / bytes),
    )
}
