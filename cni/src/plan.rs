//! What to run: pure functions from a configuration, an attachment and a previous result to plugin requests.
//!
//! A [`Request`] is everything a plugin sees that is ours to choose: which plugin, the `CNI_*` variables, and the bytes
//! on its standard input. Order is the order of the returned list. (libcni/api.go; SPEC.md sections 2 to 4.)

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::attachment::Attachment;
use crate::config::{NetworkList, Plugin};
use crate::name::{ContainerId, InterfaceName, PluginType};
use crate::result::{AddResult, ResultError};
use crate::store::Cached;
use crate::version::SpecVersion;

/// What a plugin is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Make the attachment.
    Add,
    /// Remove it.
    Del,
    /// Say whether it is as ADD made it.
    Check,
    /// Remove everything that is not in the list of valid attachments.
    Gc,
    /// Say whether ADD would work.
    Status,
    /// Say which versions are supported.
    Version,
}

/// One run of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The program to look for.
    pub plugin: PluginType,
    /// What it is asked to do.
    pub verb: Verb,
    /// The variables added to the environment.
    pub env: Vec<(&'static str, OsString)>,
    /// The bytes on its standard input.
    pub stdin: Vec<u8>,
}

/// An attachment as GC knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ValidAttachment {
    /// The container.
    #[serde(rename = "containerID")]
    pub container_id: ContainerId,
    /// Its interface.
    pub ifname: InterfaceName,
}

/// What CHECK has to do for a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckPlan {
    /// The network's version has no CHECK.
    Unsupported,
    /// The network asks not to be checked.
    Disabled,
    /// The plugins to ask, in order.
    Run(Vec<Request>),
}

/// What GC has to do for a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GcPlan {
    /// The network's version has no GC, or its configuration asks not to be collected.
    NotWanted,
    /// These files may be records of attachments that a list would leave out.
    Unsure(Vec<PathBuf>),
    /// The plugins to ask, in order.
    Run(Vec<Request>),
}

impl Verb {
    /// The value of `CNI_COMMAND`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One step of ADD: the plugin is given the result of the one before.
///
/// # Errors
/// The previous result cannot be written in the network's version.
pub fn add(
    list: &NetworkList,
    plugin: &Plugin,
    previous: Option<&AddResult>,
    attachment: &Attachment,
    cni_path: &OsStr,
) -> Result<Request, ResultError> {
    let previous = previous.map(|result| result.to_value(list.version)).transpose()?;
    Ok(attached(Verb::Add, list, plugin, previous.as_ref(), attachment, cni_path))
}

/// DEL: every plugin, last first, with the final result of ADD where the version has that.
#[must_use]
pub fn del(
    list: &NetworkList,
    result: Option<&AddResult>,
    attachment: &Attachment,
    cni_path: &OsStr,
) -> Vec<Request> {
    // A result that cannot be written in this version is left out: DEL must work without one.
    let previous = result.filter(|_| list.version.has_check()).and_then(|r| r.to_value(list.version).ok());
    let request = |plugin| attached(Verb::Del, list, plugin, previous.as_ref(), attachment, cni_path);
    list.plugins().iter().rev().map(request).collect()
}

/// CHECK: every plugin in order, with the final result of ADD.
///
/// # Errors
/// The result cannot be written in the network's version.
pub fn check(
    list: &NetworkList,
    result: Option<&AddResult>,
    attachment: &Attachment,
    cni_path: &OsStr,
) -> Result<CheckPlan, ResultError> {
    if !list.version.has_check() {
        return Ok(CheckPlan::Unsupported);
    }
    if list.disable_check {
        return Ok(CheckPlan::Disabled);
    }
    let previous = result.map(|result| result.to_value(list.version)).transpose()?;
    let request = |plugin| attached(Verb::Check, list, plugin, previous.as_ref(), attachment, cni_path);
    Ok(CheckPlan::Run(list.plugins().iter().map(request).collect()))
}

/// GC: every plugin in order, with the attachments to keep: all of the network that are written down, whoever made them,
/// and `besides`.
#[must_use]
pub fn gc(
    list: &NetworkList,
    cached: &Cached,
    besides: &BTreeSet<ValidAttachment>,
    cni_path: &OsStr,
) -> GcPlan {
    if !has_gc(list) {
        return GcPlan::NotWanted;
    }
    if !cached.unreadable.is_empty() {
        return GcPlan::Unsure(cached.unreadable.clone());
    }
    let written = cached
        .keys
        .iter()
        .filter(|key| key.network == list.name)
        .map(|key| ValidAttachment { container_id: key.container_id.clone(), ifname: key.ifname.clone() });
    let valid: BTreeSet<ValidAttachment> = besides.iter().cloned().chain(written).collect();
    let request = |plugin: &Plugin| {
        let mut conf = named(list, plugin);
        // The second name is that of an earlier text of the specification; libcni sends both.
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            conf.insert(key.into(), json!(valid));
        }
        detached(Verb::Gc, plugin, conf, cni_path)
    };
    GcPlan::Run(list.plugins().iter().map(request).collect())
}

