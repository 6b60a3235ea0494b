//! Which settings are understood and not acted upon, so that nobody believes in a setting that does nothing.

use super::{Settings, kubelet::ACTED_ON};
use crate::document::{Node, Number, Place, Value};

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
    let Value::Map(entries) = &settings.documents.kubelet.value else { return Vec::new() };
    let fields = entries
        .iter()
        .filter(|entry| !ACTED_ON.contains(&entry.key.as_str()) && !asks_nothing(&entry.value))
        .map(|entry| Ignored { place: entry.value.place.clone(), name: entry.key.clone() });
    let flags = settings
        .flags
        .passive
        .iter()
        .map(|flag| Ignored { place: Place { file: flag.as_str().into(), line: 0 }, name: flag.clone() });
    fields.chain(flags).collect()
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
