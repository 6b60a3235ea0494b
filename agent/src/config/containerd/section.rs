//! What CRI's section says of what the agent has to know.
//!
//! Source: containerd `internal/cri/config/{config,config_unix}.go`, `internal/cri/server/runtime_config_linux.go`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_core::selinux::CATEGORIES;
use toml::Value;

use super::{
    file::texts,
    tree::{Said, Tree},
    unacted,
};
use crate::document::{Fault, Faults, Place};

/// The runtime that containerd has without any configuration, and the handler that it is of.
const RUNC: (&str, &str) = ("runc", "io.containerd.runc.v2");

/// CRI's section, as far as it is acted on. Its default is containerd's.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// The files, in the order in which they are laid over each other.
    pub files: Vec<Arc<Path>>,
    /// Handler of pods that name none.
    pub default_runtime: Said<String>,
    /// Shims by handler. That of containerd's own default is always there.
    pub runtimes: BTreeMap<String, Shim>,
    /// `SystemdCgroup` of the handler that containerd tells a kubelet of, where a file says it.
    pub systemd_cgroup: Option<Said<bool>>,
    /// `disable_apparmor`: containers get no profile.
    pub disable_apparmor: bool,
    /// `enable_selinux`: containers get labels where the kernel has SELinux.
    pub enable_selinux: bool,
    /// `selinux_category_range`: of how many categories their levels are made.
    pub selinux_categories: u32,
    /// Snapshotter of images.
    pub snapshotter: Option<Said<String>>,
    /// Registry settings, searched in order.
    pub registry_dirs: Option<Said<Vec<PathBuf>>>,
    /// Network configurations.
    pub cni_conf_dir: Option<Said<PathBuf>>,
    /// `cni.conf_template`: what a network configuration is made from where there is none.
    pub cni_conf_template: Option<Said<PathBuf>>,
    /// Network plugins, searched in order.
    pub cni_bin_dirs: Option<Said<Vec<PathBuf>>>,
    /// What is said, is not what containerd does by default, and is not acted on.
    pub not_acted_on: Vec<Said<String>>,
}

impl Default for Section {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            default_runtime: Said { value: RUNC.0.to_owned(), file: Path::new("").into() },
            runtimes: BTreeMap::from([(RUNC.0.to_owned(), Shim::default())]),
            systemd_cgroup: None,
            disable_apparmor: false,
            enable_selinux: false,
            selinux_categories: CATEGORIES,
            snapshotter: None,
            registry_dirs: None,
            cni_conf_dir: None,
            cni_conf_template: None,
            cni_bin_dirs: None,
            not_acted_on: Vec::new(),
        }
    }
}

/// What containerd runs the pods of a handler with (`Runtime` of `internal/cri/config`).
#[derive(Debug, Clone, PartialEq)]
pub struct Shim {
    /// `runtime_type`.
    pub name: String,
    /// `runtime_path`: the shim, whatever it is called.
    pub path: Option<PathBuf>,
    /// `options`, as they are written.
    pub options: toml::Table,
    /// `pod_annotations`: patterns of annotations that the runtime sees.
    pub pod_annotations: Vec<String>,
    /// `privileged_without_host_devices`.
    pub privileged_without_host_devices: bool,
    /// `privileged_without_host_devices_all_devices_allowed`.
    pub all_devices_allowed: bool,
    /// The files that have a part in it.
    pub files: BTreeSet<Arc<Path>>,
}

impl Default for Shim {
    fn default() -> Self {
        Self {
            name: RUNC.1.to_owned(),
            path: None,
            options: toml::Table::new(),
            pod_annotations: Vec::new(),
            privileged_without_host_devices: false,
            all_devices_allowed: false,
            files: BTreeSet::new(),
        }
    }
}

impl Shim {
    /// Whether its options are those of runc.
    #[must_use]
    pub fn is_runc(&self) -> bool {
        self.name == RUNC.1
    }

    /// An option that is a text and is not empty.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name)?.as_str().filter(|text| !text.is_empty())
    }
}

