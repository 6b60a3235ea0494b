//! Programs of Debian's newest packages, unpacked beside the components with the C library that they were built with, and started by that
//! one's loader: nothing is installed, and nothing of the machine is configured.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{bin_dir, output};
use crate::files;

/// A program of a package.
pub(super) struct Unpacked {
    /// The package, and the directory beside the components that it is unpacked into.
    pub(super) package: &'static str,
    /// Where the program is in it.
    pub(super) program: &'static str,
    /// What the program is given before all else, by the directory of the libraries.
    pub(super) arguments: fn(&Path) -> String,
}

impl Unpacked {
    /// Puts a script that starts it in place of `script`.
    pub(super) fn install(&self, script: &Path) -> Result<()> {
        let dir = bin_dir().canonicalize()?.with_file_name(self.package);
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        download(self.package, &dir)?;
        unpack(&dir)?;
        let root = dir.join("root");
        let libraries = root.join(format!("usr/lib/{}-linux-gnu", env::consts::ARCH));
        let start = format!("{} --library-path {}", loader(&libraries)?.display(), libraries.display());
        let program = root.join(self.program);
        let arguments = (self.arguments)(&libraries);
        files::write_program(
            script,
            &format!("#!/bin/sh\nexec {start} {} {arguments} \"$@\"\n", program.display()),
        )
    }
}

/// Has apt fetch a package and all that it depends on, as if nothing were installed.
fn download(package: &str, dir: &Path) -> Result<()> {
    for part in ["lists/partial", "cache/archives/partial", "state"] {
        fs::create_dir_all(dir.join(part))?;
    }
    let sites = output(Command::new("apt-get").args(["indextargets", "--format", "$(SITE)"]))?;
    let site = sites.lines().next().context("apt knows no site to fetch packages from")?;
    let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
    fs::write(dir.join("sources.list"), format!("deb [signed-by={keys}] {site} sid main\n"))?;
    fs::write(dir.join("status"), "")?;
    let at = dir.display();
    let settings = [
        format!("Dir::Etc::sourcelist \"{at}/sources.list\";"),
        "Dir::Etc::sourceparts \"-\";".to_owned(),
        format!("Dir::State \"{at}/state\";"),
        format!("Dir::State::lists \"{at}/lists\";"),
        format!("Dir::State::status \"{at}/status\";"),
        format!("Dir::Cache \"{at}/cache\";"),
        "Acquire::Languages \"none\";".to_owned(),
        "APT::Sandbox::User \"root\";".to_owned(),
    ];
    let config = dir.join("apt.conf");
    fs::write(&config, settings.join("\n") + "\n")?;
    let apt = |args: &[&str]| output(Command::new("apt-get").args(args).env("APT_CONFIG", &config));
    apt(&["update", "-qq"])?;
    apt(&["install", "-qq", "--download-only", "--yes", "--no-install-recommends", package])?;
    Ok(())
}

fn unpack(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir.join("cache/archives"))? {
        let package = entry?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            output(Command::new("dpkg-deb").arg("-x").arg(package).arg(dir.join("root")))?;
        }
    }
    for spent in ["cache", "lists", "state"] {
        fs::remove_dir_all(dir.join(spent))?;
    }
    Ok(())
}

fn loader(libraries: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(libraries).with_context(|| format!("list {}", libraries.display()))?;
    let mut names = entries.flatten().map(|entry| entry.path());
    names
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux")))
        .with_context(|| format!("no loader in {}", libraries.display()))
}
