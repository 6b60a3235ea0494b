//! Requests and limits.

use std::collections::BTreeMap;

use berth_core::spec::{Quantities, Resources};
use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::api::resource};

use super::{is_qualified_name, notes::Notes};
use crate::quantity::Quantity;

type Amounts = BTreeMap<String, resource::Quantity>;

/// Requests and limits; a limit without a request is its request (`pkg/apis/core/v1/defaults.go`).
pub(super) fn convert(
    notes: &mut Notes<'_>,
    field: &str,
    written: Option<&ResourceRequirements>,
) -> Resources {
    let Some(written) = written else { return Resources::default() };
    if written.claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        notes.fault(
            &format!("{field}.claims"),
            "resource claims are objects of the API server, which a static pod may not use",
        );
    }
    let limits = amounts(notes, &format!("{field}.limits"), written.limits.as_ref());
    let mut requests = amounts(notes, &format!("{field}.requests"), written.requests.as_ref());
    compare(notes, &format!("{field}.requests"), &requests, &limits);
    requests.cpu_milli = requests.cpu_milli.or(limits.cpu_milli);
    requests.memory_bytes = requests.memory_bytes.or(limits.memory_bytes);
    requests.ephemeral_storage_bytes = requests.ephemeral_storage_bytes.or(limits.ephemeral_storage_bytes);
    for (size, amount) in &limits.hugepages_bytes {
        requests.hugepages_bytes.entry(*size).or_insert(*amount);
    }
    for (name, amount) in &limits.extended {
        requests.extended.entry(name.clone()).or_insert(*amount);
    }
    Resources { requests, limits }
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

fn other(notes: &mut Notes<'_>, path: &str, name: &str, units: u64, amounts: &mut Quantities) {
    if let Some(size) = name.strip_prefix("hugepages-") {
        match size
            .parse::<Quantity>()
            .ok()
            .and_then(|size| u64::try_from(size.units()).ok())
            .filter(|size| *size > 0)
        {
            Some(size) if units.is_multiple_of(size) => drop(amounts.hugepages_bytes.insert(size, units)),
            Some(_) => notes.fault(path, "must be a multiple of the page size"),
            None => notes.fault(path, format!("`{size}` is not a page size, such as `2Mi`")),
        }
    } else if name.contains('/') && is_qualified_name(name) {
        amounts.extended.insert(name.to_owned(), units);
        notes.unsupported(path);
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

fn compare(notes: &mut Notes<'_>, field: &str, requests: &Quantities, limits: &Quantities) {
    for (name, request, limit) in [
        ("cpu", requests.cpu_milli, limits.cpu_milli),
        ("memory", requests.memory_bytes, limits.memory_bytes),
        ("ephemeral-storage", requests.ephemeral_storage_bytes, limits.ephemeral_storage_bytes),
    ] {
        if limit.is_some() && request > limit {
            notes.fault(&format!("{field}.{name}"), format!("more than the limit of {name}"));
        }
    }
    let equal = |request: Option<&u64>, limit: Option<&u64>| request.is_none() || request == limit;
    for (size, request) in &requests.hugepages_bytes {
        if !equal(Some(request), limits.hugepages_bytes.get(size)) {
            notes.fault(field, "huge pages cannot be overcommitted: request and limit must be equal");
        }
    }
    for (name, request) in &requests.extended {
        if !equal(Some(request), limits.extended.get(name)) {
            notes.fault(
                &format!("{field}.{name}"),
                "cannot be overcommitted: request and limit must be equal",
            );
        }
    }
}
