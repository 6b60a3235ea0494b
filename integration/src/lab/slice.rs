//! A lab on a machine with systemd.
//!
//! systemd takes process ids as its own, and containers' scopes are asked for by those: so the lab has no pid namespace. Its
//! processes are held together by a slice of its own instead. In that is one scope, which is delegated to the lab, with init
//! and all that is no container; beside it come the slices of pods.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::leaks;
use crate::systemd;
use crate::wait::{self, Look};

const CGROUPS: &str = "/sys/fs/cgroup";
/// Below the scope: the lab's processes. A cgroup that has others below it has no processes itself.
const OWN: &str = "own";
/// Below the scope: what tests make without systemd.
const TASKS: &str = "tasks";
/// How long killed processes may take to be gone.
const END_LIMIT: Duration = Duration::from_secs(20);

/// The slice of a lab.
#[derive(Debug, Clone)]
pub(super) struct Slice {
    stem: String,
}

impl Slice {
    /// That of the lab of this supervisor.
    pub(super) fn of(owner: &str) -> Self {
        // A dash would make it one slice below another.
        Self { stem: format!("bertht{owner}") }
    }

    fn name(&self) -> String {
        format!("{}.slice", self.stem)
    }

    fn scope(&self) -> String {
        format!("{}.scope", self.stem)
    }

    /// Where pods' slices are to be, as `cgroupRoot` names it.
    pub(super) fn cgroup_root(&self) -> String {
        format!("/{}", self.stem)
    }

    /// Where cgroups may be made without systemd.
    pub(super) fn tasks(&self) -> String {
        format!("/{}/{}/{TASKS}", self.name(), self.scope())
    }

    fn dir(&self) -> PathBuf {
        Path::new(CGROUPS).join(self.name())
    }

    /// The program `this` in a new scope of this slice: systemd-run becomes it.
    pub(super) fn command(&self, this: &Path) -> Command {
        let mut command = Command::new("systemd-run");
        command.args(["--scope", "--quiet", "--collect", "--slice", &self.name(), "--unit", &self.scope()]);
        command.args(["--property=Delegate=yes", "--property=TasksMax=infinity"]);
        command.arg("--").arg(this).args(env::args_os().skip(1));
        command
    }

    /// Leaves the scope's own cgroup to what is below it.
    pub(super) fn enter(&self) -> Result<()> {
        let own = self.dir().join(self.scope()).join(OWN);
        fs::create_dir(&own).with_context(|| format!("make {}", own.display()))?;
        fs::write(own.join("cgroup.procs"), "0").with_context(|| format!("enter {}", own.display()))
    }

    /// The processes of the lab.
    pub(super) fn processes(&self) -> Result<Vec<u32>> {
        let mut found = Vec::new();
        for dir in leaks::with_children(self.dir())? {
            // It may go between the two looks.
            let list = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            found.extend(list.lines().filter_map(|line| line.parse::<u32>().ok()));
        }
        Ok(found)
    }

    /// Cgroups but for those that every lab has, children before parents.
    pub(super) fn cgroups(&self) -> Result<Vec<PathBuf>> {
        let scope = self.dir().join(self.scope());
        let of_every_lab = [self.dir(), scope.join(OWN), scope];
        Ok(leaks::with_children(self.dir())?.into_iter().filter(|dir| !of_every_lab.contains(dir)).collect())
    }

    /// Units but for those that every lab has.
    pub(super) fn units(&self) -> Result<Vec<systemd::Unit>> {
        let mut units = systemd::units_below(&self.name())?;
        units.retain(|unit| unit.name != self.scope());
        Ok(units)
    }

    /// Has systemd stop the slices of pods, and removes what tests made by hand.
    pub(super) fn remove_cgroups(&self) -> Result<()> {
        systemd::stop(&[&format!("{}-kubepods.slice", self.stem)])?;
        leaks::remove(&self.cgroups()?)
    }

    /// Ends every process and every unit.
    pub(super) fn end(&self) -> Result<()> {
        match fs::write(self.dir().join("cgroup.kill"), "1") {
            Err(failure) if failure.kind() != io::ErrorKind::NotFound => {
                return Err(failure).context("kill what is in the lab");
            }
            _ => {}
        }
        wait::until("the lab's processes to end", END_LIMIT, || {
            let left = self.processes()?;
            Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(format!("{left:?}")) })
        })?;
        systemd::stop(&[&self.name()])?;
        let left: Vec<String> =
            systemd::units_below(&self.name())?.into_iter().map(|unit| unit.name).collect();
        systemd::stop(&left.iter().map(String::as_str).collect::<Vec<_>>())
    }
}
