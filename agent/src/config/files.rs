//! Configuration files: found, parsed, told apart by kind and merged.
//!
//! The order is that of the kubelet (KEP-3983): the file of `--config`, then every `*.conf` below `--config-dir` in
//! lexical order, each merged over what came before as a JSON merge patch (maps by key, lists whole, `null` removes),
//! then the flags. Defaults that go by another field are filled in after the file and once more after the drop-ins, so that a
//! later layer changes what it names alone. Source: `NewKubeletCommand`, `mergeKubeletConfigurations` of
//! `cmd/kubelet/app/server.go`.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{KubeletFlags, defaults};
use crate::document::{self, BYTES_MAX, Entry, Fault, Faults, Node, Place, Value};

/// API version and kind of the kubelet's document.
pub(super) const KUBELET: (&str, &str) = ("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration");

/// API version and kind of our own.
pub(super) const BERTH: (&str, &str) = ("berth.dev/v1alpha1", "BerthConfiguration");

/// Files in a drop-in directory: far more than anybody has, and a bound.
const DROP_INS_MAX: usize = 1000;

/// Both documents, merged from all files, with the flags over them; `apiVersion` and `kind` are taken off.
#[derive(Debug, Clone, PartialEq)]
pub struct Documents {
    /// `KubeletConfiguration`.
    pub kubelet: Node,
    /// `BerthConfiguration`.
    pub berth: Node,
    /// The files that were read, in order.
    pub files: Vec<PathBuf>,
}

impl Documents {
    /// No file at all: everything is default.
    #[must_use]
    pub fn empty() -> Self {
        let empty = || Node { place: defaults::place(), value: Value::Map(Vec::new()) };
        Self { kubelet: empty(), berth: empty(), files: Vec::new() }
    }
}

/// Reads the file and the drop-ins that the flags name, and lays the flags over them.
///
/// # Errors
/// Files that cannot be read or parsed, and documents of other kinds.
pub fn load(flags: &KubeletFlags) -> Result<Documents, Faults> {
    let mut documents = Documents::empty();
    if let Some(path) = &flags.config {
        add(&mut documents, path)?;
        defaults::fill_eviction(&mut documents.kubelet);
    }
    defaults::fill_frequencies(&mut documents.kubelet);
    if let Some(directory) = &flags.config_dir {
        if flags.config.is_none() {
            // In the place of a file there are defaults with the flags over them.
            flags.overlay(&mut documents.kubelet);
        }
        for path in drop_ins(directory)? {
            add(&mut documents, &path)?;
        }
        defaults::fill_frequencies(&mut documents.kubelet);
    }
    flags.overlay(&mut documents.kubelet);
    Ok(documents)
}

/// Merges one tree over another, as a JSON merge patch (RFC 7386).
pub(super) fn merge(base: &mut Node, patch: Node) {
    let Value::Map(changes) = patch.value else {
        *base = patch;
        return;
    };
    if !matches!(base.value, Value::Map(_)) {
        base.value = Value::Map(Vec::new());
    }
    let Value::Map(entries) = &mut base.value else { return };
    base.place = patch.place;
    for change in changes {
        let position = entries.iter().position(|entry| entry.key == change.key);
        match (position, change.value.value == Value::Null) {
            (Some(position), true) => drop(entries.remove(position)),
            (Some(position), false) => merge(&mut entries[position].value, change.value),
            (None, true) => {}
            (None, false) => {
                let mut value = Node { place: change.value.place.clone(), value: Value::Null };
                merge(&mut value, change.value);
                entries.push(Entry { value, ..change });
            }
        }
    }
}

fn add(documents: &mut Documents, path: &Path) -> Result<(), Faults> {
    let name = path.display().to_string();
    let text = read(path).map_err(|message| whole(&name, message))?;
    let parsed = document::parse(&name, &text)?;
    if parsed.is_empty() {
        return Err(whole(&name, "no document in it".to_owned()).into());
    }
    let mut seen = [false; 2];
    for document in parsed {
        let place = document.place.clone();
        let (slot, document) = told_apart(document)?;
        if std::mem::replace(&mut seen[slot], true) {
            let message = format!("a second {} in one file", [KUBELET.1, BERTH.1][slot]);
            return Err(Fault { place: Some(place), field: String::new(), message }.into());
        }
        merge(if slot == 0 { &mut documents.kubelet } else { &mut documents.berth }, document);
    }
    documents.files.push(path.to_owned());
    Ok(())
}

/// 0 with a kubelet's document, 1 with our own, without version and kind.
fn told_apart(mut document: Node) -> Result<(usize, Node), Faults> {
    let text = |key: &str| document.get(key).and_then(Node::text).unwrap_or_default().to_owned();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let slot = match (version.as_str(), kind.as_str()) {
        KUBELET => 0,
        BERTH => 1,
        ("", _) | (_, "") => {
            let message = format!(
                "`apiVersion` or `kind` is missing: begin with `apiVersion: {}` and `kind: {}`",
                KUBELET.0, KUBELET.1
            );
            return Err(document.fault("", message).into());
        }
        _ => {
            let message = format!(
                "{kind} of {version} is not known here: only {} of {} and {} of {}",
                KUBELET.1, KUBELET.0, BERTH.1, BERTH.0
            );
            return Err(document.fault("apiVersion", message).into());
        }
    };
    if let Value::Map(entries) = &mut document.value {
        entries.retain(|entry| entry.key != "apiVersion" && entry.key != "kind");
    }
    Ok((slot, document))
}

fn drop_ins(directory: &Path) -> Result<Vec<PathBuf>, Faults> {
    let name = directory.display().to_string();
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(current) = waiting.pop() {
        let entries =
            fs::read_dir(&current).map_err(|error| whole(&name, format!("cannot be listed: {error}")))?;
        for entry in entries {
            let entry = entry.map_err(|error| whole(&name, format!("cannot be listed: {error}")))?;
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "conf") {
                found.push(path);
            }
            if found.len() + waiting.len() > DROP_INS_MAX {
                return Err(whole(&name, format!("more than {DROP_INS_MAX} entries")).into());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<String, String> {
    let file = fs::File::open(path).map_err(|error| format!("cannot be opened: {error}"))?;
    let mut text = String::new();
    file.take(BYTES_MAX as u64 + 1)
        .read_to_string(&mut text)
        .map_err(|error| format!("cannot be read: {error}"))?;
    Ok(text)
}

fn whole(file: &str, message: String) -> Fault {
    Fault { place: Some(Place { file: Arc::from(file), line: 0 }), field: String::new(), message }
}
