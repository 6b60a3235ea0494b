//! What the core knows of the node: facts read once by the shell, and settings.

use std::{net::IpAddr, time::Duration};

use crate::spec::Quantities;

/// Facts and settings of the node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeConfig {
    /// Name of the node, lower case.
    pub name: String,
    /// Its addresses, primary first.
    pub ips: Vec<IpAddr>,
    /// What the machine has.
    pub capacity: Quantities,
    /// What pods may use of it.
    pub allocatable: Quantities,
    /// Where things are.
    pub paths: Paths,
    /// How DNS is given to pods.
    pub dns: DnsSettings,
    /// cgroup hierarchy and driver.
    pub cgroups: CgroupSettings,
    /// Pulling.
    pub pulls: PullSettings,
    /// Container logs, written by the shim.
    pub logs: LogSettings,
    /// Longest crash back-off (`crashLoopBackOff.maxContainerRestartPeriod`, default 300 s).
    pub crash_backoff_max: Duration,
    /// Seccomp profile of containers that name none: `RuntimeDefault` when true (`seccompDefault`).
    pub seccomp_default: bool,
    /// Sysctls beyond the safe ones; a trailing `*` stands for a prefix (`allowedUnsafeSysctls`).
    pub unsafe_sysctls: Vec<String>,
    /// The agent's own `oom_score_adj`: without CAP_SYS_RESOURCE nothing lower can be given.
    pub oom_score_floor: i32,
    /// Capabilities of the agent: the most that a container can get. Bit n is capability n.
    pub capabilities: u64,
}

/// Directories, absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// `/var/lib/kubelet`.
    pub root: String,
    /// `/var/log/pods`.
    pub pod_logs: String,
    /// `/var/log/containers`.
    pub container_logs: String,
    /// `/run/berth`.
    pub run: String,
    /// `<root>/seccomp`.
    pub seccomp: String,
}

/// DNS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsSettings {
    /// `clusterDNS`.
    pub cluster_dns: Vec<String>,
    /// `clusterDomain`.
    pub cluster_domain: String,
    /// The node's resolv.conf, as read.
    pub node_resolv_conf: String,
    /// The node's hosts file, as read.
    pub node_hosts: String,
}

/// cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupSettings {
    /// Version of the hierarchy.
    pub version: CgroupVersion,
    /// Who writes it.
    pub driver: CgroupDriver,
    /// Parent of `kubepods`: `/` or `/name`.
    pub root: String,
    /// `podPidsLimit`.
    pub pod_pids_max: Option<u64>,
    /// `cpuCFSQuota`.
    pub cfs_quota: bool,
    /// `cpuCFSQuotaPeriod`.
    pub cfs_period: Duration,
}

/// Version of the cgroup hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One hierarchy per controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// `cgroupDriver`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    /// Directories.
    Cgroupfs,
    /// Slices and scopes.
    Systemd,
}

/// Pulling of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullSettings {
    /// How many at once; `serializeImagePulls` is 1, `None` is without bound.
    pub parallel_max: Option<u32>,
    /// `registryPullQPS`; 0 is without bound.
    pub qps: u32,
    /// `registryBurst`.
    pub burst: u32,
}

/// Rotation of container logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSettings {
    /// `containerLogMaxSize` in bytes.
    pub max_size_bytes: u64,
    /// `containerLogMaxFiles`.
    pub max_files: u32,
}
