//! Values as files of a cgroup.

use super::{CgroupValues, cpu};
use crate::config::CgroupVersion;

/// One file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupFile {
    /// The controller that the file belongs to: names the hierarchy in version 1 and what to enable in version 2.
    pub controller: Controller,
    /// Name of the file.
    pub name: String,
    /// What to write.
    pub value: String,
    /// The kernel keeps a number as a multiple of something that is not larger than this.
    pub unit: u64,
}

impl CgroupFile {
    /// Whether a file that reads so is as it was written.
    #[must_use]
    pub fn is_read_as(&self, text: &str) -> bool {
        let text = text.trim();
        let numbers = (self.value.parse::<u64>(), text.parse::<u64>());
        match numbers {
            (Ok(written), Ok(read)) => read <= written && written - read < self.unit,
            (Ok(_) | Err(_), _) => text == self.value,
        }
    }
}

/// Pages are no larger (arm64).
const PAGE_BYTES_MAX: u64 = 64 << 10;

/// The controllers that Berth writes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// CPU time.
    Cpu,
    /// CPUs.
    Cpuset,
    /// Memory.
    Memory,
    /// Number of tasks.
    Pids,
    /// Huge pages.
    Hugetlb,
}

impl Controller {
    /// As in `cgroup.controllers`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuset => "cpuset",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Hugetlb => "hugetlb",
        }
    }
}

/// The files to write for `values`, in an order that the kernel takes: a period before its quota. What is not named is
/// left as it is, except that a named period without a quota removes the bound.
#[must_use]
pub fn translate(values: &CgroupValues, version: CgroupVersion) -> Vec<CgroupFile> {
    let mut files = Vec::new();
    let mut write = |controller, name: &str, value: String| {
        let unit = match controller {
            Controller::Memory => PAGE_BYTES_MAX,
            Controller::Cpu | Controller::Cpuset | Controller::Pids | Controller::Hugetlb => 1,
        };
        files.push(CgroupFile { controller, name: name.to_owned(), value, unit });
    };
    match version {
        CgroupVersion::V1 => {
            if let Some(shares) = values.cpu_shares {
                write(Controller::Cpu, "cpu.shares", shares.to_string());
            }
            if let Some(period) = values.cpu_period_us {
                write(Controller::Cpu, "cpu.cfs_period_us", period.to_string());
                let quota = values.cpu_quota_us.map_or_else(|| "-1".to_owned(), |quota| quota.to_string());
                write(Controller::Cpu, "cpu.cfs_quota_us", quota);
            }
            if let Some(bytes) = values.memory_bytes_max {
                write(Controller::Memory, "memory.limit_in_bytes", bytes.to_string());
            }
        }
        CgroupVersion::V2 => {
            if let Some(shares) = values.cpu_shares {
                write(Controller::Cpu, "cpu.weight", cpu::weight(shares).to_string());
            }
            if let Some(period) = values.cpu_period_us {
                let quota = values.cpu_quota_us.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
                write(Controller::Cpu, "cpu.max", format!("{quota} {period}"));
            }
            if let Some(cpus) = &values.cpus {
                write(Controller::Cpuset, "cpuset.cpus", cpus.clone());
            }
            for (name, bytes) in [
                ("memory.min", values.memory_bytes_min),
                ("memory.low", values.memory_bytes_low),
                ("memory.max", values.memory_bytes_max),
            ] {
                if let Some(bytes) = bytes {
                    write(Controller::Memory, name, bytes.to_string());
                }
            }
        }
    }
    if let Some(tasks) = values.pids_max {
        write(Controller::Pids, "pids.max", tasks.to_string());
    }
    for (size, bytes) in &values.hugepages_bytes_max {
        let file = match version {
            CgroupVersion::V1 => format!("hugetlb.{}.limit_in_bytes", page_size_name(*size)),
            CgroupVersion::V2 => format!("hugetlb.{}.max", page_size_name(*size)),
        };
        let value = bytes.to_string();
        files.push(CgroupFile { controller: Controller::Hugetlb, name: file, value, unit: *size });
    }
    files
}

