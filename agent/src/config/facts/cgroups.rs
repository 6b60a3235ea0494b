//! What the kernel's cgroups can do.

use std::{fs, path::PathBuf};

use berth_core::config::CgroupVersion;
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use super::{FactsError, ONLINE, form, kernel_text};

/// Where cgroups are mounted.
pub(super) const CGROUPS: &str = "/sys/fs/cgroup";

/// Both bound the tasks of the machine; the smaller one counts.
const TASKS_MAX: [&str; 2] = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];

pub(super) fn version() -> Result<CgroupVersion, FactsError> {
    let stat = statfs(CGROUPS)
        .map_err(|errno| FactsError::Read { path: PathBuf::from(CGROUPS), source: errno.into() })?;
    let unified = stat.filesystem_type() == CGROUP2_SUPER_MAGIC;
    Ok(if unified { CgroupVersion::V2 } else { CgroupVersion::V1 })
}

/// Source: `pkg/kubelet/stats/pidlimit/pidlimit_linux.go`.
pub(super) fn pids_max(version: CgroupVersion) -> Result<Option<u64>, FactsError> {
    if !has_controller(version, "pids") {
        return Ok(None);
    }
    let mut least = None;
    for path in TASKS_MAX {
        let tasks: u64 = kernel_text(path)?.trim().parse().map_err(|_not_one| form("a number", path))?;
        least = Some(least.map_or(tasks, |least: u64| least.min(tasks)));
    }
    Ok(least)
}

pub(super) fn cpus(version: CgroupVersion) -> Result<Option<String>, FactsError> {
    match version {
        CgroupVersion::V2 if has_controller(version, "cpuset") => {
            kernel_text(ONLINE).map(|list| Some(list.trim().to_owned()))
        }
        CgroupVersion::V1 | CgroupVersion::V2 => Ok(None),
    }
}

/// Whether levels below the root can have a controller.
pub(super) fn has_controller(version: CgroupVersion, name: &str) -> bool {
    match version {
        CgroupVersion::V1 => PathBuf::from(CGROUPS).join(name).is_dir(),
        CgroupVersion::V2 => {
            let all = fs::read_to_string(format!("{CGROUPS}/cgroup.controllers")).unwrap_or_default();
            all.split_whitespace().any(|controller| controller == name)
        }
    }
}