impl Section {
    /// Reads the merged tables of both plugins.
    ///
    /// # Errors
    /// Everything that has a value of another kind, and a default that is no handler: containerd's CRI would not begin.
    pub(super) fn of(runtime: &Tree, images: &Tree, files: Vec<Arc<Path>>) -> Result<Self, Faults> {
        let mut faults = Vec::new();
        let [mut of_runtime, mut of_images] =
            [runtime, images].map(|tree| Reader { tree, at: String::new(), faults: Vec::new() });
        let default = Self::default();
        let runtimes = runtimes(runtime, &mut faults);
        let default_runtime =
            of_runtime.text(&["containerd", "default_runtime_name"]).unwrap_or(default.default_runtime);
        let enable_selinux = of_runtime.flag(&["enable_selinux"]);
        let section = Self {
            snapshotter: of_images.text(&["snapshotter"]),
            registry_dirs: of_images.text(&["registry", "config_path"]).map(search_list),
            cni_conf_dir: of_runtime.text(&["cni", "conf_dir"]).map(path),
            cni_conf_template: of_runtime.text(&["cni", "conf_template"]).map(path),
            cni_bin_dirs: of_runtime
                .texts(&["cni", "bin_dirs"])
                .or_else(|| {
                    let one = of_runtime.text(&["cni", "bin_dir"])?;
                    Some(Said { value: vec![one.value], file: one.file })
                })
                .map(paths),
            systemd_cgroup: systemd_cgroup(runtime, &runtimes, &default_runtime.value),
            disable_apparmor: of_runtime.flag(&["disable_apparmor"]),
            enable_selinux,
            selinux_categories: of_runtime.categories(&["selinux_category_range"], enable_selinux),
            not_acted_on: unacted::found(runtime, images),
            default_runtime,
            runtimes,
            files,
        };
        faults.extend(of_runtime.faults);
        faults.extend(of_images.faults);
        faults.extend(section.default_fault());
        faults.extend(section.relative_faults());
        Faults(faults).or(section)
    }

    fn relative_faults(&self) -> impl Iterator<Item = Fault> {
        let dirs = self
            .cni_bin_dirs
            .iter()
            .flat_map(|said| said.value.iter().map(|dir| ("cni.bin_dirs", dir, &said.file)));
        let conf = self.cni_conf_dir.iter().map(|said| ("cni.conf_dir", &said.value, &said.file));
        let template = &self.cni_conf_template;
        let template = template.iter().map(|said| ("cni.conf_template", &said.value, &said.file));
        let relative = dirs.chain(conf).chain(template).filter(|(_, dir, _)| !dir.is_absolute());
        relative.map(|(field, dir, file)| {
            fault(file, field, format!("`{}` is not an absolute path", dir.display()))
        })
    }

    fn default_fault(&self) -> Option<Fault> {
        let Said { value, file } = &self.default_runtime;
        let message = || format!("`{value}` is none of the handlers in containerd.runtimes");
        let is_there = self.runtimes.contains_key(value);
        (!is_there).then(|| fault(file, "containerd.default_runtime_name", message()))
    }
}

fn runtimes(tree: &Tree, faults: &mut Vec<Fault>) -> BTreeMap<String, Shim> {
    let mut runtimes = Section::default().runtimes;
    let named = tree.get(&["containerd", "runtimes"]).and_then(Tree::entries);
    for (name, tree) in named.into_iter().flatten() {
        let at = format!("containerd.runtimes.{name}.");
        let mut reader = Reader { tree, at, faults: Vec::new() };
        let options = tree.get(&["options"]).map(Tree::plain);
        let shim = Shim {
            // As for containerd's client, none is runc's.
            name: reader.text(&["runtime_type"]).map_or_else(|| RUNC.1.to_owned(), |said| said.value),
            path: reader.text(&["runtime_path"]).map(|said| said.value.into()),
            options: options.and_then(|options| options.try_into().ok()).unwrap_or_default(),
            pod_annotations: reader.texts(&["pod_annotations"]).map(|said| said.value).unwrap_or_default(),
            privileged_without_host_devices: reader.flag(&["privileged_without_host_devices"]),
            all_devices_allowed: reader.flag(&["privileged_without_host_devices_all_devices_allowed"]),
            files: tree.files(),
        };
        faults.extend(reader.faults);
        runtimes.insert(name.clone(), shim);
    }
    runtimes
}

