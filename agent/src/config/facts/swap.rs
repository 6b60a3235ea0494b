//! Swap of the machine.

use std::{
    fs,
    path::{Path, PathBuf},
};

use berth_core::config::CgroupVersion;
use rustix::mount::{FsOpenFlags, fsconfig_set_flag, fsopen};

use super::{
    FactsError,
    cgroups::{CGROUPS, has_controller},
    form, kernel_text, meminfo_bytes, text_or_empty,
};

/// Swap of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swap {
    /// Whether there is any.
    pub is_on: bool,
    /// Whether cgroups can bound it.
    pub is_counted: bool,
    /// How much there is.
    pub bytes: u64,
}

pub(super) fn swap(version: CgroupVersion) -> Result<Swap, FactsError> {
    let table = text_or_empty(Path::new("/proc/swaps"))?;
    let memory = kernel_text("/proc/meminfo")?;
    Ok(Swap {
        is_on: has_areas(&table),
        is_counted: is_counted(version),
        bytes: meminfo_bytes(&memory, "SwapTotal").ok_or_else(|| form("SwapTotal", "/proc/meminfo"))?,
    })
}

/// Whether a table of swap areas has a line below its head. Without swap in the kernel there is no table.
/// Source: `pkg/kubelet/util/swap/swap_util.go`.
fn has_areas(table: &str) -> bool {
    table.trim().lines().count() > 1
}

/// Whether a tmpfs can be kept out of swap: since Linux 6.3, and not in a user namespace. Nothing is mounted to find out. Source:
/// `IsTmpfsNoswapOptionSupported` of `pkg/kubelet/util/swap/swap_util.go`.
pub(super) fn has_noswap() -> bool {
    fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).and_then(|tmpfs| fsconfig_set_flag(&tmpfs, "noswap")).is_ok()
}

/// Whether a level with the memory controller has the file that bounds swap. The root has neither, so in version 2 the
/// agent's own level and those below the root are looked at. Where none has the controller yet, as on a machine that has
/// just begun, the kernel's command line decides, by which alone it does not count.
/// Source: `checkSwapControllerAvailability` of the kubelet, which knows only its own level.
fn is_counted(version: CgroupVersion) -> bool {
    let root = Path::new(CGROUPS);
    match version {
        CgroupVersion::V1 => root.join("memory/memory.memsw.limit_in_bytes").exists(),
        CgroupVersion::V2 => {
            let bounded = |level: &PathBuf| level.join("memory.max").exists();
            match own_level().into_iter().chain(levels_below(root)).find(bounded) {
                Some(level) => level.join("memory.swap.max").exists(),
                None => has_controller(version, "memory") && kernel_counts(),
            }
        }
    }
}

fn own_level() -> Option<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(CGROUPS).join(path))
}

fn levels_below(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn kernel_counts() -> bool {
    let switched_off = |line: &str| line.split_whitespace().any(|word| word == "swapaccount=0");
    Path::new("/proc/swaps").exists()
        && !fs::read_to_string("/proc/cmdline").is_ok_and(|line| switched_off(&line))
}

#[cfg(test)]
mod tests {
    use nix::mount::{MsFlags, mount};

    use super::*;
    use crate::own_mounts::with_own_mounts;

    #[test]
    fn a_tmpfs_is_kept_out_of_swap_where_a_mount_of_it_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let is_mounted = with_own_mounts(|| {
            mount(Some("tmpfs"), dir.path(), Some("tmpfs"), MsFlags::empty(), Some("noswap")).is_ok()
        });
        assert_eq!(has_noswap(), is_mounted);
    }

    #[test]
    fn areas_are_lines_below_the_head() {
        let head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        let area = "/dev/sda2                               partition\t8388604\t\t0\t\t-2\n";
        for (table, expected) in [
            (String::new(), false),
            (head.to_owned(), false),
            (format!("{head}\n"), false),
            (format!("{head}{area}"), true),
            (format!("{head}{area}/swapfile file 1 0 -3\n"), true),
        ] {
            assert_eq!(has_areas(&table), expected, "{table:?}");
        }
    }
}
