//! What of the runtime may change while the agent runs, and who says it: `BerthConfiguration`, else containerd's own
//! configuration, else the defaults (decision 0032).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    BerthConfiguration, Handler, PodRuntime,
    containerd::{Loaded, Said, Section, load},
};

/// The handler that is always there.
const BERTH_HANDLER: &str = "berth";

/// Where containerd looks for its configuration when nobody names it.
const CONTAINERD_CONFIG: &str = "/etc/containerd/config.toml";

/// What may change while the agent runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeSettings {
    /// What runs the pods of each handler; the empty name, which is always there, is the default.
    pub handlers: BTreeMap<String, Handler>,
    /// Containerd's snapshotter for container layers.
    pub snapshotter: String,
    /// Directories of registry settings in containerd's `hosts.toml` form, searched in order.
    pub registry_dirs: Vec<PathBuf>,
    /// Directory of network configurations.
    pub cni_conf_dir: PathBuf,
    /// What a network configuration is made from once the node has ranges of addresses, where there is none.
    pub cni_conf_template: Option<PathBuf>,
    /// Directories of network plugins, searched in order.
    pub cni_bin_dirs: Vec<PathBuf>,
}

/// What holds at the moment, and why that is not what containerd's configuration says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentRuntime {
    /// What holds.
    pub settings: Arc<RuntimeSettings>,
    /// Why what was written last cannot be used.
    pub fault: Option<String>,
}

/// Who says it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuntimeSource {
    berth: BerthConfiguration,
}

/// The default handler is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of the handlers in runtime.handlers and in containerd's configuration, nor `berth`")]
pub struct UnknownDefault(String);

/// One setting, and who says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Its name.
    pub setting: String,
    /// What it is, in words.
    pub value: String,
    /// The file, the document, or `default`.
    pub from: String,
}

impl RuntimeSource {
    pub(super) fn of(berth: &BerthConfiguration) -> Self {
        Self { berth: berth.clone() }
    }

    /// A document that names containerd's configuration, and nothing else.
    #[cfg(test)]
    pub(crate) fn reading(path: &Path) -> Self {
        Self { berth: BerthConfiguration { containerd_config: Some(path.to_owned()), ..Default::default() } }
    }

    /// Reads containerd's configuration, where it is to be read.
    #[must_use]
    pub fn read(&self) -> Loaded {
        match self.berth.containerd_config.as_deref() {
            Some(path) if path.as_os_str().is_empty() => {
                Loaded { section: Ok(Section::default()), directories: [].into() }
            }
            Some(path) => load(path, false),
            None => load(Path::new(CONTAINERD_CONFIG), true),
        }
    }

    /// What holds, given what containerd's configuration says.
    ///
    /// # Errors
    /// The default handler is none: pods that name none must not run under another.
    pub fn resolve(&self, section: &Section) -> Result<RuntimeSettings, UnknownDefault> {
        let handlers = self.handlers(section);
        if !handlers.contains_key("") {
            let named = self.berth.runtime.as_ref().and_then(|runtime| runtime.default_handler.clone());
            return Err(UnknownDefault(named.unwrap_or_else(|| section.default_runtime.value.clone())));
        }
        Ok(RuntimeSettings {
            handlers: handlers.into_iter().map(|(name, (handler, _))| (name, handler)).collect(),
            snapshotter: self.snapshotter(section).0,
            registry_dirs: self.registry_dirs(section).0,
            cni_conf_dir: self.cni_conf_dir(section).0,
            cni_conf_template: section.cni_conf_template.as_ref().map(|said| said.value.clone()),
            cni_bin_dirs: self.cni_bin_dirs(section).0,
        })
    }

    /// The same, with who says it.
    #[must_use]
    pub fn origins(&self, section: &Section) -> Vec<Origin> {
        let handlers = self.handlers(section).into_iter().map(|(name, (handler, from))| {
            let setting =
                if name.is_empty() { "default handler".to_owned() } else { format!("handler {name}") };
            Origin { setting, value: shown(&handler.runtime), from }
        });
        let (conf_dir, conf_from) = self.cni_conf_dir(section);
        let others = [
            ("snapshotter", self.snapshotter(section)),
            ("registry settings", listed(self.registry_dirs(section))),
            ("CNI configuration", (conf_dir.display().to_string(), conf_from)),
            ("CNI plugins", listed(self.cni_bin_dirs(section))),
        ];
        let others =
            others.map(|(setting, (value, from))| Origin { setting: setting.to_owned(), value, from });
        handlers.chain(others).collect()
    }

