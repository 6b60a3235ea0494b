//! Berth's own programs, built with the profile and into the target directory of the running one.
//!
//! `BERTH_BIN_DIR` names a directory of programs to use instead: those of a package, say.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::components;

const BIN_DIR: &str = "BERTH_BIN_DIR";

/// Builds agent, shim and CNI command, unless they are given; cargo does nothing for what is fresh.
///
/// # Errors
/// Cargo failed.
pub fn build() -> Result<()> {
    if env::var_os(BIN_DIR).is_some() {
        return Ok(());
    }
    let mut cargo = cargo("build")?;
    // As everything else is built: other packages at once would be other features of the same crates, built again.
    cargo.args(["--quiet", "--workspace", "--bins"]);
    let status = cargo.status().context("start cargo")?;
    ensure!(status.success(), "cargo build ended with {status}");
    Ok(())
}

/// A test program of the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestProgram {
    /// The unit tests of a package's library.
    Lib(&'static str),
    /// A package's test of this name.
    Test(&'static str, &'static str),
    /// A program that [`build`] builds.
    Program(&'static str),
}

/// Builds a test program and gives its path.
///
/// # Errors
/// Cargo failed, or told of no such program.
pub fn build_test(program: TestProgram) -> Result<PathBuf> {
    let (selection, package, name, kind) = match program {
        TestProgram::Lib(package) => (vec!["--lib"], package, package, "lib"),
        TestProgram::Test(package, name) => (vec!["--test", name], package, name, "test"),
        TestProgram::Program(name) => return path(name),
    };
    let mut cargo = cargo("test")?;
    cargo.args(["--quiet", "--no-run", "--message-format", "json-render-diagnostics", "--workspace"]);
    let done = cargo.args(selection).stderr(Stdio::inherit()).output().context("start cargo")?;
    ensure!(done.status.success(), "cargo test --no-run, for {name}, ended with {}", done.status);
    let messages = String::from_utf8(done.stdout)?;
    let mut programs = messages.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let target = &message["target"];
        let is_it = target["name"] == name
            && target["kind"][0] == kind
            && is_of(message["package_id"].as_str().unwrap_or_default(), package);
        message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
    });
    programs.next().with_context(|| format!("cargo built no test program {name}"))
}

/// Whether cargo's id is that of a package: `…/directory#name@version`, or `…/name#version` where both are the same.
fn is_of(id: &str, package: &str) -> bool {
    let end = id.rsplit('/').next().unwrap_or(id);
    end.contains(&format!("#{package}@")) || end.starts_with(&format!("{package}#"))
}

/// Cargo without what it tells the programs that it runs of their packages: build scripts that look at that would run again, and
/// everything after them be built again, whenever cargo is called by a shell and by one of its programs in turn.
#[must_use]
pub fn as_from_a_shell() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let is_told = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "OUT_DIR"
        });
        if is_told {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Cargo, with the profile and the target directory of this program.
fn cargo(command: &str) -> Result<Command> {
    let profile_dir = dir()?;
    let (Some(target), Some(profile)) = (profile_dir.parent(), profile_dir.file_name()) else {
        anyhow::bail!("{} is no target directory", profile_dir.display());
    };
    let profile = if profile == "debug" { "dev".into() } else { profile.to_owned() };
    let mut cargo = as_from_a_shell();
    cargo.arg(command).arg("--profile").arg(profile).arg("--target-dir").arg(target);
    cargo.current_dir(components::workspace());
    Ok(cargo)
}

/// The directory of the programs.
///
/// # Errors
/// The path of this program is not known.
pub fn dir() -> Result<PathBuf> {
    if let Some(dir) = env::var_os(BIN_DIR) {
        return Ok(dir.into());
    }
    let this = env::current_exe()?;
    let mut dir = this.parent().context("this program has no directory")?;
    // Tests are in `deps`, one below.
    if dir.ends_with("deps") {
        dir = dir.parent().unwrap_or(dir);
    }
    Ok(dir.to_owned())
}

/// The path of one program.
///
/// # Errors
/// It was not built.
pub fn path(name: &str) -> Result<PathBuf> {
    let path = dir()?.join(name);
    ensure!(path.is_file(), "{} is missing: call binaries::build first", path.display());
    Ok(path)
}

/// A `PATH` with `first`, our programs, the real components and the system's.
///
/// # Errors
/// A directory's name cannot be in a `PATH`.
pub fn search_path(first: Option<&Path>) -> Result<OsString> {
    let own = [dir()?, components::bin_dir()];
    let system = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let all = first.map(Path::to_owned).into_iter().chain(own).chain(system.map(PathBuf::from));
    Ok(env::join_paths(all)?)
}

/// The first program of this name in [`search_path`].
///
/// # Errors
/// There is none.
pub fn find(name: &str) -> Result<PathBuf> {
    let path = search_path(None)?;
    let found = env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file());
    found.with_context(|| format!("{name} is in no directory of {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_known_by_its_id() {
        assert!(is_of("path+file:///work/agent/core#berth-core@0.1.0", "berth-core"));
        assert!(is_of("path+file:///work/berth#0.1.0", "berth"));
        assert!(!is_of("path+file:///work/berth/cni#berth-cni@0.1.0", "berth"));
    }
}
