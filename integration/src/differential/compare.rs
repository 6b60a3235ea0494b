//! Where two values differ.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Value, json};

/// By which of its fields an element of a list is known, where all elements have it and no two the same.
const KEYS: [&str; 4] = ["type", "name", "destination", "resource"];

/// What has more fields is no list of differences where the other has nothing.
const FEW: usize = 3;

/// A place at which two values differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Difference {
    /// Names of fields and keys of elements, with slashes between them.
    pub path: String,
    /// What Berth has there, `-` for nothing.
    pub ours: String,
    /// What the kubelet has there.
    pub theirs: String,
}

/// Every difference of two values.
#[must_use]
pub fn differences(ours: &Value, theirs: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    walk("", ours, theirs, &mut found);
    found
}

fn walk(path: &str, ours: &Value, theirs: &Value, found: &mut Vec<Difference>) {
    if ours == theirs {
        return;
    }
    match (ours, theirs) {
        (Value::Object(whole), Value::Null) | (Value::Null, Value::Object(whole)) if whole.len() > FEW => {
            let there = format!("{} fields", whole.len());
            let [ours, theirs] =
                [ours, theirs].map(|one| if one.is_null() { "-".to_owned() } else { there.clone() });
            found.push(Difference { path: path.to_owned(), ours, theirs });
        }
        (Value::Object(_), Value::Object(_) | Value::Null) | (Value::Null, Value::Object(_)) => {
            let (empty, other) = (serde_json::Map::new(), serde_json::Map::new());
            let ours = ours.as_object().unwrap_or(&empty);
            let theirs = theirs.as_object().unwrap_or(&other);
            for key in ours.keys().chain(theirs.keys()).collect::<BTreeSet<_>>() {
                let [one, another] = [ours, theirs].map(|of| of.get(key).unwrap_or(&Value::Null));
                walk(&below(path, key), one, another, found);
            }
        }
        (Value::Array(_), Value::Array(_) | Value::Null) | (Value::Null, Value::Array(_)) => {
            let [ours, theirs] =
                [ours, theirs].map(|of| of.as_array().map(Vec::as_slice).unwrap_or_default());
            lists(path, ours, theirs, found);
        }
        _ => found.push(Difference { path: path.to_owned(), ours: text(ours), theirs: text(theirs) }),
    }
}

/// Elements with a key are compared by it, others are there or not; the order of those that both have counts.
fn lists(path: &str, ours: &[Value], theirs: &[Value], found: &mut Vec<Difference>) {
    let key = KEYS.into_iter().find(|key| are_known_by(ours, key) && are_known_by(theirs, key));
    let name = |one: &Value| key.map_or_else(|| text(one), |key| text(&one[key]));
    let [mine, other] = [ours, theirs].map(|all| all.iter().map(name).collect::<Vec<_>>());
    if key.is_some() {
        let of = |all: &[Value]| all.iter().map(|one| (name(one), one.clone())).collect::<BTreeMap<_, _>>();
        let [by_key, others] = [of(ours), of(theirs)];
        for one in by_key.keys().chain(others.keys()).collect::<BTreeSet<_>>() {
            let [mine, other] = [&by_key, &others].map(|of| of.get(one).unwrap_or(&Value::Null));
            walk(&format!("{path}[{one}]"), mine, other, found);
        }
    } else {
        let only = |of: &[String], but: &[String]| without(of, but);
        let [more, less] = [only(&mine, &other), only(&other, &mine)];
        if !more.is_empty() || !less.is_empty() {
            let path = format!("{path}[]");
            found.push(Difference { path, ours: listed(&more), theirs: listed(&less) });
        }
    }
    let common = |of: &[String], with: &[String]| {
        let with: BTreeSet<_> = with.iter().collect();
        of.iter().filter(|one| with.contains(one)).cloned().collect::<Vec<_>>()
    };
    let [mine, other] = [common(&mine, &other), common(&other, &mine)];
    if mine != other && mine.len() == other.len() {
        let path = format!("{path}[order]");
        found.push(Difference { path, ours: listed(&mine), theirs: listed(&other) });
    }
}

/// What of a list is not in another, each as often as it is there more.
fn without(of: &[String], but: &[String]) -> Vec<String> {
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for one in but {
        *left.entry(one).or_default() += 1;
    }
    let is_more = |one: &&String| match left.get_mut(one.as_str()) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    of.iter().filter(is_more).cloned().collect()
}

fn are_known_by(all: &[Value], key: &str) -> bool {
    let names: BTreeSet<_> = all.iter().filter_map(|one| one[key].as_str()).collect();
    names.len() == all.len()
}

fn below(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}/{key}") }
}

fn listed(all: &[String]) -> String {
    if all.is_empty() { "-".to_owned() } else { all.join("\n") }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

/// The lines of a text as a list, of which order and number count.
#[must_use]
pub fn lines(text: &str) -> Value {
    json!(text.lines().collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_has_a_path_and_both_values() {
        for (ours, theirs, expected) in [
            (json!({ "a": 1 }), json!({ "a": 1 }), vec![]),
            (json!({ "a": { "b": 1 } }), json!({ "a": { "b": 2 } }), vec![("a/b", "1", "2")]),
            (json!({ "a": { "b": "x" } }), json!({}), vec![("a/b", "x", "-")]),
            (
                json!({}),
                json!({ "a": { "b": 1, "c": 2, "d": 3, "e": 4, "f": 5 } }),
                vec![("a", "-", "5 fields")],
            ),
            (json!(["x", "y"]), json!(["y", "z"]), vec![("[]", "x", "z")]),
            (json!(["x", "y"]), json!(["y", "x"]), vec![("[order]", "x\ny", "y\nx")]),
            (json!(["x", "x"]), json!(["x"]), vec![("[]", "x", "-")]),
            (
                json!([{ "type": "A", "s": 1 }, { "type": "B" }]),
                json!([{ "type": "B" }, { "type": "A", "s": 2 }]),
                vec![("[A]/s", "1", "2"), ("[order]", "A\nB", "B\nA")],
            ),
        ] {
            let found = differences(&ours, &theirs);
            let found: Vec<_> =
                found.iter().map(|one| (one.path.as_str(), one.ours.as_str(), one.theirs.as_str())).collect();
            assert_eq!(found, expected, "{ours} {theirs}");
        }
    }
}
