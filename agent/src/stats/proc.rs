//! Files of `/proc` and `/sys`, read whole with a bound.

use std::{collections::BTreeMap, fs::File, io::Read, path::Path};

use berth_core::stats::{Machine, memory_info, topology};
use jiff::Timestamp;

use crate::cluster::node::machine_names;

/// Largest file that is read; of a longer one the beginning counts. Lists of mounts, of processes and of interfaces are as long as a pod
/// makes them.
const FILE_MAX: u64 = 1 << 20;

/// A text, bytes that are none replaced. `None` when it is not there.
pub(super) fn text(path: &Path) -> Option<String> {
    whole(File::open(path).ok()?)
}

/// What an open file has.
pub(super) fn whole(file: File) -> Option<String> {
    let mut bytes = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut bytes).ok()?;
    Some(
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
    )
}

/// A number that is all of a file.
pub(super) fn number(path: &str) -> Option<i64> {
    text(Path::new(path))?.trim().parse().ok()
}

/// How many tasks there may be. Source: `pkg/kubelet/stats/pidlimit/pidlimit_linux.go`.
pub(super) fn tasks_max() -> Option<i64> {
    ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"].into_iter().filter_map(number).min()
}

/// When the machine was booted.
pub(super) fn booted_at() -> Option<Timestamp> {
    let text = text(Path::new("/proc/stat"))?;
    let seconds = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    Timestamp::from_second(seconds.trim().parse().ok()?).ok()
}

/// What the machine is.
pub(super) fn machine() -> Machine {
    let [machine_id, system_uuid, boot_id, kernel, os] = machine_names();
    Machine {
        ids: [machine_id, system_uuid, boot_id],
        kernel,
        os,
        processors: topology(&text(Path::new("/proc/cpuinfo")).unwrap_or_default()),
        memory: memory_info(&text(Path::new("/proc/meminfo")).unwrap_or_default()),
    }
}

/// Names of devices, by number.
pub(super) fn disk_names(numbers: impl Iterator<Item = (u32, u32)>) -> BTreeMap<(u32, u32), String> {
    let mut names = BTreeMap::new();
    for (major, minor) in numbers {
        names.entry((major, minor)).or_insert_with(|| {
            let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok();
            let name = link.as_deref().and_then(Path::file_name);
            name.map(|name| format!("/dev/{}", name.to_string_lossy())).unwrap_or_default()
        });
    }
    names.retain(|_, name| !name.is_empty());
    names
}
