//! Components that the machine has already, when they are new enough to stand in for the pinned ones.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Component, bin_dir};

/// Where distributions put CNI plugins.
const CNI_DIRS: &[&str] = &["/opt/cni/bin", "/usr/lib/cni"];

/// What is wanted of the machine's own.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted {
    /// Programs in `PATH`; the first of them tells the version.
    Programs { at_least: (u32, u32) },
    /// CNI plugins that all know this version of the specification.
    Plugins { specification: &'static str },
    /// Nothing else will do: it is there for its version.
    Nothing,
}

/// A component of the machine.
#[derive(Debug)]
pub(super) struct System {
    pub(super) version: String,
    pub(super) binaries: Vec<PathBuf>,
}

/// The machine's own component, when it is whole and new enough.
pub(super) fn find(component: &Component) -> Option<System> {
    let path = std::env::var_os("PATH")?;
    match component.system {
        Wanted::Programs { at_least } => {
            let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
            let binaries =
                component.binaries.iter().map(|name| dirs.iter().find_map(|dir| program(dir, name)));
            let binaries: Vec<PathBuf> = binaries.collect::<Option<_>>()?;
            let said =
                Command::new(binaries.first()?).arg("--version").stderr(Stdio::null()).output().ok()?;
            let version = version(&String::from_utf8_lossy(&said.stdout))?;
            (version >= at_least)
                .then(|| System { version: format!("{}.{}", version.0, version.1), binaries })
        }
        Wanted::Nothing => None,
        Wanted::Plugins { specification } => CNI_DIRS.iter().find_map(|dir| {
            let binaries = component.binaries.iter().map(|name| program(Path::new(dir), name));
            let binaries: Vec<PathBuf> = binaries.collect::<Option<_>>()?;
            binaries.iter().all(|plugin| knows(plugin, specification)).then_some(())?;
            Some(System { version: specification.to_owned(), binaries })
        }),
    }
}

/// A program with its links resolved; ours are not the machine's own, wherever `PATH` leads.
fn program(dir: &Path, name: &str) -> Option<PathBuf> {
    let path = dir.join(name).canonicalize().ok()?;
    if bin_dir().canonicalize().is_ok_and(|ours| path.starts_with(ours)) {
        return None;
    }
    let found = fs::metadata(&path).ok()?;
    (found.is_file() && found.permissions().mode() & 0o111 != 0).then_some(path)
}

fn knows(plugin: &Path, specification: &str) -> bool {
    let said = Command::new(plugin)
        .env("CNI_COMMAND", "VERSION")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    said.is_ok_and(|said| {
        serde_json::from_slice::<serde_json::Value>(&said.stdout).is_ok_and(|answer| {
            answer["supportedVersions"]
                .as_array()
                .is_some_and(|all| all.iter().any(|one| one == specification))
        })
    })
}

/// Major and minor version from the first line of `--version`: the first word of the form `[v]N.N…`.
fn version(said: &str) -> Option<(u32, u32)> {
    said.lines().next()?.split_whitespace().find_map(|word| {
        let mut parts = word.strip_prefix('v').unwrap_or(word).split('.');
        let (major, minor) = (parts.next()?, parts.next()?);
        let digits = minor.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(minor.len());
        Some((major.parse().ok()?, minor.get(..digits)?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_what_programs_say() {
        for (said, wanted) in [
            ("containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7", Some((2, 1))),
            ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+b1", Some((1, 6))),
            ("runc version 1.1.5+ds1\ncommit: 1.1.5", Some((1, 1))),
            ("runc version 1.5.0-rc.1", Some((1, 5))),
            ("registry github.com/distribution/distribution/v3 v3.0.0", Some((3, 0))),
            ("registry v2", None),
            ("", None),
            ("no version here\nv9.9.9", None),
            ("v.. 1.x 99999999999.1", None),
        ] {
            assert_eq!(version(said), wanted, "{said}");
        }
    }
}