/// What containerd says of `SystemdCgroup` when a kubelet asks (`getCgroupDriver`): the default handler's word, else that of the
/// first by name whose options are runc's. Where no file says it, it says false; here that is nothing said.
fn systemd_cgroup(tree: &Tree, runtimes: &BTreeMap<String, Shim>, default: &str) -> Option<Said<bool>> {
    let others = runtimes.keys().map(String::as_str).filter(|name| *name != default);
    let asked = std::iter::once(default).chain(others).find(|name| {
        // Containerd's own has options without any written.
        let has_options = *name == RUNC.0 || tree.get(&["containerd", "runtimes", name, "options"]).is_some();
        has_options && runtimes.get(*name).is_some_and(Shim::is_runc)
    })?;
    let said = tree.get(&["containerd", "runtimes", asked, "options", "SystemdCgroup"])?.leaf()?;
    Some(Said { value: said.value.as_bool()?, file: Arc::clone(&said.file) })
}

/// Reads values, and notes those of another kind.
struct Reader<'a> {
    tree: &'a Tree,
    at: String,
    faults: Vec<Fault>,
}

impl Reader<'_> {
    /// A text that is not empty: that says nothing.
    fn text(&mut self, path: &[&str]) -> Option<Said<String>> {
        let text = self.value(path, "a text", |value| value.as_str().map(str::to_owned))?;
        Some(text).filter(|said| !said.value.is_empty())
    }

    fn texts(&mut self, path: &[&str]) -> Option<Said<Vec<String>>> {
        let texts = self.value(path, "a list of texts", texts)?;
        Some(texts).filter(|said| !said.value.is_empty())
    }

    fn flag(&mut self, path: &[&str]) -> bool {
        self.value(path, "true or false", Value::as_bool).is_some_and(|said| said.value)
    }

    /// Of how many categories levels are made; of all where nothing is said. As for containerd, another number is wrong only where SELinux
    /// is enabled (`initPlatform` of `internal/cri/server/service_linux.go`); of a single one no pair can be made.
    fn categories(&mut self, path: &[&str], is_enabled: bool) -> u32 {
        let Some(Said { value, file }) = self.value(path, "a number", Value::as_integer) else {
            return CATEGORIES;
        };
        let given = u32::try_from(value).ok().filter(|number| (2..=CATEGORIES).contains(number));
        if given.is_none() && value > 0 && is_enabled {
            let message = format!("{value} is not within 2 and {CATEGORIES}");
            self.faults.push(fault(&file, &format!("{}{}", self.at, path.join(".")), message));
        }
        given.unwrap_or(CATEGORIES)
    }

    fn value<T>(&mut self, path: &[&str], kind: &str, read: impl Fn(&Value) -> Option<T>) -> Option<Said<T>> {
        let found = self.tree.get(path)?;
        let value = found
            .leaf()
            .and_then(|said| Some(Said { value: read(&said.value)?, file: Arc::clone(&said.file) }));
        if value.is_none() {
            let file = found.files().pop_last().unwrap_or_else(|| Path::new("").into());
            self.faults.push(fault(
                &file,
                &format!("{}{}", self.at, path.join(".")),
                format!("is not {kind}"),
            ));
        }
        value
    }
}

fn fault(file: &Path, field: &str, message: String) -> Fault {
    let place = Some(Place { file: file.display().to_string().into(), line: 0 });
    Fault { place, field: field.to_owned(), message }
}

fn path(said: Said<String>) -> Said<PathBuf> {
    Said { value: said.value.into(), file: said.file }
}

fn paths(said: Said<Vec<String>>) -> Said<Vec<PathBuf>> {
    Said { value: said.value.into_iter().map(PathBuf::from).collect(), file: said.file }
}

/// Directories with colons between them, as Go's `SplitList` takes them apart.
fn search_list(said: Said<String>) -> Said<Vec<PathBuf>> {
    let parts = said.value.split(':').filter(|part| !part.is_empty());
    Said { value: parts.map(PathBuf::from).collect(), file: said.file }
}
