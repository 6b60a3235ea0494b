//! Requests and limits.

use std::{collections::BTreeMap, sync::Arc};

use berth_core::{
    derived::totals,
    spec::{Container, Quantities, Resources, Source, is_extended},
};
use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::api::resource};

use super::{is_qualified_name, notes::Notes};
use crate::quantity::Quantity;

type Amounts = BTreeMap<String, resource::Quantity>;

/// Of a container; a limit without a request is its request (`pkg/apis/core/v1/defaults.go`).
pub(super) fn of_container(
    notes: &mut Notes<'_>,
    field: &str,
    written: Option<&ResourceRequirements>,
    of: Source,
) -> Resources {
    let Some(written) = written else { return Resources::default() };
    let mut own = read(notes, field, written);
    tell_vendors(notes, &format!("{field}.requests"), &own.requests, of);
    tell_vendors(notes, &format!("{field}.limits"), &own.limits, of);
    default_requests(&mut own, &Quantities::default());
    check(notes, field, &own);
    own
}

/// Of a pod for itself, which bind all its containers together (KEP-2837): CPU, memory and huge pages. A limit without a
/// request is what the containers request, or else its request; huge pages are those of the containers.
///
/// Source: `pkg/apis/core/v1/defaults.go` `defaultPodRequests`, `defaultHugePagePodLimits`; `pkg/apis/core/validation`
/// `validatePodResourceConsistency`.
pub(super) fn of_pod(
    notes: &mut Notes<'_>,
    written: Option<&ResourceRequirements>,
    init: &[Arc<Container>],
    main: &[Arc<Container>],
) -> Option<Resources> {
    const FIELD: &str = "spec.resources";
    let mut own = read(notes, FIELD, written?);
    if own == Resources::default() {
        return None;
    }
    check_names(notes, FIELD, &own);
    let containers = totals::of_containers(init, main);
    for (size, limit) in &containers.limits.hugepages_bytes {
        if !own.requests.hugepages_bytes.contains_key(size) {
            own.limits.hugepages_bytes.entry(*size).or_insert(*limit);
        }
    }
    if own.limits != Quantities::default() {
        default_requests(&mut own, &containers.requests);
    }
    check(notes, FIELD, &own);
    check_containers(notes, FIELD, &own, &containers, main);
    Some(own)
}

/// What a pod takes beside its containers, which its RuntimeClass says.
pub(super) fn of_overhead(notes: &mut Notes<'_>, written: Option<&Amounts>, of: Source) -> Quantities {
    const FIELD: &str = "spec.overhead";
    let amounts = amounts(notes, FIELD, written);
    tell_vendors(notes, FIELD, &amounts, of);
    amounts
}

/// Resources of vendors are what a pod of the API server is scheduled and admitted by. For a pod of a manifest nobody has looked for them.
fn tell_vendors(notes: &mut Notes<'_>, field: &str, amounts: &Quantities, of: Source) {
    for name in amounts.extended.keys() {
        notes.unsupported_if(of != Source::Api, format!("{field}.{name}"));
    }
}

/// As they are written.
fn read(notes: &mut Notes<'_>, field: &str, written: &ResourceRequirements) -> Resources {
    if written.claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        notes.fault(
            &format!("{field}.claims"),
            "resource claims are objects of the API server, which a static pod may not use",
        );
    }
    Resources {
        limits: amounts(notes, &format!("{field}.limits"), written.limits.as_ref()),
        requests: amounts(notes, &format!("{field}.requests"), written.requests.as_ref()),
    }
}

/// Requests that are not named: those of `others` for what can be overcommitted, else the limits.
fn default_requests(own: &mut Resources, others: &Quantities) {
    let Resources { requests, limits } = own;
    requests.cpu_milli = requests.cpu_milli.or(others.cpu_milli).or(limits.cpu_milli);
    requests.memory_bytes = requests.memory_bytes.or(others.memory_bytes).or(limits.memory_bytes);
    requests.ephemeral_storage_bytes = requests.ephemeral_storage_bytes.or(limits.ephemeral_storage_bytes);
    for (size, amount) in &limits.hugepages_bytes {
        requests.hugepages_bytes.entry(*size).or_insert(*amount);
    }
    for (name, amount) in &limits.extended {
        requests.extended.entry(name.clone()).or_insert(*amount);
    }
}

fn amounts(notes: &mut Notes<'_>, field: &str, written: Option<&Amounts>) -> Quantities {
    let mut amounts = Quantities::default();
    for (name, written) in written.into_iter().flatten() {
        let path = format!("{field}.{name}");
        let Some(amount) = amount(notes, &path, &written.0) else { continue };
        let units = amount.units().unsigned_abs();
        match name.as_str() {
            "cpu" => amounts.cpu_milli = Some(amount.milli().unsigned_abs()),
            "memory" => amounts.memory_bytes = Some(units),
            "ephemeral-storage" => amounts.ephemeral_storage_bytes = Some(units),
            name => other(notes, &path, name, units, &mut amounts),
        }
    }
    amounts
}

