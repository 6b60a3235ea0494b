//! What a container may know of its pod and of itself.
//!
//! Source: `pkg/kubelet/kubelet_pods.go` `podFieldSelectorRuntimeValue`, `pkg/fieldpath/fieldpath.go`,
//! `pkg/apis/core/pods/helpers.go` `ConvertDownwardAPIFieldLabel`, `pkg/api/v1/resource/helpers.go` `ExtractContainerResourceValue`.

use std::{collections::BTreeMap, fmt::Write as _, net::IpAddr};

use thiserror::Error;

use crate::{
    config::NodeConfig,
    derived::network,
    spec::{Container, ContainerKind, Pod, Quantities, ResourceField, ResourceSelector},
};

/// Why a value cannot be given.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DownwardError {
    /// No such field.
    #[error("unsupported fieldPath: {path}")]
    UnsupportedField {
        /// The path as written.
        path: String,
    },
    /// The resources of a container that the pod does not have.
    #[error("container {name} not found")]
    NoSuchContainer {
        /// The name as written.
        name: String,
    },
}

/// The value of `fieldRef.fieldPath`.
///
/// # Errors
///
/// When there is no such field.
pub fn field(path: &str, pod: &Pod, node: &NodeConfig, pod_ips: &[IpAddr]) -> Result<String, DownwardError> {
    if let Some((map, key)) = subscript(path) {
        let map = match map {
            "metadata.labels" => &pod.labels,
            "metadata.annotations" => &pod.annotations,
            _ => return Err(DownwardError::UnsupportedField { path: path.to_owned() }),
        };
        return Ok(map.get(key).cloned().unwrap_or_default());
    }
    let pod_ips = || network::known_ips(pod_ips, &node.ips);
    let first = |ips: &[IpAddr]| ips.first().map(ToString::to_string).unwrap_or_default();
    Ok(match path {
        "metadata.name" => pod.name.name.clone(),
        "metadata.namespace" => pod.name.namespace.clone(),
        "metadata.uid" => pod.uid.to_string(),
        "metadata.labels" => quoted(&pod.labels),
        "metadata.annotations" => quoted(&pod.annotations),
        "spec.nodeName" | "spec.host" => node.name.clone(),
        "spec.serviceAccountName" => pod.service_account.clone(),
        "status.hostIP" => first(&node.ips),
        "status.hostIPs" => joined(&node.ips),
        "status.podIP" => first(&pod_ips()),
        "status.podIPs" => joined(&pod_ips()),
        _ => return Err(DownwardError::UnsupportedField { path: path.to_owned() }),
    })
}

/// The value of `resourceFieldRef` in the environment of `own`: a number of divisors, rounded up. A limit that is not named is the
/// pod's, or else what the node has to give; a request that is not named is zero, its default having been applied at the edge. Pods
/// name no ephemeral storage for themselves. Source: `defaultPodLimitsForDownwardAPI` of `pkg/kubelet/kubelet_resources.go`.
///
/// # Errors
///
/// When the pod has no such container.
pub fn resource(
    selector: &ResourceSelector,
    pod: &Pod,
    own: &Container,
    node: &NodeConfig,
) -> Result<String, DownwardError> {
    let named = named(selector, pod)?;
    let of_pod = pod.resources.as_ref().map(|own| &own.limits);
    let stand_ins: Vec<&Quantities> = of_pod.into_iter().chain([&node.allocatable]).collect();
    let stand_ins: &[&Quantities] = match named.map(|one| one.kind) {
        // Nothing stands in for those that are asked for by name.
        Some(ContainerKind::Init | ContainerKind::Sidecar) => &[],
        Some(ContainerKind::Main | ContainerKind::Ephemeral) | None => &stand_ins,
    };
    Ok(value(selector, named.unwrap_or(own), stand_ins))
}

/// The value of `resourceFieldRef` in a file, of `any` container where none is named: the same, but that the limits of the pod
/// count for nothing. Source: `CollectData` of `pkg/volume/downwardapi/downwardapi.go`.
///
/// # Errors
///
/// When the pod has no such container.
pub fn resource_in_file(
    selector: &ResourceSelector,
    pod: &Pod,
    any: &Container,
    node: &NodeConfig,
) -> Result<String, DownwardError> {
    let named = named(selector, pod)?;
    Ok(value(selector, named.unwrap_or(any), &[&node.allocatable]))
}

