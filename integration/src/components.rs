//! The real components of a node: the machine's own where they are new enough, else built from the pinned Go modules in
//! `integration/components`.
//!
//! Invariant: a stamp beside the binaries holds the recipe they were built with (module files, Go's
//! version, flags); a component is rebuilt exactly when its recipe differs from the stamp.

mod criu;
mod prometheus;
mod system;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

pub use self::prometheus::install as install_prometheus;
use self::system::{System, Wanted};
use crate::files;
use crate::process::printed;

/// Which components are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// What a node consists of, the machine's own where it is new enough.
    Node,
    /// Exactly the pinned ones, so that what is done with them can be repeated.
    Pinned,
    /// The pinned ones, the minor versions of containerd that a node comes from and goes to, what runs beside Berth, a control
    /// plane, and criu.
    PinnedForTests,
    /// Those, and what only the soak uses.
    PinnedForSoak,
}

impl Set {
    /// What there is beside what a node consists of.
    fn beside_the_node(self) -> impl Iterator<Item = &'static Component> {
        let (tests, soak) = match self {
            Self::Node | Self::Pinned => (&[][..], &[][..]),
            Self::PinnedForTests => (FOR_TESTS, &[][..]),
            Self::PinnedForSoak => (FOR_TESTS, FOR_SOAK),
        };
        tests.iter().chain(soak)
    }
}

/// A Go module with `tool` directives, and how it is built.
#[derive(Debug)]
struct Component {
    name: &'static str,
    /// Where its binaries are, below `target/components`: what has a namesake has a directory of its own.
    dir: &'static str,
    /// What `go build tool` leaves behind.
    binaries: &'static [&'static str],
    /// Links to the first binary, which is what the name says by which it is called.
    names: &'static [&'static str],
    cgo: &'static str,
    tags: &'static str,
    /// Variable that receives the version of the module beside it, at link time.
    version: Option<(&'static str, &'static str)>,
    /// What the machine's own has to be to stand in for it.
    system: Wanted,
}

/// Where most binaries are.
const SHARED: &str = "bin";
/// Where those of a control plane are: no node has them in its `PATH`, and no guest keeps them in its memory.
const CONTROL_PLANE: &str = "kubernetes";
/// What the one program of Kubernetes can be called by.
pub const NAMES_OF_KUBERNETES: [&str; 7] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubeadm",
    "kubectl",
];
const KUBERNETES_VERSION: (&str, &str) = ("k8s.io/component-base/version.gitVersion", "k8s.io/kubernetes");
const CONTAINERD_TAGS: &str = "no_btrfs no_zfs no_devmapper no_aufs";
const CONTAINERD_VERSION: (&str, &str) =
    ("github.com/containerd/containerd/v2/version.Version", "github.com/containerd/containerd/v2");

const NODE: &[Component] = &[
    Component {
        name: "cni",
        dir: SHARED,
        binaries: &[
            "bandwidth",
            "bridge",
            "firewall",
            "host-local",
            "loopback",
            "portmap",
            "ptp",
            "static",
            "tuning",
        ],
        names: &[],
        cgo: "0",
        tags: "",
        version: None,
        system: Wanted::Plugins { specification: "1.0.0" },
    },
    Component {
        name: "containerd",
        dir: SHARED,
        binaries: &["containerd", "containerd-shim-runc-v2", "ctr"],
        names: &[],
        cgo: "0",
        tags: CONTAINERD_TAGS,
        version: Some(CONTAINERD_VERSION),
        system: Wanted::Programs { at_least: (2, 0) },
    },
    Component {
        name: "runc",
        dir: SHARED,
        binaries: &["runc"],
        names: &[],
        cgo: "1",
        tags: "seccomp",
        version: None,
        system: Wanted::Programs { at_least: (1, 1) },
    },
    Component {
        name: "registry",
        dir: SHARED,
        binaries: &["registry"],
        names: &[],
        cgo: "0",
        tags: "",
        version: None,
        system: Wanted::Programs { at_least: (3, 0) },
    },
];