/// Bytes of a page, of what is behind `hugepages-`.
pub(super) fn page_size(text: &str) -> Option<u64> {
    let size = text.parse::<Quantity>().ok()?;
    u64::try_from(size.units()).ok().filter(|size| *size > 0)
}

fn other(notes: &mut Notes<'_>, path: &str, name: &str, units: u64, amounts: &mut Quantities) {
    if let Some(size) = name.strip_prefix("hugepages-") {
        match page_size(size) {
            Some(size) if units.is_multiple_of(size) => drop(amounts.hugepages_bytes.insert(size, units)),
            Some(_) => notes.fault(path, "must be a multiple of the page size"),
            None => notes.fault(path, format!("`{size}` is not a page size, such as `2Mi`")),
        }
    } else if name.contains('/') && is_qualified_name(name) {
        amounts.extended.insert(name.to_owned(), units);
    } else {
        let message = "not a resource of a container: `cpu`, `memory`, `ephemeral-storage`, `hugepages-<size>` or `<domain>/<name>`";
        notes.fault(path, message);
    }
}

/// One amount; `None` when it is none, or negative.
pub(super) fn amount(notes: &mut Notes<'_>, field: &str, written: &str) -> Option<Quantity> {
    match written.parse::<Quantity>() {
        Ok(amount) if amount.is_negative() => notes.fault(field, format!("`{written}` is negative")),
        Ok(amount) => return Some(amount),
        Err(error) => notes.fault(field, error.to_string()),
    }
    None
}

fn check(notes: &mut Notes<'_>, field: &str, own: &Resources) {
    let Resources { requests, limits } = own;
    let field = format!("{field}.requests");
    for (name, request, limit) in [
        ("cpu", requests.cpu_milli, limits.cpu_milli),
        ("memory", requests.memory_bytes, limits.memory_bytes),
        ("ephemeral-storage", requests.ephemeral_storage_bytes, limits.ephemeral_storage_bytes),
    ] {
        if limit.is_some() && request > limit {
            notes.fault(&format!("{field}.{name}"), format!("more than the limit of {name}"));
        }
    }
    for (size, request) in &requests.hugepages_bytes {
        if limits.hugepages_bytes.get(size) != Some(request) {
            notes.fault(&field, "huge pages cannot be overcommitted: request and limit must be equal");
        }
    }
    for (name, request) in &requests.extended {
        let limit = limits.extended.get(name);
        if !is_extended(name) {
            if limit.is_some_and(|limit| request > limit) {
                notes.fault(&format!("{field}.{name}"), format!("more than the limit of {name}"));
            }
        } else if limit != Some(request) {
            notes.fault(
                &format!("{field}.{name}"),
                "cannot be overcommitted: request and limit must be equal",
            );
        }
    }
}

/// A pod names only what all its containers can share.
fn check_names(notes: &mut Notes<'_>, field: &str, own: &Resources) {
    for (level, amounts) in [("requests", &own.requests), ("limits", &own.limits)] {
        let storage = amounts.ephemeral_storage_bytes.map(|_| "ephemeral-storage");
        for name in amounts.extended.keys().map(String::as_str).chain(storage) {
            let message = "not a resource of a pod: `cpu`, `memory` or `hugepages-<size>`";
            notes.fault(&format!("{field}.{level}.{name}"), message);
        }
    }
}

/// What a pod names for itself is enough for its containers.
fn check_containers(
    notes: &mut Notes<'_>,
    field: &str,
    own: &Resources,
    containers: &Resources,
    main: &[Arc<Container>],
) {
    for (name, amount) in COMPUTE {
        let request = amount(&own.requests);
        if request.is_some() && amount(&containers.requests) > request {
            notes.fault(&format!("{field}.requests.{name}"), "less than its containers request together");
        }
        let limit = amount(&own.limits);
        for (index, one) in main.iter().enumerate() {
            if limit.is_some() && amount(&one.resources.limits) > limit {
                let field = format!("spec.containers[{index}].resources.limits.{name}");
                notes.fault(&field, format!("more than the pod's limit of {name}"));
            }
        }
    }
    for (size, limit) in &own.limits.hugepages_bytes {
        if containers.limits.hugepages_bytes.get(size) > Some(limit) {
            notes.fault(&format!("{field}.limits"), "fewer huge pages than its containers may use together");
        }
    }
}

/// A named amount.
type Named = (&'static str, fn(&Quantities) -> Option<u64>);

const COMPUTE: [Named; 2] = [("cpu", |all| all.cpu_milli), ("memory", |all| all.memory_bytes)];
