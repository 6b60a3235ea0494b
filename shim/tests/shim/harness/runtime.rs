//! The OCI runtimes that the shim is tested with.

use std::env;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// This program under another name.
    Fake,
    Crun,
    Runc,
}

impl Runtime {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Runtime::Fake => "fake",
            Runtime::Crun => "crun",
            Runtime::Runc => "runc",
        }
    }

    /// The program, or where it was looked for. `dir` is where the fake one may be put.
    pub(crate) fn program(self, dir: &Path) -> Result<PathBuf, String> {
        match self {
            Runtime::Fake => {
                let link = dir.join(crate::fake_runtime::NAME);
                symlink(env::current_exe().unwrap(), &link).unwrap();
                Ok(link)
            }
            Runtime::Crun | Runtime::Runc => find(self.name()),
        }
    }

    /// What the agent would put before every command.
    pub(crate) fn args(self) -> Vec<String> {
        match self {
            Runtime::Crun => vec!["--cgroup-manager=cgroupfs".to_owned()],
            Runtime::Fake | Runtime::Runc => Vec::new(),
        }
    }
}

/// A runtime among the components that the workspace builds, or installed.
fn find(name: &str) -> Result<PathBuf, String> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/components/bin");
    let path = env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = std::iter::once(built).chain(env::split_paths(&path)).collect();
    let found = places.iter().map(|place| place.join(name)).find(|program| program.is_file());
    found.ok_or_else(|| format!("{name} is in none of {places:?}: run scripts/setup"))
}
