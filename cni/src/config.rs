//! Network configurations: one list of plugins, parsed from the bytes of a `.conflist` or `.conf` file.
//!
//! Invariants of a [`NetworkList`]: the name and every plugin type are valid names, the version is one this runtime
//! speaks, there is at least one plugin, and [`NetworkList::bytes`] alone reproduces the list, so that it can be recorded
//! and a DEL can run from it. Keys that this runtime does not know reach the plugin unchanged. (libcni/conf.go.)

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::name::{NameError, NetworkName, PluginType};
use crate::version::{SpecVersion, VersionError};

/// One network: the plugins to run for it, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkList {
    /// The network's name.
    pub name: NetworkName,
    /// The version that requests are written in.
    pub version: SpecVersion,
    /// CHECK is to succeed without asking the plugins.
    pub disable_check: bool,
    /// GC is to do nothing.
    pub disable_gc: bool,
    plugins: Vec<Plugin>,
    bytes: Vec<u8>,
}

/// One plugin of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Plugin {
    /// Its file name in the plugin directories.
    pub kind: PluginType,
    /// The capabilities it declares as true: the capability arguments it is given.
    pub capabilities: BTreeSet<String>,
    conf: Map<String, Value>,
}

/// Whether `<directory>/<network name>/*.conf` adds plugins to a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Folder {
    /// The folder's plugins come after the inlined ones.
    Merged,
    /// `loadOnlyInlinedPlugins` is true.
    Ignored,
}

/// A list as its file says it, before the plugins of its folder are merged in.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedList {
    list: NetworkList,
    folder: Folder,
}

/// Why a configuration was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or not a JSON object.
    #[error("it is not a JSON object: {0}")]
    NotAnObject(String),
    /// A key is missing.
    #[error("the key {0:?} is missing")]
    Missing(&'static str),
    /// A key has a value of the wrong type.
    #[error("{key:?} must be {expected}, not {found}")]
    WrongType {
        /// The key.
        key: String,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A name is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The version is not one this runtime speaks.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// There is no plugin at all, inlined or in the folder.
    #[error("it has no plugins")]
    NoPlugins,
    /// `loadOnlyInlinedPlugins` without `plugins`.
    #[error("\"loadOnlyInlinedPlugins\" is true, but there is no \"plugins\"")]
    OnlyInlinedWithoutPlugins,
    /// One plugin's part is wrong.
    #[error("plugin {index}: {reason}")]
    Plugin {
        /// Its index in `plugins`.
        index: usize,
        /// What is wrong with it.
        reason: Box<ConfigError>,
    },
}

impl ParsedList {
    /// Parses a `.conflist`.
    ///
    /// # Errors
    /// Says which key is wrong, and how.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        let conf = parse_object(bytes)?;
        let name = NetworkName::new(string(&conf, "name")?.ok_or(ConfigError::Missing("name"))?)?;
        let single = string(&conf, "cniVersion")?.unwrap_or_default();
        let offered = conf.get("cniVersions").map(|value| strings("cniVersions", value)).transpose()?;
        let version = SpecVersion::select(&single, offered.as_deref())?;
        let folder = if flag(&conf, "loadOnlyInlinedPlugins")? { Folder::Ignored } else { Folder::Merged };
        let plugins = match (conf.get("plugins"), folder) {
            (None, Folder::Ignored) => return Err(ConfigError::OnlyInlinedWithoutPlugins),
            (None, Folder::Merged) => Vec::new(),
            (Some(Value::Array(plugins)), _) if plugins.is_empty() => return Err(ConfigError::NoPlugins),
            (Some(Value::Array(plugins)), _) => plugins
                .iter()
                .enumerate()
                .map(|(index, value)| inlined(index, value))
                .collect::<Result<_, _>>()?,
            (Some(other), _) => return Err(wrong_type("plugins", "a list", other)),
        };
        let list = NetworkList {
            name,
            version,
            disable_check: flag(&conf, "disableCheck")?,
            disable_gc: flag(&conf, "disableGC")?,
            plugins,
            bytes: bytes.to_vec(),
        };
        Ok(Self { list, folder })
    }

    /// The name, which is also the name of the folder.
    #[must_use]
    pub fn name(&self) -> &NetworkName {
        &self.list.name
    }

    /// Whether the folder is to be read.
    #[must_use]
    pub fn folder(&self) -> Folder {
        self.folder
    }

    /// The list, with the plugins found in its folder after its own.
    ///
    /// # Errors
    /// There is no plugin at all.
    pub fn with(self, folder_plugins: Vec<Plugin>) -> Result<NetworkList, ConfigError> {
        let mut list = self.list;
        if !folder_plugins.is_empty() {
            list.plugins.extend(folder_plugins);
            list.bytes = list.to_self_contained();
        }
        if list.plugins.is_empty() { Err(ConfigError::NoPlugins) } else { Ok(list) }
    }
}

