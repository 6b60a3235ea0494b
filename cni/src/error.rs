//! What can go wrong in a verb, and the one place where a plugin's text is judged.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::config::ConfigError;
use crate::name::{ContainerId, NetworkName, PluginType};
use crate::plan::Verb;
use crate::record::Key;
use crate::result::ResultError;
use crate::store::StoreError;

/// Longest message or details kept from a plugin, in bytes.
pub const PLUGIN_TEXT_MAX: usize = 4096;

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum CniError {
    /// One plugin of the chain failed.
    #[error("CNI {verb} of network {network} failed in plugin {plugin}")]
    Plugin {
        /// The verb.
        verb: Verb,
        /// The network.
        network: NetworkName,
        /// The plugin.
        plugin: PluginType,
        /// How it failed.
        source: PluginFailure,
    },
    /// A plugin asked by its own name failed.
    #[error("CNI VERSION of plugin {plugin} failed")]
    Version {
        /// The plugin.
        plugin: PluginType,
        /// How it failed.
        source: PluginFailure,
    },
    /// A plugin does not support the version that the network's configuration asks for.
    #[error("plugin {plugin} does not support CNI {wanted} of network {network}; it supports {supported:?}")]
    VersionMismatch {
        /// The network.
        network: NetworkName,
        /// The plugin.
        plugin: PluginType,
        /// The version that the configuration asks for.
        wanted: crate::SpecVersion,
        /// What the plugin says it supports.
        supported: Vec<String>,
    },
    /// The network's version has no CHECK.
    #[error("network {0} is configured for a CNI version before 0.4.0, which has no CHECK")]
    CheckUnsupported(NetworkName),
    /// The cached result, which CHECK needs, cannot be used.
    #[error("the cached result of {} on network {} cannot be used: {reason}", .key.container_id, .key.network)]
    CachedResult {
        /// The attachment.
        key: Key,
        /// What is wrong with it.
        reason: String,
    },
    /// A recorded configuration cannot be used, and there is no current one.
    #[error("the recorded configuration of {} on network {} cannot be used", .key.container_id, .key.network)]
    RecordedConfig {
        /// The attachment.
        key: Key,
        /// What is wrong with it.
        source: ConfigError,
    },
    /// Another operation on the same container or network did not end in time.
    #[error("CNI {verb} of {container_id} on network {network} waited too long for another operation")]
    Busy {
        /// The verb.
        verb: Verb,
        /// The container, or `-` for the network as a whole.
        container_id: String,
        /// The network.
        network: NetworkName,
    },
    /// The attachment's record cannot be kept.
    #[error("the record of a CNI attachment cannot be kept")]
    Store(#[from] StoreError),
}

/// How a plugin failed.
#[derive(Debug, thiserror::Error)]
pub enum PluginFailure {
    /// There is no such program.
    #[error("there is no program {plugin} in {searched:?}: install the network add-on's plugins there")]
    NotFound {
        /// Its name.
        plugin: PluginType,
        /// The directories searched.
        searched: Vec<PathBuf>,
    },
    /// The program cannot be run.
    #[error("cannot run {program}")]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Talking to the program failed.
    #[error("cannot talk to the plugin")]
    Pipe(#[source] io::Error),
    /// The deadline passed; its process group was killed.
    #[error("it did not end within {}; it was killed", describe(*.after))]
    TimedOut {
        /// How long it ran.
        after: Duration,
    },
    /// It printed more than a result can have; its process group was killed.
    #[error("it printed more than {max} bytes; it was killed")]
    TooMuchOutput {
        /// The limit.
        max: usize,
    },
    /// It reported an error.
    #[error(transparent)]
    Reported(PluginError),
    /// It failed, and printed something else than an error.
    #[error("it ended with {status} and printed {output:?}")]
    Failed {
        /// How it ended.
        status: String,
        /// What it printed, from standard output or else standard error.
        output: String,
    },
    /// It succeeded, and printed something else than a result.
    #[error("it succeeded, but its answer cannot be used")]
    BadResult(#[source] ResultError),
    /// It succeeded, and printed something else than its versions.
    #[error("its answer to VERSION cannot be used: {0}")]
    BadVersion(String),
    /// The result so far cannot be handed to it.
    #[error("the result of the plugin before it cannot be handed on")]
    PreviousResult(#[source] ResultError),
}

impl PluginFailure {
    fn is_timeout(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            Self::Spawn { source, .. } => source.kind() == io::ErrorKind::TimedOut,
            _ => false,
        }
    }
}

/// An error as a plugin reports it (SPEC.md, section 5 "Error").
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Deserialize)]
#[error("{msg}{}{details} (code {code})", if .details.is_empty() { "" } else { "; " })]
pub struct PluginError {
    /// What kind of error: 1 to 99 are the specification's, 100 and above the plugin's own.
    #[serde(default)]
    pub code: u64,
    /// A short message.
    #[serde(default)]
    pub msg: String,
    /// More about it.
    #[serde(default)]
    pub details: String,
}

/// What a STATUS error means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// Code 50: no ADD is possible.
    NoAdd,
    /// Code 51: no ADD is possible, and existing containers may have limited connectivity.
    LimitedConnectivity,
}

