//! The real components of a node: the machine's own where they are new enough, else built from the pinned Go modules in
//! `integration/components`.
//!
//! Invariant: a stamp beside the binaries holds the recipe they were built with (module files, Go's
//! version, flags); a component is rebuilt exactly when its recipe differs from the stamp.

mod criu;
mod debian;
mod list;
mod prometheus;
mod rsyslog;
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
    /// plane, criu and rsyslog.
    PinnedForTests,
    /// Those, and what only the soak uses.
    PinnedForSoak,
    /// Those for tests, and the suite for clusters of upstream.
    PinnedForConformance,
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
    /// Suites that are built as programs of their own.
    tests: &'static [TestProgram],
    cgo: &'static str,
    tags: &'static str,
    /// Variable that receives the version of the module beside it, at link time.
    version: Option<(&'static str, &'static str)>,
    /// What the machine's own has to be to stand in for it.
    system: Wanted,
}

/// A suite of Go as a program.
#[derive(Debug)]
struct TestProgram {
    name: &'static str,
    package: &'static str,
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
/// The oldest API server that the soak has a node of 1.36 beside.
pub const OLD_API_SERVER: &str = "kube-apiserver-1.34";
/// The suite for clusters of upstream, and the directory of its programs.
pub const E2E: &str = "e2e";

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
    for component in set.components() {
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
        Set::PinnedForTests | Set::PinnedForSoak | Set::PinnedForConformance => {
            criu::install(&mut say)?;
            rsyslog::install(say)
        }
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
        let tests = self.tests.iter().map(|test| &test.name);
        self.binaries.iter().chain(self.names).chain(tests).map(|name| self.bin_dir().join(name))
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
        for test in self.tests {
            hash.update(format!("{} {}", test.name, test.package));
        }
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
        let ways = ["-trimpath", "-tags", self.tags, "-ldflags", &flags, "-o"];
        self.go(Command::new("nice").args(["go", "build"]).args(ways).arg(out).arg("tool"))?;
        for test in self.tests {
            let to = self.bin_dir().join(test.name);
            let mut go = Command::new("nice");
            self.go(go.args(["go", "test", "-c", "-vet=off"]).args(ways).arg(to).arg(test.package))?;
        }
        let Some(program) = self.binaries.first() else { return Ok(()) };
        self.names.iter().try_for_each(|name| {
            symlink(program, self.bin_dir().join(name)).with_context(|| format!("link {name} to {program}"))
        })
    }

    fn go(&self, command: &mut Command) -> Result<()> {
        command.env("CGO_ENABLED", self.cgo).current_dir(self.module_dir());
        let status = command.status().context("start go")?;
        ensure!(status.success(), "a build of {} ended with {status}: {command:?}", self.name);
        Ok(())
    }
}

/// What a short command printed, without the line end.
fn output(command: &mut Command) -> Result<String> {
    Ok(printed(command)?.trim().to_owned())
}