impl NetworkList {
    /// Parses a list that stands alone: a recorded one, or one without a folder.
    ///
    /// # Errors
    /// Says which key is wrong, and how.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        ParsedList::parse(bytes)?.with(Vec::new())
    }

    /// Parses a `.conf` or `.json` with a single plugin, and makes it a list of one.
    ///
    /// # Errors
    /// Says which key is wrong, and how.
    pub fn parse_single(bytes: &[u8]) -> Result<Self, ConfigError> {
        let conf = parse_object(bytes)?;
        let name = NetworkName::new(string(&conf, "name")?.ok_or(ConfigError::Missing("name"))?)?;
        let version = SpecVersion::select(&string(&conf, "cniVersion")?.unwrap_or_default(), None)?;
        let plugins = vec![Plugin::from_object(conf)?];
        let mut list =
            Self { name, version, disable_check: false, disable_gc: false, plugins, bytes: Vec::new() };
        list.bytes = list.to_self_contained();
        Ok(list)
    }

    /// The plugins, in the order of ADD. Never empty.
    #[must_use]
    pub fn plugins(&self) -> &[Plugin] {
        &self.plugins
    }

    /// JSON that [`NetworkList::parse`] turns into this list again.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn to_self_contained(&self) -> Vec<u8> {
        let plugins: Vec<_> = self.plugins.iter().map(|plugin| Value::Object(plugin.conf.clone())).collect();
        json!({
            "name": self.name,
            "cniVersion": self.version,
            "disableCheck": self.disable_check,
            "disableGC": self.disable_gc,
            "loadOnlyInlinedPlugins": true,
            "plugins": plugins,
        })
        .to_string()
        .into_bytes()
    }
}

impl Plugin {
    /// Parses one plugin's configuration.
    ///
    /// # Errors
    /// Says which key is wrong, and how.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        Self::from_object(parse_object(bytes)?)
    }

    /// Its configuration as written.
    #[must_use]
    pub fn conf(&self) -> &Map<String, Value> {
        &self.conf
    }

    fn from_object(conf: Map<String, Value>) -> Result<Self, ConfigError> {
        let kind = PluginType::new(string(&conf, "type")?.ok_or(ConfigError::Missing("type"))?)?;
        if let Some(ipam) = conf.get("ipam").and_then(|ipam| ipam.get("type")).and_then(Value::as_str)
            && !ipam.is_empty()
        {
            // The plugin runs it as a program too; an old plugin does not check (CVE-2021-20206).
            PluginType::new(ipam)?;
        }
        let capabilities = match conf.get("capabilities") {
            None | Some(Value::Null) => BTreeSet::new(),
            Some(Value::Object(declared)) => enabled(declared)?,
            Some(other) => return Err(wrong_type("capabilities", "an object", other)),
        };
        Ok(Self { kind, capabilities, conf })
    }
}

fn inlined(index: usize, value: &Value) -> Result<Plugin, ConfigError> {
    let plugin = match value {
        Value::Object(conf) => Plugin::from_object(conf.clone()),
        other => Err(wrong_type("plugins", "a list of objects", other)),
    };
    plugin.map_err(|reason| ConfigError::Plugin { index, reason: Box::new(reason) })
}

fn enabled(declared: &Map<String, Value>) -> Result<BTreeSet<String>, ConfigError> {
    let mut names = BTreeSet::new();
    for (name, value) in declared {
        match value {
            Value::Bool(true) => {
                names.insert(name.clone());
            }
            Value::Bool(false) => {}
            other => return Err(wrong_type(&format!("capabilities.{name}"), "true or false", other)),
        }
    }
    Ok(names)
}

fn parse_object(bytes: &[u8]) -> Result<Map<String, Value>, ConfigError> {
    serde_json::from_slice(bytes).map_err(|error| ConfigError::NotAnObject(error.to_string()))
}

fn string(conf: &Map<String, Value>, key: &'static str) -> Result<Option<String>, ConfigError> {
    match conf.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(wrong_type(key, "a string", other)),
    }
}

fn strings(key: &str, value: &Value) -> Result<Vec<String>, ConfigError> {
    let items = value.as_array().ok_or_else(|| wrong_type(key, "a list of strings", value))?;
    items
        .iter()
        .map(|item| {
            item.as_str().map(str::to_owned).ok_or_else(|| wrong_type(key, "a list of strings", item))
        })
        .collect()
}

/// Like libcni, takes a boolean or one of the strings "true" and "false" in any case.
fn flag(conf: &Map<String, Value>, key: &'static str) -> Result<bool, ConfigError> {
    match conf.get(key) {
        None => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(other) => Err(wrong_type(key, "true or false", other)),
    }
}

fn wrong_type(key: &str, expected: &'static str, found: &Value) -> ConfigError {
    /// Enough of a value to recognise it in a message.
    const SHOWN_MAX: usize = 60;
    let mut shown = found.to_string();
    if shown.len() > SHOWN_MAX {
        shown = shown.chars().take(SHOWN_MAX).chain(['…']).collect();
    }
    ConfigError::WrongType { key: key.to_owned(), expected, found: shown }
}

#[cfg(test)]
mod tests;
