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
