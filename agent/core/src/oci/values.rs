//! Values of a container's variables that only the shell knows: they pass through here and stay nowhere.

use std::{collections::BTreeMap, fmt};

/// What objects, files and services give a container's environment.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ObjectValues {
    /// Variables of `envFrom`, in order, their prefix before them.
    pub from: Vec<(String, String)>,
    /// Values of those variables of `env` that are keys of objects or of files, by their place in it. One that is missing is not set.
    pub keys: BTreeMap<usize, String>,
    /// Variables of services.
    pub services: BTreeMap<String, String>,
}

/// Names of variables are in the pod; values are not shown.
impl fmt::Debug for ObjectValues {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, keys, services) = (self.from.len(), self.keys.len(), self.services.len());
        write!(out, "({from} and {keys} values of objects, {services} of services)")
    }
}
