//! What a body left behind: processes, mounts, links, cgroups, units, files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::World;
use crate::wait::{self, Look};
use crate::{cgroup, files, links};

/// How long leftovers may take to vanish (a shim ends a moment after its last container).
const SETTLE: Duration = Duration::from_secs(5);

/// What was there before the body.
#[derive(Debug)]
pub(super) struct Baseline {
    mounts: BTreeSet<String>,
    links: BTreeSet<String>,
}

impl Baseline {
    pub(super) fn take() -> Result<Self> {
        Ok(Self { mounts: mounts()?, links: links::names()? })
    }

    /// Waits until nothing is left but what was there before.
    pub(super) fn check(&self, world: &World) -> Result<()> {
        wait::until("the lab to be empty", SETTLE, || {
            reap()?;
            let left = self.left(world)?;
            Ok(if left.is_empty() {
                Look::Ready(())
            } else {
                Look::NotYet(format!("left behind:\n  {}", left.join("\n  ")))
            })
        })
    }

    fn left(&self, world: &World) -> Result<Vec<String>> {
        let mut left: Vec<String> = processes(world)?;
        left.extend(mounts()?.difference(&self.mounts).map(|m| format!("mount {m}")));
        left.extend(links::names()?.difference(&self.links).map(|l| format!("link {l}")));
        for group in world.cgroups()? {
            left.push(format!("cgroup {}", group.display()));
        }
        for unit in world.units()? {
            left.push(format!("unit {} {}", unit.name, unit.state));
        }
        for namespace in files::list("/run/netns")? {
            left.push(format!("network namespace {}", namespace.display()));
        }
        Ok(left)
    }
}

/// Our cgroups in every hierarchy, children before parents.
pub(super) fn cgroups(name: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for hierarchy in cgroup::hierarchies()? {
        found.extend(with_children(hierarchy.join(name))?);
    }
    Ok(found)
}

/// A cgroup and those below it, children before parents; none when it is not there.
pub(super) fn with_children(dir: PathBuf) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if dir.is_dir() {
        children_first(dir, &mut found)?;
    }
    Ok(found)
}

/// Removes cgroups in their order. One that goes by itself meanwhile, as systemd's do, is no concern.
pub(super) fn remove(groups: &[PathBuf]) -> Result<()> {
    for group in groups {
        files::there(fs::remove_dir(group)).with_context(|| format!("remove cgroup {}", group.display()))?;
    }
    Ok(())
}

fn children_first(dir: PathBuf, found: &mut Vec<PathBuf>) -> Result<()> {
    for child in files::directories_if_there(&dir)? {
        children_first(child, found)?;
    }
    found.push(dir);
    Ok(())
}

/// Every process of the lab but this one.
fn processes(world: &World) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for number in world.processes()?.into_iter().filter(|number| *number != process::id()) {
        // It may end between the looks.
        let process = Path::new("/proc").join(number.to_string());
        let read = |file: &str| fs::read_to_string(process.join(file)).unwrap_or_default();
        let status = read("status");
        let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim();
        let dir = fs::read_link(process.join("cwd")).unwrap_or_default();
        found.push(format!(
            "process {number} {}({}, child of {}, in {})",
            read("cmdline").replace('\0', " "),
            of("State:"),
            of("PPid:"),
            dir.display(),
        ));
    }
    Ok(found)
}

/// Every process of the namespace.
pub(super) fn numbered() -> Result<Vec<u32>> {
    let dirs = files::directories_if_there("/proc")?;
    Ok(dirs.iter().filter_map(|dir| dir.file_name()?.to_str()?.parse().ok()).collect())
}

fn mounts() -> Result<BTreeSet<String>> {
    Ok(files::mount_points()?.into_iter().collect())
}

fn reap() -> Result<()> {
    loop {
        match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(()),
            Ok(_) => {}
            Err(failure) => return Err(failure).context("reap"),
        }
    }
}
