//! Two objects of one node, compared.

use std::collections::BTreeSet;

use serde_json::Value;

/// The object without what differs from one to the next of the same node.
pub(super) fn lasting(node: &Value) -> Value {
    let mut node = node.clone();
    for name in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"] {
        if let Some(metadata) = node["metadata"].as_object_mut() {
            metadata.remove(name);
        }
    }
    // Neither is ready without its CSINode, and the kubelet may make its own late: it waits longer each time that it finds no Node object.
    if let Some(conditions) = node["status"]["conditions"].as_array_mut() {
        conditions.retain(|one| one["type"] != "Ready");
    }
    for condition in node["status"]["conditions"].as_array_mut().into_iter().flatten() {
        for name in ["lastHeartbeatTime", "lastTransitionTime"] {
            condition.as_object_mut().map(|fields| fields.remove(name));
        }
    }
    node
}

/// Where two values differ, and in what.
pub(super) fn differences(at: &str, ours: &Value, theirs: &Value, into: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(one), Value::Object(other)) => {
            let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for name in names {
                differences(&format!("{at}.{name}"), &ours[name.as_str()], &theirs[name.as_str()], into);
            }
        }
        (one, other) if one == other => {}
        (one, other) => into.push(format!("{at}: {one} where the kubelet has {other}")),
    }
}