/// Whether a network's plugins may be asked to collect: not before 1.1.0, nor when the network disables it.
#[must_use]
pub fn has_gc(list: &NetworkList) -> bool {
    !list.disable_gc && list.version.has_gc_and_status()
}

/// STATUS: every plugin in order; none before 1.1.0.
#[must_use]
pub fn status(list: &NetworkList, cni_path: &OsStr) -> Vec<Request> {
    if !list.version.has_gc_and_status() {
        return Vec::new();
    }
    let request = |plugin: &Plugin| detached(Verb::Status, plugin, named(list, plugin), cni_path);
    list.plugins().iter().map(request).collect()
}

/// VERSION. The variables besides the command are what plugins of 0.1.0 insist on.
#[must_use]
pub fn version(plugin: &PluginType) -> Request {
    let dummy = || OsString::from("dummy");
    Request {
        plugin: plugin.clone(),
        verb: Verb::Version,
        env: vec![
            ("CNI_COMMAND", Verb::Version.as_str().into()),
            ("CNI_CONTAINERID", OsString::new()),
            ("CNI_NETNS", dummy()),
            ("CNI_ARGS", OsString::new()),
            ("CNI_IFNAME", dummy()),
            ("CNI_PATH", dummy()),
        ],
        stdin: json!({"cniVersion": SpecVersion::NEWEST}).to_string().into_bytes(),
    }
}

fn attached(
    verb: Verb,
    list: &NetworkList,
    plugin: &Plugin,
    previous: Option<&Value>,
    attachment: &Attachment,
    cni_path: &OsStr,
) -> Request {
    let mut conf = named(list, plugin);
    if let Some(previous) = previous {
        conf.insert("prevResult".into(), previous.clone());
    }
    let runtime_config: Map<_, _> = plugin
        .capabilities
        .iter()
        .filter_map(|name| Some((name.clone(), attachment.capability_args.get(name)?.clone())))
        .collect();
    if !runtime_config.is_empty() {
        conf.insert("runtimeConfig".into(), runtime_config.into());
    }
    let mut env = environment(verb, attachment, cni_path);
    let trace = &attachment.trace;
    for (key, value) in
        [("TRACEPARENT", &trace.traceparent), ("TRACESTATE", &trace.tracestate), ("BAGGAGE", &trace.baggage)]
    {
        env.extend(value.as_ref().map(|value| (key, value.into())));
    }
    Request { plugin: plugin.kind.clone(), verb, env, stdin: Value::Object(conf).to_string().into_bytes() }
}

fn environment(verb: Verb, attachment: &Attachment, cni_path: &OsStr) -> Vec<(&'static str, OsString)> {
    vec![
        ("CNI_COMMAND", verb.as_str().into()),
        ("CNI_CONTAINERID", attachment.container_id.as_str().into()),
        ("CNI_NETNS", attachment.netns.clone().into()),
        ("CNI_ARGS", attachment.args.to_env().into()),
        ("CNI_IFNAME", attachment.ifname.as_str().into()),
        ("CNI_PATH", cni_path.to_owned()),
    ]
}

fn detached(verb: Verb, plugin: &Plugin, conf: Map<String, Value>, cni_path: &OsStr) -> Request {
    let env = vec![
        ("CNI_COMMAND", verb.as_str().into()),
        ("CNI_CONTAINERID", OsString::new()),
        ("CNI_NETNS", OsString::new()),
        ("CNI_ARGS", OsString::new()),
        ("CNI_IFNAME", OsString::new()),
        ("CNI_PATH", cni_path.to_owned()),
    ];
    Request { plugin: plugin.kind.clone(), verb, env, stdin: Value::Object(conf).to_string().into_bytes() }
}

/// The plugin's own configuration, with what every plugin of a list shares.
fn named(list: &NetworkList, plugin: &Plugin) -> Map<String, Value> {
    let mut conf = plugin.conf().clone();
    conf.insert("name".into(), list.name.as_str().into());
    conf.insert("cniVersion".into(), list.version.as_str().into());
    conf
}

/// The plugin directories as `CNI_PATH` has them.
#[must_use]
pub fn cni_path(dirs: &[impl AsRef<Path>]) -> OsString {
    dirs.iter().map(|dir| dir.as_ref().as_os_str()).collect::<Vec<_>>().join(OsStr::new(":"))
}

#[cfg(test)]
mod tests;
