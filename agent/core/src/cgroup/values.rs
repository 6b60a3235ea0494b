//! What is written into a cgroup, before it is translated for a version of the hierarchy.

use std::collections::BTreeMap;

/// Values of one level.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupValues {
    /// CPU shares as in version 1 (2 … 262144).
    pub cpu_shares: Option<u64>,
    /// CPU time per period in µs; `None` leaves it without bound.
    pub cpu_quota_us: Option<u64>,
    /// Period in µs.
    pub cpu_period_us: Option<u64>,
    /// CPUs in the kernel's form, such as `0-3,8`; version 2 only.
    pub cpus: Option<String>,
    /// Memory in bytes that is never taken away; version 2 only.
    pub memory_bytes_min: Option<u64>,
    /// Memory in bytes that is taken away only when there is no other to take; version 2 only.
    pub memory_bytes_low: Option<u64>,
    /// Memory limit in bytes.
    pub memory_bytes_max: Option<u64>,
    /// Number of tasks.
    pub pids_max: Option<u64>,
    /// Huge pages in bytes by page size in bytes.
    pub hugepages_bytes_max: BTreeMap<u64, u64>,
}

impl CgroupValues {
    /// Values that are enough for both. What either does not bound is not bounded.
    #[must_use]
    pub fn enough_for(self, other: Self) -> Self {
        let bound = |one: Option<u64>, other: Option<u64>| Some(one?.max(other?));
        let mut hugepages_bytes_max = self.hugepages_bytes_max;
        for (size, bytes) in other.hugepages_bytes_max {
            let own = hugepages_bytes_max.entry(size).or_insert(bytes);
            *own = bytes.max(*own);
        }
        Self {
            cpu_shares: self.cpu_shares.max(other.cpu_shares),
            cpu_quota_us: bound(self.cpu_quota_us, other.cpu_quota_us),
            cpu_period_us: self.cpu_period_us.max(other.cpu_period_us),
            cpus: self.cpus.or(other.cpus),
            memory_bytes_min: self.memory_bytes_min.max(other.memory_bytes_min),
            memory_bytes_low: self.memory_bytes_low.max(other.memory_bytes_low),
            memory_bytes_max: bound(self.memory_bytes_max, other.memory_bytes_max),
            pids_max: bound(self.pids_max, other.pids_max),
            hugepages_bytes_max,
        }
    }
}

/// Values of the node's levels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QosValues {
    /// `kubepods`: node allocatable.
    pub kubepods: CgroupValues,
    /// `burstable`.
    pub burstable: CgroupValues,
    /// `besteffort`.
    pub best_effort: CgroupValues,
}
