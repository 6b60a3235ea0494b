//! What is to run in a guest, and the files through which host and guest tell each other about it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::components;

/// Where a guest sees what the host shares with it.
pub(super) const SHARE: &str = "/berth";
/// Below the share: the files named here.
pub(super) const EXCHANGE: &str = "exchange";
/// Below the share: files of the host at their own paths.
pub(super) const HOST: &str = "host";
/// The job as JSON.
pub(super) const JOB: &str = "job.json";
/// This program.
pub(super) const PROGRAM: &str = "program";
/// Made by the guest when the command was started.
pub(super) const STARTED: &str = "started";
/// The command's exit code, written by the guest at the end.
pub(super) const STATUS: &str = "status";
/// Directory of what is worth keeping from a failure.
pub(super) const LOGS: &str = "logs";

/// What is process 1 of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Init {
    /// This program: cgroup v2 and nobody in it.
    Plain,
    /// systemd.
    Systemd,
}

/// What the command's input and outputs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdio {
    /// No input; the outputs are the caller's, byte for byte.
    Outputs,
    /// The caller's terminal.
    Terminal,
}

/// A command and its surroundings.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// Names the directory of its logs.
    pub name: String,
    /// What is process 1.
    pub init: Init,
    /// Program and arguments, as paths of the host.
    pub command: Vec<String>,
    /// The whole environment.
    pub environment: BTreeMap<String, String>,
    /// Working directory.
    pub dir: PathBuf,
    /// Directories of the host that the guest sees, read-only and at the same paths.
    pub shares: Vec<PathBuf>,
    /// Directories of programs whose files the guest holds open: what it has read of a file on hostfs is forgotten with the
    /// file's last user.
    pub held: Vec<PathBuf>,
    /// Input and outputs.
    pub stdio: Stdio,
    /// A directory for what the command leaves, which is kept; without it what a failure leaves has one.
    pub kept: Option<PathBuf>,
}

impl Job {
    /// A job that sees the workspace, what is built from it, and the real components.
    ///
    /// # Errors
    /// A path of these does not exist.
    pub fn new(name: &str, init: Init, command: Vec<String>) -> Result<Self> {
        let workspace = components::workspace();
        let built = crate::binaries::dir()?;
        let components = ["bin", "kubernetes"].map(|dir| workspace.join("target/components").join(dir));
        let held = [vec![built.clone()], components.to_vec()].concat();
        let mut shares = vec![workspace.clone(), built];
        // A link in some workspaces.
        if let Ok(components) = workspace.join("target/components").canonicalize() {
            shares.push(components);
        }
        let environment = [
            ("HOME", "/root"),
            ("LANG", "C.UTF-8"),
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ];
        Ok(Self {
            name: name.to_owned(),
            init,
            command,
            environment: environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            dir: workspace,
            shares: apart(shares)?,
            held,
            stdio: Stdio::Outputs,
            kept: None,
        })
    }
}

/// The directories without those that are below another one.
fn apart(mut dirs: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    dirs.sort();
    let mut kept: Vec<PathBuf> = Vec::new();
    for dir in dirs {
        anyhow::ensure!(dir.is_absolute(), "{} is not absolute", dir.display());
        dir.metadata().with_context(|| format!("share {}", dir.display()))?;
        if !kept.iter().any(|above| dir.starts_with(above)) {
            kept.push(dir);
        }
    }
    Ok(kept)
}

/// Where a path of the host is below a directory that stands for the host's root.
pub(super) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_below_a_shared_one_is_not_shared_twice() {
        let dirs = ["/usr/lib", "/usr", "/etc", "/usr/bin"].map(PathBuf::from).to_vec();
        assert_eq!(apart(dirs).unwrap(), ["/etc", "/usr"].map(PathBuf::from));
        let failure = apart(vec!["/no/such/directory".into()]).unwrap_err();
        assert_eq!(failure.to_string(), "share /no/such/directory");
    }

    #[test]
    fn paths_of_the_host_are_found_below_the_share() {
        assert_eq!(below(Path::new("/berth/host"), Path::new("/a/b")), Path::new("/berth/host/a/b"));
    }
}
