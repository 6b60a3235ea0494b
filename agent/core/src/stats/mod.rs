//! Statistics of the node: what files of the kernel say, and what `/stats/summary`, `/metrics/resource` and `/metrics/cadvisor`
//! make of it.
//!
//! ```text
//!   texts of cgroups and /proc ─▶ Level, Interface, … ─▶ Collected ─┬─▶ Summary ─▶ JSON, /metrics/resource
//!   what a walk through trees found ─▶ DiskUsage ─────────────────┘└─▶ /metrics/cadvisor
//! ```
//!
//! Source: `pkg/kubelet/stats`, `pkg/kubelet/server/stats`, and cAdvisor, which the kubelet has within itself.

mod age;
mod cadvisor;
mod collected;
mod disk;
mod exposition;
mod level;
mod machine;
mod parse;
mod pressure;
mod report;
mod resource;
pub mod summary;
mod v1;
mod v2;

pub use age::{INTERVAL, is_due};
pub use cadvisor::cgroup_metrics;
pub use collected::{
    Collected, ContainerSubject, Network, NetworkOf, Node, PodSubject, Subjects, VolumeSubject, nano_cores,
};
pub use disk::{DiskUsage, FileSystem, Mounted, PodUsage, Usage, disk_stats, log_sizes, mounted, upper_dir};
pub use level::{
    Cpu, Device, DeviceStats, INTERFACES_MAX, Interface, Level, Limits, Memory, Sampled, Tasks, Throttled,
    interfaces,
};
pub use machine::{Machine, MemoryInfo, memory_info, own_cgroup, soft_open_files, tasks, topology};
pub use pressure::{Pressure, Psi};
pub use report::{SystemContainers, cpu_and_memory, summary};
pub use resource::resource_metrics;
pub use v1::{level as level_v1, root as root_v1};
pub use v2::{PROCESS_LISTS, level as level_v2, root as root_v2};

#[cfg(test)]
mod tests;
