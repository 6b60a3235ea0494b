//! What the files of a cgroup of version 1 say.

use std::path::Path;

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::files;

const TOP: &str = "/sys/fs/cgroup";
/// Files with a bound that is set for a pod or a container.
const FILES: [&str; 14] = [
    "cpu/cpu.shares",
    "cpu/cpu.cfs_quota_us",
    "cpu/cpu.cfs_period_us",
    "cpuset/cpuset.cpus",
    "cpuset/cpuset.mems",
    "memory/memory.limit_in_bytes",
    "memory/memory.soft_limit_in_bytes",
    "memory/memory.memsw.limit_in_bytes",
    "memory/memory.swappiness",
    "memory/memory.oom_control",
    "pids/pids.max",
    "hugetlb/hugetlb.2MB.limit_in_bytes",
    "hugetlb/hugetlb.1GB.limit_in_bytes",
    "devices/devices.list",
];

/// By file; those that the kernel does not have are left out. A group that goes meanwhile has none.
pub(super) fn read(path: &str) -> Result<Value> {
    let mut found = Map::new();
    for file in FILES {
        let Some((controller, name)) = file.split_once('/') else { continue };
        let at = Path::new(TOP).join(controller).join(path.trim_start_matches('/')).join(name);
        if let Some(text) = files::read_if_there(at)? {
            let mut lines: Vec<&str> = text.lines().collect();
            // The number of kills is none of its bounds.
            lines.retain(|line| !line.starts_with("under_oom") && !line.starts_with("oom_kill "));
            lines.sort_unstable();
            found.insert(name.to_owned(), if lines.len() == 1 { json!(lines[0]) } else { json!(lines) });
        }
    }
    Ok(Value::Object(found))
}