/// A page size in the kernel's words: `64KB`, `2MB`, `1GB`.
#[must_use]
pub fn page_size_name(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    match bytes {
        GIB.. => format!("{}GB", bytes / GIB),
        MIB.. => format!("{}MB", bytes / MIB),
        _ => format!("{}KB", bytes / KIB),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn lines(values: &CgroupValues, version: CgroupVersion) -> Vec<String> {
        translate(values, version)
            .into_iter()
            .map(|file| format!("{} {}={}", file.controller.as_str(), file.name, file.value))
            .collect()
    }

    #[test]
    fn everything_at_once() {
        let values = CgroupValues {
            cpu_shares: Some(1024),
            cpu_quota_us: Some(50_000),
            cpu_period_us: Some(100_000),
            cpus: Some("0-1,3".into()),
            memory_bytes_min: Some(16 << 20),
            memory_bytes_low: Some(0),
            memory_bytes_max: Some(64 << 20),
            pids_max: Some(100),
            hugepages_bytes_max: BTreeMap::from([(2 << 20, 4 << 20), (1 << 30, 0)]),
        };
        assert_eq!(
            lines(&values, CgroupVersion::V1),
            [
                "cpu cpu.shares=1024",
                "cpu cpu.cfs_period_us=100000",
                "cpu cpu.cfs_quota_us=50000",
                "memory memory.limit_in_bytes=67108864",
                "pids pids.max=100",
                "hugetlb hugetlb.2MB.limit_in_bytes=4194304",
                "hugetlb hugetlb.1GB.limit_in_bytes=0"
            ]
        );
        assert_eq!(
            lines(&values, CgroupVersion::V2),
            [
                "cpu cpu.weight=100",
                "cpu cpu.max=50000 100000",
                "cpuset cpuset.cpus=0-1,3",
                "memory memory.min=16777216",
                "memory memory.low=0",
                "memory memory.max=67108864",
                "pids pids.max=100",
                "hugetlb hugetlb.2MB.max=4194304",
                "hugetlb hugetlb.1GB.max=0"
            ]
        );
    }

    #[test]
    fn what_is_not_named_is_left_alone() {
        for version in [CgroupVersion::V1, CgroupVersion::V2] {
            assert_eq!(translate(&CgroupValues::default(), version), []);
        }
    }

    #[test]
    fn a_period_without_quota_removes_the_bound() {
        let values = CgroupValues { cpu_period_us: Some(100_000), ..CgroupValues::default() };
        assert_eq!(
            lines(&values, CgroupVersion::V1),
            ["cpu cpu.cfs_period_us=100000", "cpu cpu.cfs_quota_us=-1"]
        );
        assert_eq!(lines(&values, CgroupVersion::V2), ["cpu cpu.max=max 100000"]);
    }

    #[test]
    fn what_the_kernel_rounds_is_as_it_was_written() {
        const MIB: u64 = 1 << 20;
        let values = CgroupValues {
            cpu_shares: Some(1024),
            cpu_quota_us: Some(50_000),
            cpu_period_us: Some(100_000),
            memory_bytes_max: Some(64 * MIB + 5000),
            pids_max: Some(100),
            hugepages_bytes_max: BTreeMap::from([(2 * MIB, 5 * MIB)]),
            ..CgroupValues::default()
        };
        let files = translate(&values, CgroupVersion::V2);
        for (name, read, expected) in [
            ("cpu.weight", "100\n", true),
            ("cpu.weight", "99\n", false),
            ("cpu.max", "50000 100000\n", true),
            ("cpu.max", "max 100000\n", false),
            ("memory.max", "67112960\n", true),
            ("memory.max", "67108864\n", true),
            ("memory.max", "max\n", false),
            ("memory.max", "33554432\n", false),
            ("memory.max", "134217728\n", false),
            ("pids.max", "100\n", true),
            ("pids.max", "101\n", false),
            ("pids.max", "max\n", false),
            ("hugetlb.2MB.max", "4194304\n", true),
            ("hugetlb.2MB.max", "2097152\n", false),
            ("hugetlb.2MB.max", "", false),
        ] {
            let file = files.iter().find(|file| file.name == name).unwrap();
            assert_eq!(file.is_read_as(read), expected, "{name} {read:?}");
        }
        // A bound that was taken away has no number.
        let unbound = CgroupValues { cpu_period_us: Some(100_000), ..CgroupValues::default() };
        let quota = translate(&unbound, CgroupVersion::V1).remove(1);
        assert!(quota.is_read_as("-1\n") && !quota.is_read_as("5000\n"), "{quota:?}");
    }

    #[test]
    fn page_sizes_have_the_kernels_names() {
        for (bytes, name) in [(64 << 10, "64KB"), (2 << 20, "2MB"), (32 << 20, "32MB"), (16 << 30, "16GB")] {
            assert_eq!(page_size_name(bytes), name);
        }
    }
}
