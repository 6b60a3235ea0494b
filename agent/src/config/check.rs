//! Which settings are understood and not acted upon, so that nobody believes in a setting that does nothing.

use super::{
    Settings,
    gates::is_default,
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
    let all = fields.chain(flags).chain(eviction(entries));
    all.chain(overruled(settings)).chain(of_containerd(settings)).collect()
}

/// A kubelet takes the driver that its runtime tells, whatever it is told itself.
fn overruled(settings: &Settings) -> Option<Ignored> {
    let said = settings.containerd.systemd_cgroup.as_ref()?;
    let written = settings.documents.kubelet.get("cgroupDriver").filter(|node| {
        let wants_systemd = node.text() == Some("systemd");
        wants_systemd != said.value
    })?;
    let name = format!("cgroupDriver: SystemdCgroup = {} in {} holds", said.value, said.file.display());
    Some(Ignored { place: written.place.clone(), name })
}

/// What containerd's own configuration asks of CRI.
fn of_containerd(settings: &Settings) -> impl Iterator<Item = Ignored> {
    settings.containerd.not_acted_on.iter().map(|said| {
        let place = Place { file: said.file.display().to_string().into(), line: 0 };
        Ignored { place, name: format!("containerd's {}", said.value) }
    })
}

/// Thresholds count for what is allocatable, by default too; that nothing is evicted has to be known before a disk is full.
fn eviction(entries: &[Entry]) -> Option<Ignored> {
    let field = entries.iter().find(|field| field.key == "evictionHard" && !asks_nothing(&field.value))?;
    Some(Ignored { place: field.place.clone(), name: "evictionHard: no pod is evicted".to_owned() })
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
            .filter(|gate| !GATES.contains(&gate.key.as_str()) && !asks_for_default(gate))
            .map(|gate| ignored(&gate.value, format!("featureGates.{}", gate.key)))
            .collect(),
        (name, _) if ACTED_ON.contains(&name) || asks_nothing(&field.value) => Vec::new(),
        (name, _) => vec![ignored(&field.value, name.to_owned())],
    }
}

fn asks_for_default(gate: &Entry) -> bool {
    matches!(gate.value.value, Value::Bool(is_on) if is_default(&gate.key, is_on))
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
