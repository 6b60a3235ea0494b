//! criu, which a test needs that runs on this very kernel: the machine's own where it does, else Debian's newest.
//!
//! Older ones do not know newer kernels (3.17 fails at the vDSO of 6.18). The newest is unpacked beside the components
//! with the C library that it was built with, and started by that one's loader: nothing is installed.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{bin_dir, output};
use crate::files;

const NAME: &str = "criu";

/// Puts a criu that works here among the components.
pub(super) fn install(mut say: impl FnMut(&str)) -> Result<()> {
    let program = bin_dir().join(NAME);
    if works(&program) {
        return Ok(());
    }
    if program.symlink_metadata().is_ok() {
        fs::remove_file(&program)?;
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let own = env::split_paths(&path).map(|dir| dir.join(NAME)).find(|own| works(own));
    if let Some(own) = own {
        say("criu of the system");
        return symlink(own, program).context("link criu");
    }
    say("unpacking criu with its libraries");
    let dir = bin_dir().canonicalize()?.with_file_name(NAME);
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    download(&dir)?;
    unpack(&dir)?;
    write_program(&dir.join("root"), &program)?;
    ensure!(works(&program), "criu does not work on this kernel: see {} check", program.display());
    Ok(())
}

/// Whether the kernel has everything that this criu needs.
fn works(program: &Path) -> bool {
    let mut check = Command::new(program);
    check.arg("check").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    check.status().is_ok_and(|status| status.success())
}

/// Has apt fetch criu and all that it depends on, as if nothing were installed.
fn download(dir: &Path) -> Result<()> {
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
    apt(&["install", "-qq", "--download-only", "--yes", "--no-install-recommends", NAME])?;
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

/// A script that starts criu with the loader and the libraries beside it.
fn write_program(root: &Path, program: &Path) -> Result<()> {
    let libraries = root.join(format!("usr/lib/{}-linux-gnu", env::consts::ARCH));
    let loader = loader(&libraries)?;
    let script = format!(
        "#!/bin/sh\nexec {} --library-path {} {}/usr/sbin/criu \"$@\"\n",
        loader.display(),
        libraries.display(),
        root.display()
    );
    files::write_program(program, &script)
}

fn loader(libraries: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(libraries).with_context(|| format!("list {}", libraries.display()))?;
    let mut names = entries.flatten().map(|entry| entry.path());
    names
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux")))
        .with_context(|| format!("no loader in {}", libraries.display()))
}