/// Of containerd the daemon alone: `ctr` and shims come from the version of reference. And a client of CRI, a kubelet, and a
/// control plane with what it asks nodes for, which the tests have beside Berth.
const FOR_TESTS: &[Component] = &[
    neighbour("containerd-2.1"),
    neighbour("containerd-2.4"),
    Component {
        name: "cri",
        dir: SHARED,
        binaries: &["cri"],
        names: &[],
        cgo: "0",
        tags: "",
        version: None,
        system: Wanted::Nothing,
    },
    Component {
        name: "kubelet",
        dir: SHARED,
        binaries: &["kubelet"],
        names: &[],
        cgo: "0",
        tags: "",
        version: Some(KUBERNETES_VERSION),
        system: Wanted::Nothing,
    },
    // About ten minutes on two processors where nothing of it was built before.
    Component {
        name: "kubernetes",
        dir: CONTROL_PLANE,
        binaries: &["kubernetes"],
        names: &NAMES_OF_KUBERNETES,
        cgo: "0",
        tags: "",
        version: Some(KUBERNETES_VERSION),
        system: Wanted::Nothing,
    },
    Component {
        name: "coredns",
        dir: CONTROL_PLANE,
        binaries: &["coredns"],
        names: &[],
        cgo: "0",
        tags: "",
        version: None,
        system: Wanted::Nothing,
    },
    // Three minutes on two processors: little of it is of the same versions as above.
    Component {
        name: "metrics-server",
        dir: CONTROL_PLANE,
        binaries: &["metrics-server"],
        names: &[],
        cgo: "0",
        tags: "",
        version: None,
        system: Wanted::Nothing,
    },
];

/// The oldest API server that the soak has a node of 1.36 beside.
pub const OLD_API_SERVER: &str = "kube-apiserver-1.34";

const FOR_SOAK: &[Component] = &[Component {
    name: OLD_API_SERVER,
    dir: OLD_API_SERVER,
    binaries: &[OLD_API_SERVER],
    names: &[],
    cgo: "0",
    tags: "",
    version: Some(KUBERNETES_VERSION),
    system: Wanted::Nothing,
}];

const fn neighbour(name: &'static str) -> Component {
    Component {
        name,
        dir: name,
        binaries: &["containerd"],
        names: &[],
        cgo: "0",
        tags: CONTAINERD_TAGS,
        version: Some(CONTAINERD_VERSION),
        system: Wanted::Nothing,
    }
}

/// The top folder of the workspace.
#[must_use]
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The folder of the built components.
#[must_use]
pub fn bin_dir() -> PathBuf {
    dir(SHARED)
}

fn dir(name: &str) -> PathBuf {
    workspace().join("target/components").join(name)
}

/// The path of a component's binary.
///
/// # Errors
/// It was not built; `scripts/setup` builds it.
pub fn binary(name: &str) -> Result<PathBuf> {
    let control_plane = dir(CONTROL_PLANE).join(name);
    if control_plane.is_file() { Ok(control_plane) } else { binary_in(SHARED, name) }
}

/// The path of a binary that has a namesake.
///
/// # Errors
/// As of [`binary`].
pub fn binary_in(directory: &str, name: &str) -> Result<PathBuf> {
    let path = dir(directory).join(name);
    ensure!(path.is_file(), "no {} component at {}: run scripts/setup", name, path.display());
    Ok(path)
}

/// What a component was built from.
///
/// # Errors
/// It was not built; `scripts/setup` builds it.
pub fn recipe_of(component: &str) -> Result<String> {
    let stamp = bin_dir().join(format!(".{component}.stamp"));
    let stamp = if stamp.is_file() { stamp } else { dir(CONTROL_PLANE).join(format!(".{component}.stamp")) };
    fs::read_to_string(&stamp).with_context(|| format!("read {}: run scripts/setup", stamp.display()))
}

