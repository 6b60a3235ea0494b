//! The OCI specification of a container without what is of its runtime alone.

use serde_json::{Value, json};

use crate::differential::plain::Known;

/// Mounts whose source is a file of the runtime's own for the sandbox.
const OF_SANDBOX: [&str; 3] = ["/etc/hostname", "/etc/resolv.conf", "/dev/shm"];

/// What comes first in the environment whatever the pod says.
const FIRST: [&str; 3] = ["PATH", "TERM", "HOSTNAME"];

/// Of variables from objects and services the order is a matter of chance under the kubelet; `declared` are those with an order.
/// Annotations are for shims and runtimes, and namespaces have paths of the sandbox's.
pub(super) fn plain(spec: &Value, declared: &[&str], known: &Known) -> Value {
    let mut spec = spec.clone();
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("annotations");
        fields.remove("ociVersion");
        // What runs beside a container is no part of what it sees.
        fields.remove("hooks");
    }
    if let Some(root) = spec.get_mut("root").and_then(Value::as_object_mut) {
        root.remove("path");
    }
    for mount in spec["mounts"].as_array_mut().into_iter().flatten() {
        if OF_SANDBOX.iter().any(|at| mount["destination"] == *at) {
            mount["source"] = json!("SANDBOX");
        }
    }
    for namespace in spec.pointer_mut("/linux/namespaces").and_then(Value::as_array_mut).into_iter().flatten()
    {
        if namespace["path"].is_string() {
            namespace["path"] = json!("SANDBOX");
        }
    }
    sort(&mut spec, "/linux/namespaces");
    for set in ["bounding", "effective", "permitted", "inheritable", "ambient"] {
        sort(&mut spec, &format!("/process/capabilities/{set}"));
    }
    let in_order: Vec<Value> = spec["process"]["env"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|one| {
            let name = one.as_str().and_then(|one| one.split('=').next()).unwrap_or_default();
            FIRST.contains(&name) || declared.contains(&name)
        })
        .cloned()
        .collect();
    spec["process"]["envInOrder"] = json!(in_order);
    sort(&mut spec, "/process/env");
    if let Some(seccomp) = spec.pointer_mut("/linux/seccomp") {
        *seccomp = json!(summary(seccomp));
    }
    // The API writes what is empty, and one of both leaves it out.
    without_empty(&mut spec);
    known.plain(&spec)
}

fn sort(spec: &mut Value, list: &str) {
    if let Some(all) = spec.pointer_mut(list).and_then(Value::as_array_mut) {
        all.sort_by_key(Value::to_string);
    }
}

/// A profile in short: its default, how many rules it has, and which calls each action is for.
fn summary(seccomp: &Value) -> Vec<String> {
    let mut lines = vec![format!("default {}", seccomp["defaultAction"])];
    for rule in seccomp["syscalls"].as_array().into_iter().flatten() {
        // A second value of none is left out by one of both.
        let args = rule["args"].as_array().map(|args| json!(args).to_string().replace(",\"valueTwo\":0", ""));
        let args = args.unwrap_or_default();
        let names = rule["names"].as_array().into_iter().flatten().filter_map(Value::as_str);
        lines.extend(names.map(|name| format!("{name} {}{args}", rule["action"])));
    }
    lines.sort_unstable();
    lines
}

fn without_empty(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(without_empty);
            map.retain(|_, value| !is_empty(value));
        }
        Value::Array(all) => all.iter_mut().for_each(without_empty),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Bool(is) => !is,
        Value::Number(_) | Value::String(_) => false,
    }
}