    /// Each handler, and who says it; the default has an empty name.
    fn handlers(&self, section: &Section) -> BTreeMap<String, (Handler, String)> {
        let runtime = self.berth.runtime.clone().unwrap_or_default();
        let of_containerd = section.runtimes.iter().map(|(name, shim)| {
            let files: Vec<_> = shim.files.iter().map(|file| file.display().to_string()).collect();
            let from = if files.is_empty() { "default of containerd".to_owned() } else { files.join(", ") };
            (name.clone(), (Handler::of_containerd(shim), from))
        });
        let mut all: BTreeMap<_, _> = of_containerd.collect();
        let own = || (Handler::of(PodRuntime::Berth { binary: None }), "default".to_owned());
        all.entry(BERTH_HANDLER.to_owned()).or_insert_with(own);
        for (name, runtime) in runtime.handlers.unwrap_or_default() {
            all.insert(name, (Handler::of(PodRuntime::named(&runtime)), OURS.to_owned()));
        }
        let default = match runtime.default_handler {
            Some(name) => all.get(&name).map(|(handler, _)| (handler.clone(), OURS.to_owned())),
            None => all
                .get(&section.default_runtime.value)
                .cloned()
                .map(|default| of_default(default, &section.default_runtime, runtime.oci_runtime.as_deref())),
        };
        all.extend(default.map(|default| (String::new(), default)));
        all
    }

    fn snapshotter(&self, section: &Section) -> (String, String) {
        chosen(self.berth.snapshotter.as_ref(), section.snapshotter.as_ref(), || "overlayfs".to_owned())
    }

    fn registry_dirs(&self, section: &Section) -> (Vec<PathBuf>, String) {
        let ours = self.berth.registry_config_dir.as_ref().map(|dir| vec![dir.clone()]);
        let default = || vec![PathBuf::from("/etc/containerd/certs.d")];
        chosen(ours.as_ref(), section.registry_dirs.as_ref(), default)
    }

    fn cni_conf_dir(&self, section: &Section) -> (PathBuf, String) {
        let ours = self.berth.cni.as_ref().and_then(|cni| cni.conf_dir.as_ref());
        chosen(ours, section.cni_conf_dir.as_ref(), || PathBuf::from("/etc/cni/net.d"))
    }

    fn cni_bin_dirs(&self, section: &Section) -> (Vec<PathBuf>, String) {
        let ours = self.berth.cni.as_ref().and_then(|cni| cni.bin_dirs.as_ref());
        chosen(ours, section.cni_bin_dirs.as_ref(), || vec![PathBuf::from("/opt/cni/bin")])
    }
}

fn listed((paths, from): (Vec<PathBuf>, String)) -> (String, String) {
    (paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(":"), from)
}

/// Who says what the document says.
const OURS: &str = "BerthConfiguration";

/// The OCI runtime that the document names is that of pods that name none, whatever containerd would take.
fn of_default(
    (mut handler, from): (Handler, String),
    named: &Said<String>,
    oci_runtime: Option<&str>,
) -> (Handler, String) {
    let is_named = !named.file.as_os_str().is_empty();
    let from = if is_named { named.file.display().to_string() } else { from };
    if let PodRuntime::Berth { binary } = &mut handler.runtime
        && let Some(_ours) = oci_runtime.filter(|name| *name != "auto")
        && binary.take().is_some()
    {
        return (handler, OURS.to_owned());
    }
    (handler, from)
}

/// Ours, else containerd's, else the default; and who said it.
fn chosen<T: Clone>(ours: Option<&T>, theirs: Option<&Said<T>>, default: impl FnOnce() -> T) -> (T, String) {
    match (ours, theirs) {
        (Some(ours), _) => (ours.clone(), OURS.to_owned()),
        (None, Some(said)) => (said.value.clone(), said.file.display().to_string()),
        (None, None) => (default(), "default".to_owned()),
    }
}

fn shown(runtime: &PodRuntime) -> String {
    match runtime {
        PodRuntime::Berth { binary: None } => "the node's OCI runtime".to_owned(),
        PodRuntime::Berth { binary: Some(binary) } => format!("OCI runtime {binary}"),
        PodRuntime::Grouped { name, path: None, .. } => format!("shim {name}"),
        PodRuntime::Grouped { name, path: Some(path), .. } => format!("shim {name} at {}", path.display()),
    }
}

#[cfg(test)]
mod tests;
