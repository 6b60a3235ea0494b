//! The strategic merge patch from one Node object to another.
//!
//! Maps merge, lists are replaced, conditions merge by type. Addresses are merged by type too, which loses one of two of the
//! same type: they are told to be replaced (`preparePatchBytesforNodeStatus` of
//! `k8s.io/component-helpers/node/util/status.go`).

use serde_json::{Map, Value, json};

/// Whether they differ in more than the times of heartbeats (`nodeStatusHasChanged`).
#[must_use]
pub fn differs(old: &Value, new: &Value) -> bool {
    patch(&still(old), &still(new)).is_some()
}

/// What makes the new one of the old one; `None` where nothing does. `spec` is not the node's to change.
#[must_use]
pub fn patch(old: &Value, new: &Value) -> Option<Value> {
    let mut patch = Map::new();
    let metadata =
        ["labels", "annotations"].map(|name| (name, at(old, "metadata", name), at(new, "metadata", name)));
    let mut changed = Map::new();
    for (name, old, new) in metadata {
        insert(&mut changed, name, difference(old, new));
    }
    insert(&mut patch, "metadata", whole(changed));
    insert(&mut patch, "status", whole(status(old.get("status"), new.get("status"))));
    match whole(patch) {
        Difference::None => None,
        Difference::To(value) => Some(value),
    }
}

enum Difference {
    None,
    To(Value),
}

fn status(old: Option<&Value>, new: Option<&Value>) -> Map<String, Value> {
    let nothing = Map::new();
    let fields = |status: Option<&'_ Value>| status.and_then(Value::as_object).cloned();
    let (old, new) = (fields(old).unwrap_or_else(|| nothing.clone()), fields(new).unwrap_or(nothing));
    let mut changed = Map::new();
    for name in names(&old, &new) {
        let (old, new) = (old.get(&name), new.get(&name));
        let found = match name.as_str() {
            "conditions" => conditions(old, new),
            "addresses" => replaced(old, new),
            _ => difference(old, new),
        };
        insert(&mut changed, &name, found);
    }
    changed
}

/// Of those that are the new ones' too, the fields that differ. What only the old ones have stays.
fn conditions(old: Option<&Value>, new: Option<&Value>) -> Difference {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let kind = |condition: &Value| condition.get("type").cloned();
    let old = list(old);
    let mut changed = Vec::new();
    for condition in list(new) {
        let before = old.iter().find(|other| kind(other) == kind(&condition));
        if let Difference::To(Value::Object(mut fields)) = difference(before, Some(&condition)) {
            fields.insert("type".to_owned(), kind(&condition).unwrap_or_default());
            changed.push(Value::Object(fields));
        }
    }
    if changed.is_empty() { Difference::None } else { Difference::To(Value::Array(changed)) }
}

fn replaced(old: Option<&Value>, new: Option<&Value>) -> Difference {
    if old == new {
        return Difference::None;
    }
    let mut list = new.and_then(Value::as_array).cloned().unwrap_or_default();
    if old.is_some() {
        list.push(json!({ "$patch": "replace" }));
    }
    Difference::To(Value::Array(list))
}

fn difference(old: Option<&Value>, new: Option<&Value>) -> Difference {
    match (old, new) {
        (None, None) => Difference::None,
        (Some(_), None) => Difference::To(Value::Null),
        (None, Some(new)) => Difference::To(new.clone()),
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let mut changed = Map::new();
            for name in names(old, new) {
                insert(&mut changed, &name, difference(old.get(&name), new.get(&name)));
            }
            whole(changed)
        }
        (Some(old), Some(new)) if old == new => Difference::None,
        (Some(_), Some(new)) => Difference::To(new.clone()),
    }
}

fn names(old: &Map<String, Value>, new: &Map<String, Value>) -> Vec<String> {
    let added = new.keys().filter(|name| !old.contains_key(*name));
    old.keys().chain(added).cloned().collect()
}

fn whole(changed: Map<String, Value>) -> Difference {
    if changed.is_empty() { Difference::None } else { Difference::To(Value::Object(changed)) }
}

fn insert(map: &mut Map<String, Value>, name: &str, found: Difference) {
    if let Difference::To(value) = found {
        map.insert(name.to_owned(), value);
    }
}

fn at<'a>(object: &'a Value, part: &str, name: &str) -> Option<&'a Value> {
    object.get(part)?.get(name)
}

/// Without the times of heartbeats.
fn still(object: &Value) -> Value {
    let mut object = object.clone();
    let conditions = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.remove("lastHeartbeatTime");
    }
    object
}