impl CniError {
    /// The error that the plugin reported, if it did.
    #[must_use]
    pub fn reported(&self) -> Option<&PluginError> {
        match self {
            Self::Plugin { source: PluginFailure::Reported(error), .. }
            | Self::Version { source: PluginFailure::Reported(error), .. } => Some(error),
            _ => None,
        }
    }

    /// A plugin did not end in time, or could not be begun in time.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Busy { .. } => true,
            Self::Plugin { source, .. } | Self::Version { source, .. } => source.is_timeout(),
            _ => false,
        }
    }

    pub(crate) fn busy(verb: Verb, container_id: Option<&ContainerId>, network: &NetworkName) -> Self {
        let container_id = container_id.map_or_else(|| "-".to_owned(), ToString::to_string);
        Self::Busy { verb, container_id, network: network.clone() }
    }
}

impl PluginError {
    /// What the error says about the network, when STATUS reported it.
    #[must_use]
    pub fn unavailable(&self) -> Option<Unavailable> {
        match self.code {
            50 => Some(Unavailable::NoAdd),
            51 => Some(Unavailable::LimitedConnectivity),
            _ => None,
        }
    }

    /// Code 11: the plugin asks to be tried again later.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        self.code == 11
    }

    /// What a failed plugin printed, if it is an error object.
    #[must_use]
    pub fn parse(stdout: &[u8]) -> Option<Self> {
        let object: serde_json::Map<_, _> = serde_json::from_slice(stdout).ok()?;
        let mut error: Self = serde_json::from_value(object.into()).ok()?;
        truncate(&mut error.msg);
        truncate(&mut error.details);
        Some(error)
    }

    /// The error of a DEL only says that there is nothing left to delete.
    ///
    /// Plugins say so in words: what CNI plugins print and go-cni's `Remove` ignores. That one stops the chain there
    /// and so leaks what earlier plugins hold; here the chain goes on.
    #[must_use]
    pub(crate) fn means_gone(&self, netns_is_empty: bool) -> bool {
        let says = |text| self.msg.contains(text) || self.details.contains(text);
        says("not found") || (netns_is_empty && says("no such file or directory"))
    }

    /// The plugin is of 0.1.0, which had no VERSION.
    #[must_use]
    pub(crate) fn means_no_version_verb(&self) -> bool {
        self.msg == "unknown CNI_COMMAND: VERSION" && self.details.is_empty()
    }
}

/// Cuts a text at [`PLUGIN_TEXT_MAX`] bytes.
pub(crate) fn truncate(text: &mut String) {
    let end = (0..=PLUGIN_TEXT_MAX).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0);
    text.truncate(end);
}

fn describe(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_plugins_are_decoded() {
        let error =
            PluginError::parse(br#"{"cniVersion":"1.0.0","code":7,"msg":"bad","details":"why"}"#).unwrap();
        assert_eq!(error.to_string(), "bad; why (code 7)");
        assert_eq!(PluginError::parse(b"{}").unwrap().code, 0);
        for bytes in ["", "text", "[]", r#"{"code":-1}"#, r#"{"code":"7"}"#] {
            assert_eq!(PluginError::parse(bytes.as_bytes()), None, "{bytes}");
        }
        let long = format!(r#"{{"msg":"{}"}}"#, "ä".repeat(PLUGIN_TEXT_MAX));
        assert_eq!(PluginError::parse(long.as_bytes()).unwrap().msg.len(), PLUGIN_TEXT_MAX);
    }

    #[test]
    fn codes_have_meanings() {
        let with = |code| PluginError { code, msg: String::new(), details: String::new() };
        assert_eq!(with(50).unavailable(), Some(Unavailable::NoAdd));
        assert_eq!(with(51).unavailable(), Some(Unavailable::LimitedConnectivity));
        assert_eq!(with(7).unavailable(), None);
        assert!(with(11).is_temporary() && !with(50).is_temporary());
    }

    /// Texts as plugins print them.
    #[test]
    fn golden_texts_of_del() {
        let del = |msg: &str, netns_is_empty| {
            PluginError { code: 999, msg: msg.into(), details: String::new() }.means_gone(netns_is_empty)
        };
        for (msg, with_netns, without) in [
            ("Link not found", true, true),
            ("failed to find endpoint: not found", true, true),
            ("failed to open netns \"\": failed to Statfs \"\": no such file or directory", false, true),
            ("failed to delete: permission denied", false, false),
        ] {
            assert_eq!((del(msg, false), del(msg, true)), (with_netns, without), "{msg}");
        }
    }
}
