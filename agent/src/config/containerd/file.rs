//! One file of containerd's configuration, in any version that containerd 2 takes, as the newest of them has it.
//!
//! Sources: `LoadConfigWithPlugins`, `v1Migrate` of `cmd/containerd/server/config/config.go`, `configMigration` of
//! `plugins/cri/{runtime,images}/plugin.go`. As there, each file is brought to the newest version before it is merged, so
//! that files of different versions go together.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use toml::{Table, Value};

use super::tree::{Said, Tree};
use crate::document::{Fault, Place};

/// The newest version there is, of containerd 2.3 and later.
const VERSION_MAX: i64 = 4;

/// CRI up to version 2, whole; later what serves it.
const CRI: &str = "io.containerd.grpc.v1.cri";
/// CRI's part about running.
const RUNTIME: &str = "io.containerd.cri.v1.runtime";
/// CRI's part about images.
const IMAGES: &str = "io.containerd.cri.v1.images";

/// What CRI of version 2 has of images.
const OF_IMAGES: [&str; 6] = [
    "registry",
    "image_decryption",
    "max_concurrent_downloads",
    "image_pull_progress_timeout",
    "image_pull_with_sync_fs",
    "stats_collect_period",
];

/// The same in its table `containerd`.
const OF_IMAGES_IN_CONTAINERD: [&str; 3] =
    ["snapshotter", "disable_snapshot_annotations", "discard_unpacked_layers"];

/// What a file says, as far as it is looked at.
#[derive(Debug, Default, PartialEq)]
pub(super) struct File {
    /// Further files, as written.
    pub(super) imports: Vec<String>,
    pub(super) runtime: Tree,
    pub(super) images: Tree,
}

/// Reads the text of a file.
///
/// # Errors
/// It is no TOML, of a version that is not known, or has another thing in the place of a table.
pub(super) fn parse(text: &str, path: &Arc<Path>) -> Result<File, Fault> {
    let fault = |line, field: &str, message: String| {
        let place = Some(Place { file: path.display().to_string().into(), line });
        Fault { place, field: field.to_owned(), message }
    };
    let mut table: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(0, |span| text[..span.start].lines().count().max(1));
        fault(line, "", error.message().to_owned())
    })?;
    let version = match table.get("version") {
        None => 0,
        Some(Value::Integer(version)) if (0..=VERSION_MAX).contains(version) => *version,
        Some(version) => {
            let message = format!("{version} is none of the versions that are known, 1 to {VERSION_MAX}");
            return Err(fault(0, "version", message));
        }
    };
    let imports = match table.remove("imports") {
        None => Vec::new(),
        Some(value) => texts(&value).ok_or_else(|| fault(0, "imports", "is no list of paths".to_owned()))?,
    };
    let plugins = match table.remove("plugins") {
        None => Table::new(),
        Some(Value::Table(plugins)) => plugins,
        Some(_) => return Err(fault(0, "plugins", "is no table".to_owned())),
    };
    let tree = |name: &str| match plugins.get(name) {
        None => Ok(Tree::default()),
        Some(Value::Table(table)) => Ok(Tree::of(table.clone(), path)),
        Some(_) => Err(fault(0, &format!("plugins.{name:?}"), "is no table".to_owned())),
    };
    let (mut runtime, mut images) = (tree(RUNTIME)?, tree(IMAGES)?);
    let named = if version < 2 && plugins.contains_key("cri") { "cri" } else { CRI };
    if version < VERSION_MAX {
        migrate(tree(named)?, &mut runtime, &mut images);
    }
    Ok(File { imports, runtime, images })
}

/// A list of texts.
pub(super) fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

/// Brings what one plugin had to the two that have it now. What is written for those already holds.
fn migrate(cri: Tree, runtime: &mut Tree, images: &mut Tree) {
    let (Tree::Table(cri), Tree::Table(runtime), Tree::Table(images)) = (cri, runtime, images) else {
        return;
    };
    for (key, value) in cri {
        match (key.as_str(), value) {
            (name, value) if OF_IMAGES.contains(&name) => drop(images.insert(key, value)),
            ("cni", Tree::Table(cni)) => add(runtime, &key, cni.into_iter().map(bin_dirs)),
            ("containerd", Tree::Table(containerd)) => {
                let (of_images, others): (BTreeMap<_, _>, BTreeMap<_, _>) = containerd
                    .into_iter()
                    .partition(|(key, _)| OF_IMAGES_IN_CONTAINERD.contains(&key.as_str()));
                images.extend(of_images);
                add(runtime, &key, others);
            }
            (_, value) => drop(runtime.entry(key).or_insert(value)),
        }
    }
}

/// Adds what a table lacks.
fn add(plugin: &mut BTreeMap<String, Tree>, table: &str, entries: impl IntoIterator<Item = (String, Tree)>) {
    if let Tree::Table(table) = plugin.entry(table.to_owned()).or_default() {
        for (key, value) in entries {
            table.entry(key).or_insert(value);
        }
    }
}

/// One directory of plugins, as a list of them has it.
fn bin_dirs((key, value): (String, Tree)) -> (String, Tree) {
    match value {
        Tree::Leaf(Said { value: value @ Value::String(_), file }) if key == "bin_dir" => {
            ("bin_dirs".to_owned(), Tree::Leaf(Said { value: Value::Array(vec![value]), file }))
        }
        value => (key, value),
    }
}