/// The container that is asked for by its name, if one is. Ephemeral ones have no resources to ask for. Source: `findContainerInPod` of
/// `pkg/api/v1/resource/helpers.go`.
fn named<'a>(selector: &ResourceSelector, pod: &'a Pod) -> Result<Option<&'a Container>, DownwardError> {
    let Some(name) = &selector.container else { return Ok(None) };
    let found = pod.fixed_containers().find(|one| one.name == *name).map(|one| &**one);
    found.map(Some).ok_or_else(|| DownwardError::NoSuchContainer { name: name.to_string() })
}

/// What a container has of a resource; the first of `stand_ins` that says something counts for a limit that it does not name.
fn value(selector: &ResourceSelector, container: &Container, stand_ins: &[&Quantities]) -> String {
    let (limits, requests) = (&container.resources.limits, &container.resources.requests);
    let limit = |amount: fn(&Quantities) -> Option<u64>| {
        let mut named = std::iter::once(limits).chain(stand_ins.iter().copied()).filter_map(amount);
        named.find(|amount| *amount > 0).unwrap_or(0)
    };
    let request = |amount: fn(&Quantities) -> Option<u64>| amount(requests).unwrap_or(0);
    let amount = match selector.field {
        ResourceField::LimitsCpu => limit(|all| all.cpu_milli),
        ResourceField::LimitsMemory => limit(|all| all.memory_bytes),
        ResourceField::LimitsEphemeralStorage => limit(|all| all.ephemeral_storage_bytes),
        ResourceField::RequestsCpu => request(|all| all.cpu_milli),
        ResourceField::RequestsMemory => request(|all| all.memory_bytes),
        ResourceField::RequestsEphemeralStorage => request(|all| all.ephemeral_storage_bytes),
        // Of a container alone: neither its pod nor the node stands in (`MergeContainerResourceLimits`).
        ResourceField::LimitsHugePages(size) => limits.hugepages_bytes.get(&size).copied().unwrap_or(0),
        ResourceField::RequestsHugePages(size) => requests.hugepages_bytes.get(&size).copied().unwrap_or(0),
    };
    amount.div_ceil(selector.divisor.max(1)).to_string()
}

/// Splits `map['key']`; the key may contain anything, brackets and quotes included.
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['").filter(|(map, _)| !map.is_empty())
}

/// `key="value"` per line, sorted, with Go's quoting. Source: `fieldpath.FormatMap`.
fn quoted(map: &BTreeMap<String, String>) -> String {
    let lines: Vec<String> = map.iter().map(|(key, value)| format!("{key}={}", go_quote(value))).collect();
    lines.join("\n")
}

/// As Go's `strconv.Quote`.
#[must_use]
pub fn go_quote(value: &str) -> String {
    let mut text = String::with_capacity(value.len() + 2);
    text.push('"');
    for character in value.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\x07' => text.push_str("\\a"),
            '\x08' => text.push_str("\\b"),
            '\x0b' => text.push_str("\\v"),
            '\x0c' => text.push_str("\\f"),
            printed if is_printed(printed) => text.push(printed),
            other => {
                let code = u32::from(other);
                // Writing to a String cannot fail.
                let _written = match code {
                    0..=0x7f => write!(text, "\\x{code:02x}"),
                    0x80..=0xffff => write!(text, "\\u{code:04x}"),
                    _ => write!(text, "\\U{code:08x}"),
                };
            }
        }
    }
    text.push('"');
    text
}

/// Whether Go writes a character as it is: letters, marks, numbers, punctuation, symbols and the space. `str::escape_debug` leaves
/// the same alone, marks where a character stands before them; of what Unicode got last either may know less. Source: `IsPrint` of
/// Go's `strconv`.
fn is_printed(character: char) -> bool {
    if character.is_ascii() {
        return character == ' ' || character.is_ascii_graphic();
    }
    let after_another = String::from_iter(['a', character]);
    after_another.escape_debug().nth(1) == Some(character)
}

fn joined(ips: &[IpAddr]) -> String {
    ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
