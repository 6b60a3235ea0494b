//! Capacity and allocatable. Source: `MachineInfo` of `pkg/kubelet/nodestatus/setters.go`.
//!
//! Quantities are written as the API server writes them, so that nothing seems to have changed.

use serde_json::{Map, Value, json};

use super::{Devices, Machine, map};
use crate::spec::Quantities;

const HUGE_PAGES: &str = "hugepages-";
/// Suffixes of powers of 1024 and of 1000.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];

/// Sets what is the node's own; what others have put into the capacity is allocatable as it is.
pub(super) fn set(object: &mut Value, machine: &Machine, pods_max: u32) {
    let own = named(&machine.capacity, pods_max);
    let left = named(&machine.allocatable, pods_max);
    let capacity = map(object, "status", "capacity");
    capacity.extend(own.clone());
    let all = capacity.clone();
    let allocatable = map(object, "status", "allocatable");
    allocatable.retain(|name, _| all.contains_key(name) || !is_extended(name));
    for (name, amount) in &all {
        let amount = if own.contains_key(name) { left.get(name).unwrap_or(amount) } else { amount };
        allocatable.insert(name.clone(), amount.clone());
    }
}

/// Removes sizes of huge pages that the machine no longer has (`reconcileHugePageResource`).
pub(super) fn forget_huge_pages(object: &mut Value, capacity: &Quantities) {
    let known: Vec<String> = capacity.hugepages_bytes.keys().map(|size| huge_pages(*size)).collect();
    for name in ["capacity", "allocatable"] {
        let amounts = object.pointer_mut("/status").and_then(|status| status.get_mut(name));
        if let Some(amounts) = amounts.and_then(Value::as_object_mut) {
            amounts.retain(|name, _| !name.starts_with(HUGE_PAGES) || known.contains(name));
        }
    }
}

/// Nothing is left of resources whose plugins are gone. Without a checkpoint nobody knows whose resources of vendors are, and there is
/// none of any, until whoever counts them says so again (`reconcileExtendedResource`, and `GetCapacity` of
/// `pkg/kubelet/cm/devicemanager/manager.go`).
pub(super) fn forget_devices(object: &mut Value, devices: &Devices) {
    let Some(capacity) = object.pointer("/status/capacity").and_then(Value::as_object) else { return };
    let is_gone = |name: &&String| !devices.has_checkpoint || devices.registered.contains(*name);
    let gone: Vec<String> =
        capacity.keys().filter(|name| is_extended(name)).filter(is_gone).cloned().collect();
    for name in gone {
        for amounts in ["capacity", "allocatable"] {
            map(object, "status", amounts).insert(name.clone(), json!("0"));
        }
    }
}

fn named(amounts: &Quantities, pods_max: u32) -> Map<String, Value> {
    let mut named = Map::new();
    let mut insert = |name: &str, amount: Option<String>| {
        if let Some(amount) = amount {
            named.insert(name.to_owned(), json!(amount));
        }
    };
    insert("cpu", amounts.cpu_milli.map(milli));
    insert("memory", amounts.memory_bytes.map(|bytes| scaled(bytes, 1024, &BINARY)));
    insert("ephemeral-storage", amounts.ephemeral_storage_bytes.map(|bytes| scaled(bytes, 1024, &BINARY)));
    insert("pods", Some(scaled(u64::from(pods_max), 1000, &DECIMAL)));
    for (size, bytes) in &amounts.hugepages_bytes {
        insert(&huge_pages(*size), Some(scaled(*bytes, 1024, &BINARY)));
    }
    for (name, count) in &amounts.extended {
        insert(name, Some(scaled(*count, 1000, &DECIMAL)));
    }
    named
}

fn huge_pages(size: u64) -> String {
    format!("{HUGE_PAGES}{}", scaled(size, 1024, &BINARY))
}

/// Thousandths, in whole units where they are.
fn milli(amount: u64) -> String {
    if amount.is_multiple_of(1000) { scaled(amount / 1000, 1000, &DECIMAL) } else { format!("{amount}m") }
}

/// A number with the largest suffix that leaves it whole.
fn scaled(mut amount: u64, base: u64, suffixes: &[&str]) -> String {
    let mut step = 0;
    while amount != 0 && amount.is_multiple_of(base) && step + 1 < suffixes.len() {
        amount /= base;
        step += 1;
    }
    format!("{amount}{}", suffixes[step])
}

/// Of a vendor: with a domain that is not Kubernetes' own (`IsExtendedResourceName`).
fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}
