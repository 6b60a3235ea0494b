//! The real components of a node, built from the pinned Go modules in `integration/components`.
//!
//! Invariant: a stamp beside the binaries holds the recipe they were built with (module files, Go's
//! version, flags); a component is rebuilt exactly when its recipe differs from the stamp.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

/// A Go module with `tool` directives, and how it is built.
#[derive(Debug)]
struct Component {
    name: &'static str,
    /// What `go build tool` leaves behind.
    binaries: &'static [&'static str],
    cgo: &'static str,
    tags: &'static str,
    /// Variable that receives the version of the module beside it, at link time.
    version: Option<(&'static str, &'static str)>,
}

const ALL: &[Component] = &[
    Component {
        name: "cni",
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
        cgo: "0",
        tags: "",
        version: None,
    },
    Component {
        name: "containerd",
        binaries: &["containerd", "containerd-shim-runc-v2", "ctr"],
        cgo: "0",
        tags: "no_btrfs no_zfs no_devmapper no_aufs",
        version: Some((
            "github.com/containerd/containerd/v2/version.Version",
            "github.com/containerd/containerd/v2",
        )),
    },
    Component { name: "runc", binaries: &["runc"], cgo: "1", tags: "seccomp", version: None },
    Component { name: "registry", binaries: &["registry"], cgo: "0", tags: "", version: None },
];

/// The top folder of the workspace.
#[must_use]
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The folder of the built components.
#[must_use]
pub fn bin_dir() -> PathBuf {
    workspace().join("target/components/bin")
}

/// The path of a component's binary.
///
/// # Errors
/// It was not built; `scripts/setup` builds it.
pub fn binary(name: &str) -> Result<PathBuf> {
    let path = bin_dir().join(name);
    ensure!(path.is_file(), "no {} component at {}: run scripts/setup", name, path.display());
    Ok(path)
}

/// Builds every component whose recipe changed; `say` hears of each step that takes long.
///
/// # Errors
/// Go is missing or a build failed.
pub fn build_all(mut say: impl FnMut(&str)) -> Result<()> {
    fs::create_dir_all(bin_dir())?;
    let go = output(Command::new("go").args(["env", "GOVERSION"]))?;
    for component in ALL {
        let stamp = bin_dir().join(format!(".{}.stamp", component.name));
        let recipe = component.recipe(&go)?;
        let built = component.binaries.iter().all(|b| bin_dir().join(b).is_file());
        if built && fs::read_to_string(&stamp).is_ok_and(|old| old == recipe) {
            continue;
        }
        say(&format!("building {} from source (minutes, the first time)", component.name));
        component.build()?;
        fs::write(&stamp, recipe)?;
    }
    Ok(())
}

impl Component {
    fn module_dir(&self) -> PathBuf {
        workspace().join("integration/components").join(self.name)
    }

    fn recipe(&self, go: &str) -> Result<String> {
        let mut hash = Sha256::new();
        for file in ["go.mod", "go.sum"] {
            let path = self.module_dir().join(file);
            hash.update(fs::read(&path).with_context(|| format!("read {}", path.display()))?);
        }
        hash.update(format!("{go} {} {} {:?}", self.cgo, self.tags, self.version));
        Ok(crate::image::hex(&hash.finalize()))
    }

    fn build(&self) -> Result<()> {
        let mut flags = "-s -w".to_owned();
        if let Some((variable, module)) = self.version {
            let mut list = Command::new("go");
            list.current_dir(self.module_dir()).args(["list", "-m", "-f", "{{.Version}}", module]);
            flags = format!("{flags} -X {variable}={}", output(&mut list)?);
        }
        let mut out = bin_dir().into_os_string();
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
        Ok(())
    }
}

/// What a short command printed, without the line end.
fn output(command: &mut Command) -> Result<String> {
    let done = command.output().with_context(|| format!("start {command:?}"))?;
    ensure!(
        done.status.success(),
        "{command:?} ended with {}: {}",
        done.status,
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(String::from_utf8(done.stdout)?.trim().to_owned())
}
