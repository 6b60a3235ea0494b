//! Conditions of the node, as they are written. Source: `ReadyCondition` and its neighbours in `pkg/kubelet/nodestatus/setters.go`.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Facts, NodeSettings, Written, events, ready, status};
use crate::time::Now;

/// What can run short on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Memory.
    Memory,
    /// Disk.
    Disk,
    /// Process ids.
    Pids,
}

/// What a condition says: type, reason, message, reason of the event when it becomes this.
type Words = (&'static str, &'static str, &'static str);

const MEMORY: (&str, Words, Words) = (
    "MemoryPressure",
    (
        "KubeletHasInsufficientMemory",
        "kubelet has insufficient memory available",
        "NodeHasInsufficientMemory",
    ),
    ("KubeletHasSufficientMemory", "kubelet has sufficient memory available", "NodeHasSufficientMemory"),
);
const DISK: (&str, Words, Words) = (
    "DiskPressure",
    ("KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"),
    ("KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"),
);
const PIDS: (&str, Words, Words) = (
    "PIDPressure",
    ("KubeletHasInsufficientPID", "kubelet has insufficient PID available", "NodeHasInsufficientPID"),
    ("KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID"),
);

/// Sets the node's four conditions; `Ready` is last of them where they are new. `existing` is the object as the API server has it.
pub(super) fn set(written: &mut Written, settings: &NodeSettings, facts: &Facts, existing: &Value, now: Now) {
    let time = seconds(now.wall);
    for (pressure, (kind, yes, no)) in
        [(Pressure::Memory, MEMORY), (Pressure::Disk, DISK), (Pressure::Pids, PIDS)]
    {
        let is_so = facts.pressure.contains(&pressure);
        let (reason, message, event) = if is_so { yes } else { no };
        let condition = find(status(&mut written.object), kind);
        let state = if is_so { "True" } else { "False" };
        if condition.get("status").and_then(Value::as_str) != Some(state) {
            write(condition, [("status", state), ("reason", reason), ("message", message)]);
            write(condition, [("lastTransitionTime", time.as_str())]);
            written.notes.push(events::status_is(&settings.name, event));
        }
        write(condition, [("lastHeartbeatTime", time.as_str())]);
    }
    let errors = ready::errors(facts, existing, written.object.pointer("/status/capacity"), now.mono);
    let (state, reason, message) = match &errors {
        None => ("True", "KubeletReady", "kubelet is posting ready status"),
        Some(errors) => ("False", "KubeletNotReady", errors.as_str()),
    };
    let condition = find(status(&mut written.object), "Ready");
    let before = condition.get("status").and_then(Value::as_str).map(str::to_owned);
    write(condition, [("status", state), ("reason", reason), ("message", message)]);
    write(condition, [("lastHeartbeatTime", time.as_str())]);
    if before.as_deref() != Some(state) {
        write(condition, [("lastTransitionTime", time.as_str())]);
    }
    if before.is_some_and(|before| before != state) {
        let reason = if errors.is_none() { "NodeReady" } else { "NodeNotReady" };
        written.notes.push(events::status_is(&settings.name, reason));
    }
}

/// The condition of a type, made when it is missing.
fn find<'a>(status: &'a mut Map<String, Value>, kind: &str) -> &'a mut Map<String, Value> {
    let list = status.entry("conditions").or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    let Value::Array(list) = list else { unreachable!("it was made one just now") };
    let index = list.iter().position(|one| one.get("type").and_then(Value::as_str) == Some(kind));
    let index = index.unwrap_or_else(|| {
        list.push(json!({ "type": kind }));
        list.len() - 1
    });
    super::root(&mut list[index])
}

fn write<const N: usize>(condition: &mut Map<String, Value>, fields: [(&str, &str); N]) {
    for (name, value) in fields {
        condition.insert(name.to_owned(), json!(value));
    }
}

/// A time as `metav1.Time` writes it.
fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
