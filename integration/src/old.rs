//! Agent and shim of an earlier commit, for tests of what an upgrade meets on a running node.
//!
//! Built once from the repository's own history, into `target/old/<commit>`; what is there is taken as it is.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::{binaries, components, files};

/// The last commit whose agent writes records of version 1, and whose shim tells no version of its protocol.
pub const VERSION_1: &str = "7a5d009";

/// Packages and their programs.
const PROGRAMS: [(&str, &str); 2] = [("berth", "berth"), ("berth-shim", "containerd-shim-berth-v1")];

/// How the programs of a commit are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profiles {
    /// As tests are.
    Tests,
    /// As they are shipped.
    Shipped,
}

impl Profiles {
    /// Of agent and shim: the name of each profile and of its directory.
    fn names(self) -> [(&'static str, &'static str); 2] {
        match self {
            Self::Tests => [("dev", "debug"); 2],
            Self::Shipped => [("release", "release"), ("shim", "shim")],
        }
    }
}

/// The directory of the programs of a commit; [`build`] makes it.
///
/// # Errors
/// The path of this program is not known.
pub fn dir(commit: &str, profiles: Profiles) -> Result<PathBuf> {
    let profile = binaries::dir()?;
    let target = profile.parent().context("the programs are in no target directory")?;
    Ok(target.join("old").join(match profiles {
        Profiles::Tests => commit.to_owned(),
        Profiles::Shipped => format!("{commit}-shipped"),
    }))
}

/// Whether a shallow clone leaves out a commit.
#[must_use]
pub fn is_cut_off(commit: &str) -> bool {
    let answer = |args: &[&str]| git().args(args).stderr(Stdio::null()).output();
    let is_there =
        answer(&["cat-file", "-e", &format!("{commit}^{{commit}}")]).is_ok_and(|it| it.status.success());
    let is_shallow =
        answer(&["rev-parse", "--is-shallow-repository"]).is_ok_and(|it| it.stdout.starts_with(b"true"));
    !is_there && is_shallow
}

fn git() -> Command {
    let mut git = Command::new("git");
    // The clone may be another user's.
    git.current_dir(components::workspace()).args(["-c", "safe.directory=*"]);
    git
}

/// Builds agent and shim as they were at `commit`.
///
/// # Errors
/// The commit is not in the repository, or does not build.
pub fn build(commit: &str, profiles: Profiles) -> Result<()> {
    let dir = dir(commit, profiles)?;
    if PROGRAMS.iter().all(|(_, program)| dir.join(program).is_file()) {
        return Ok(());
    }
    let (source, target) = (dir.join("source"), dir.join("target"));
    if source.exists() {
        files::remove_dir(&source)?;
    }
    files::make_dir(&source)?;
    unpack(commit, &source)?;
    for ((package, program), (profile, built)) in PROGRAMS.into_iter().zip(profiles.names()) {
        let mut cargo = binaries::as_from_a_shell();
        cargo.current_dir(&source).args(["build", "--quiet", "--locked", "--bins", "-p", package]);
        let status = cargo.args(["--profile", profile, "--target-dir"]).arg(&target).status();
        let status = status.context("start cargo")?;
        ensure!(status.success(), "cargo build of {commit} ended with {status}");
        fs::rename(target.join(built).join(program), dir.join(program))
            .with_context(|| format!("keep {program} of {commit}"))?;
    }
    files::remove_dir(&source)?;
    files::remove_dir(&target).context("clear up after the build")
}

/// The tree of a commit, without its history.
fn unpack(commit: &str, into: &std::path::Path) -> Result<()> {
    let mut git = git()
        .args(["archive", "--format=tar", commit])
        .stdout(Stdio::piped())
        .spawn()
        .context("start git")?;
    let tar = git.stdout.take().context("git has no output")?;
    let mut unpack = Command::new("tar");
    let unpacked = unpack.arg("-x").arg("-C").arg(into).stdin(tar).status().context("start tar")?;
    let archived = git.wait().context("wait for git")?;
    ensure!(
        archived.success() && unpacked.success(),
        "unpack {commit}: git ended with {archived}, tar with {unpacked}; the test needs the repository with its history (git fetch --unshallow)"
    );
    Ok(())
}
