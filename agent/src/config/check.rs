//! Which settings are understood and not acted upon, so that nobody believes in a setting that does nothing.

use super::{
    Settings,
    kubelet::{ACTED_ON, GATES},
};
use crate::document::{Entry, Node, Number, Place, Value};

/// A setting that this version does not act on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    /// Where it is written.
    pub place: Place,
    /// The field, or the flag.
    pub name: String,
}

/// All of them, in the order of writing. A field that is empty or zero asks for nothing and is left out.
#[must_use]
pub fn ignored(settings: &Settings) -> Vec<Ignored> {
    let entries: &[Entry] = match &settings.documents.kubelet.value {
        Value::Map(entries) => entries,
        _ => &[],
    };
    let fields = entries.iter().flat_map(ignored_of);
    let flags = settings
        .flags
        .passive
        .iter()
        .map(|flag| Ignored { place: Place { file: flag.as_str().into(), line: 0 }, name: flag.clone() });
    fields.chain(flags).chain(std::iter::once(eviction(entries))).collect()
}

/// Thresholds count for what is allocatable, by default too; that nothing is evicted has to be known before a disk is full.
fn eviction(entries: &[Entry]) -> Ignored {
    let name = "evictionHard: no pod is evicted";
    let written = entries.iter().find(|field| field.key == "evictionHard").map(|field| field.place.clone());
    let place = written.unwrap_or_else(|| Place { file: name.into(), line: 0 });
    Ignored { place, name: name.to_owned() }
}

/// What of a field is ignored: nothing, all of it, or some of its entries.
fn ignored_of(field: &Entry) -> Vec<Ignored> {
    let ignored = |node: &Node, name: String| Ignored { place: node.place.clone(), name };
    match (field.key.as_str(), &field.value.value) {
        ("enforceNodeAllocatable", Value::List(names)) => names
            .iter()
            .filter_map(|node| Some((node, node.text()?)))
            .filter(|(_, name)| !["pods", "none"].contains(name))
            .map(|(node, name)| ignored(node, format!("enforceNodeAllocatable: {name}")))
            .collect(),
        ("featureGates", Value::Map(gates)) => gates
            .iter()
            .filter(|gate| !GATES.contains(&gate.key.as_str()))
            .map(|gate| ignored(&gate.value, format!("featureGates.{}", gate.key)))
            .collect(),
        (name, _) if ACTED_ON.contains(&name) || asks_nothing(&field.value) => Vec::new(),
        (name, _) => vec![ignored(&field.value, name.to_owned())],
    }
}

fn asks_nothing(node: &Node) -> bool {
    match &node.value {
        Value::Null => true,
        Value::Text(text) => text.is_empty() || text == "0s",
        Value::Number(Number::Integer { value, .. }) => *value == 0,
        Value::Number(Number::Float { .. }) | Value::Bool(_) => false,
        Value::List(items) => items.is_empty(),
        Value::Map(entries) => entries.iter().all(|entry| asks_nothing(&entry.value)),
    }
}
