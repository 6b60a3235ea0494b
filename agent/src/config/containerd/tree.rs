//! Tables of containerd's configuration, merged from files, that know where each value was written.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use toml::{Table, Value};

/// A value that somebody wrote, and in which file.
#[derive(Debug, Clone, PartialEq)]
pub struct Said<T> {
    /// What is said.
    pub value: T,
    /// By which file.
    pub file: Arc<Path>,
}

/// A table or what is in one.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Tree {
    Table(BTreeMap<String, Self>),
    Leaf(Said<Value>),
}

impl Default for Tree {
    fn default() -> Self {
        Self::Table(BTreeMap::new())
    }
}

impl Tree {
    pub(super) fn of(table: Table, file: &Arc<Path>) -> Self {
        let entries = table.into_iter().map(|(key, value)| {
            let tree = match value {
                Value::Table(table) => Self::of(table, file),
                value => Self::Leaf(Said { value, file: Arc::clone(file) }),
            };
            (key, tree)
        });
        Self::Table(entries.collect())
    }

    /// Lays another over this one: tables are merged by key, everything else is replaced, as containerd does (`mergeConfig`
    /// of `cmd/containerd/server/config/config.go`).
    pub(super) fn merge(&mut self, over: Self) {
        match (self, over) {
            (Self::Table(entries), Self::Table(over)) => {
                for (key, value) in over {
                    entries.entry(key).or_default().merge(value);
                }
            }
            (this, over) => *this = over,
        }
    }

    /// What is at a path of keys.
    pub(super) fn get(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |tree, key| tree.entries()?.get(*key))
    }

    /// The entries of a table.
    pub(super) fn entries(&self) -> Option<&BTreeMap<String, Self>> {
        match self {
            Self::Table(entries) => Some(entries),
            Self::Leaf(_) => None,
        }
    }

    /// What somebody wrote; `None` for a table.
    pub(super) fn leaf(&self) -> Option<&Said<Value>> {
        match self {
            Self::Leaf(said) => Some(said),
            Self::Table(_) => None,
        }
    }

    /// The files that had a part in it, in the order of their names.
    pub(super) fn files(&self) -> BTreeSet<Arc<Path>> {
        match self {
            Self::Leaf(said) => BTreeSet::from([Arc::clone(&said.file)]),
            Self::Table(entries) => entries.values().flat_map(Self::files).collect(),
        }
    }

    /// Without the knowledge of files.
    pub(super) fn plain(&self) -> Value {
        match self {
            Self::Leaf(said) => said.value.clone(),
            Self::Table(entries) => {
                Value::Table(entries.iter().map(|(key, value)| (key.clone(), value.plain())).collect())
            }
        }
    }
}