/// Links every component of the set that may be and is the machine's own, and builds every other one whose recipe changed;
/// `say` hears of each step that takes long.
///
/// # Errors
/// Go is missing or a build failed.
pub fn build(set: Set, mut say: impl FnMut(&str)) -> Result<()> {
    let go = output(Command::new("go").args(["env", "GOVERSION"]))?;
    let _lock = alone(&mut say)?;
    for component in NODE.iter().chain(set.beside_the_node()) {
        fs::create_dir_all(component.bin_dir())?;
        let stamp = component.bin_dir().join(format!(".{}.stamp", component.name));
        let system = if set == Set::Node { system::find(component) } else { None };
        let recipe = match &system {
            Some(system) => format!("{} of the system: {:?}", system.version, system.binaries),
            None => component.recipe(&go)?,
        };
        let built = component.files().all(|file| file.is_file());
        if built && fs::read_to_string(&stamp).is_ok_and(|old| old == recipe) {
            continue;
        }
        // What is killed in the middle leaves files that are not whole, and nothing that says what they are of.
        files::remove_if_there(&stamp)?;
        // A link of an earlier time must not be written through.
        component.remove()?;
        match system {
            Some(system) => {
                say(&format!("{} {} of the system", component.name, system.version));
                component.link(&system)?;
            }
            None => {
                say(&format!("building {} from source (minutes, the first time)", component.name));
                component.build()?;
            }
        }
        fs::write(&stamp, recipe)?;
    }
    match set {
        Set::PinnedForTests | Set::PinnedForSoak => criu::install(say),
        Set::Node | Set::Pinned => Ok(()),
    }
}

/// Waits until nobody else builds components here; the lock is held until it is dropped.
fn alone(say: &mut impl FnMut(&str)) -> Result<File> {
    let path = dir(".lock");
    fs::create_dir_all(dir(""))?;
    let lock = File::create(&path).with_context(|| format!("open {}", path.display()))?;
    if lock.try_lock().is_err() {
        say("waiting for another build of components");
        lock.lock().with_context(|| format!("lock {}", path.display()))?;
    }
    Ok(lock)
}

impl Component {
    fn module_dir(&self) -> PathBuf {
        workspace().join("integration/components").join(self.name)
    }

    fn bin_dir(&self) -> PathBuf {
        dir(self.dir)
    }

    /// Its binaries and the links to them.
    fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.binaries.iter().chain(self.names).map(|name| self.bin_dir().join(name))
    }

    fn remove(&self) -> Result<()> {
        self.files().try_for_each(files::remove_if_there)
    }

    fn link(&self, system: &System) -> Result<()> {
        for (name, target) in self.binaries.iter().zip(&system.binaries) {
            symlink(target, self.bin_dir().join(name))
                .with_context(|| format!("link {}", target.display()))?;
        }
        Ok(())
    }

    fn recipe(&self, go: &str) -> Result<String> {
        let mut hash = Sha256::new();
        for path in self.sources()? {
            hash.update(fs::read(&path).with_context(|| format!("read {}", path.display()))?);
        }
        hash.update(format!("{go} {} {} {:?}", self.cgo, self.tags, self.version));
        Ok(crate::image::hex(&hash.finalize()))
    }

    /// The module's files: what it takes from others, and what it has of its own.
    fn sources(&self) -> Result<Vec<PathBuf>> {
        let dir = self.module_dir();
        let mut files = vec![dir.join("go.mod"), dir.join("go.sum")];
        let own = fs::read_dir(&dir).with_context(|| format!("read {}", dir.display()))?;
        for entry in own {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "go") {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    fn build(&self) -> Result<()> {
        let mut flags = "-s -w".to_owned();
        if let Some((variable, module)) = self.version {
            let mut list = Command::new("go");
            list.current_dir(self.module_dir()).args(["list", "-m", "-f", "{{.Version}}", module]);
            flags = format!("{flags} -X {variable}={}", output(&mut list)?);
        }
        let mut out = self.bin_dir().into_os_string();
        out.push("/");
        let status = Command::new("nice")
            .args(["go", "build", "-trimpath", "-tags", self.tags, "-ldflags", &flags, "-o"])
            .arg(out)
            .arg("tool")
            .env("CGO_ENABLED", self.cgo)
            .current_dir(self.module_dir())
            .status()
            .context("start go build")?;
        ensure!(status.success(), "go build of {} ended with {status}", self.name);
        let Some(program) = self.binaries.first() else { return Ok(()) };
        self.names.iter().try_for_each(|name| {
            symlink(program, self.bin_dir().join(name)).with_context(|| format!("link {name} to {program}"))
        })
    }
}

/// What a short command printed, without the line end.
fn output(command: &mut Command) -> Result<String> {
    Ok(printed(command)?.trim().to_owned())
}
