//! What the core knows of the node: facts read by the shell, and settings.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use crate::{selinux::SeLinux, spec::Quantities, users::PodIds};

/// Facts and settings of the node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeConfig {
    /// Name of the node, lower case.
    pub name: String,
    /// Labels that it has in any case.
    pub labels: BTreeMap<String, String>,
    /// How many pods it may have (`maxPods`, `podsPerCore`).
    pub pods_max: u32,
    /// Its addresses, primary first.
    pub ips: Vec<IpAddr>,
    /// Its host name as the kernel has it: what containers in its network see, and their `HOSTNAME`.
    pub hostname: String,
    /// What the machine has.
    pub capacity: Quantities,
    /// What pods may use of it: what is reserved and the hard eviction thresholds are taken off.
    pub allocatable: Quantities,
    /// What it has beside what is reserved for the system and for Kubernetes.
    pub unreserved: Quantities,
    /// Where things are.
    pub paths: Paths,
    /// How DNS is given to pods.
    pub dns: DnsSettings,
    /// cgroup hierarchy and driver.
    pub cgroups: CgroupSettings,
    /// Pulling.
    pub pulls: PullSettings,
    /// Removal of images that nothing uses; `None` is never.
    pub collection: Option<ImageCollection>,
    /// Container logs, written by the shim.
    pub logs: LogSettings,
    /// How often what was made for a pod is looked at (`syncFrequency`).
    pub sync_frequency: Duration,
    /// Longest crash back-off (`crashLoopBackOff.maxContainerRestartPeriod`, default 300 s).
    pub crash_backoff_max: Duration,
    /// Seccomp profile of containers that name none: `RuntimeDefault` when true (`seccompDefault`).
    pub seccomp_default: bool,
    /// Ids that pods with user namespaces may have.
    pub pod_ids: PodIds,
    /// What becomes of AppArmor profiles.
    pub app_armor: AppArmor,
    /// Labels of containers, where SELinux gives them some.
    pub se_linux: Option<SeLinux>,
    /// What tells how hot each processor runs, and by that what neighbours do: hidden from containers, as are other files of the kernel.
    pub thermal_counters: Vec<String>,
    /// Sysctls beyond the safe ones; a trailing `*` stands for a prefix (`allowedUnsafeSysctls`).
    pub unsafe_sysctls: Vec<String>,
    /// The agent's own `oom_score_adj`: without CAP_SYS_RESOURCE nothing lower can be given.
    pub oom_score_floor: i32,
    /// Capabilities of the agent: the most that a container can get. Bit n is capability n.
    pub capabilities: u64,
    /// Capabilities that the kernel knows, in the same form.
    pub kernel_capabilities: u64,
}

/// What becomes of AppArmor profiles on a node. Source: `IsEnabled` of `third_party/forked/libcontainer/apparmor`, by which the kubelet
/// goes; containerd `pkg/apparmor` and `disable_apparmor` of its CRI.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AppArmor {
    /// The kernel has no AppArmor.
    #[default]
    Absent,
    /// It has, and containers get no profile: there is no parser, the node itself is a container, or containerd's configuration says so.
    Unused,
    /// They are enforced.
    Enforced,
}

/// What of the node changes while the agent runs: read anew by the shell before pods are prepared from it, since the node
/// may get its addresses and its name servers long after the agent began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Addresses, primary first.
    pub ips: Vec<IpAddr>,
    /// Host name, as the kernel has it.
    pub hostname: String,
    /// Its resolv.conf.
    pub resolv_conf: ResolvConf,
    /// Its hosts file.
    pub hosts: String,
}

impl NodeConfig {
    /// Takes what was read anew; whether something is other than before.
    pub fn take(&mut self, facts: NodeFacts) -> bool {
        let NodeFacts { ips, hostname, resolv_conf, hosts } = facts;
        let known = (&self.ips, &self.hostname, &self.dns.node_resolv_conf, &self.dns.node_hosts);
        if known == (&ips, &hostname, &resolv_conf, &hosts) {
            return false;
        }
        (self.ips, self.hostname) = (ips, hostname);
        (self.dns.node_resolv_conf, self.dns.node_hosts) = (resolv_conf, hosts);
        true
    }
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

/// The node's resolv.conf.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ResolvConf {
    /// Pods get nothing of it (`resolvConf: ""`).
    #[default]
    Nothing,
    /// Its text.
    Text(String),
    /// Why it cannot be read.
    Unreadable(String),
}

/// DNS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsSettings {
    /// `clusterDNS`.
    pub cluster_dns: Vec<String>,
    /// `clusterDomain`.
    pub cluster_domain: String,
    /// The node's resolv.conf, as read.
    pub node_resolv_conf: ResolvConf,
    /// The node's hosts file, as read.
    pub node_hosts: String,
}

/// cgroups.
#[derive(Debug, Clone, PartialEq)]
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
    /// Whether all processes of a container end together when one of them is killed for memory. Version 2 can do that, and
    /// does unless `singleProcessOOMKill` is set.
    pub oom_group: bool,
    /// Sizes in bytes of the huge pages that cgroups can bound, whether the machine has any of them now or not.
    pub hugepage_sizes: BTreeSet<u64>,
    /// Bounds of all pods together.
    pub kubepods: KubepodsBounds,
    /// How memory that is asked for is protected, and its use slowed down; `None` is not at all.
    pub memory_qos: Option<MemoryQos>,
    /// What containers may swap.
    pub swap: SwapBehavior,
}

impl CgroupSettings {
    /// Those of a configuration that says nothing more, on a machine without huge pages whose resources bind nobody.
    /// Source: Kubernetes, `pkg/kubelet/apis/config/v1beta1/defaults.go`.
    #[must_use]
    pub fn new(version: CgroupVersion, driver: CgroupDriver, root: &str) -> Self {
        Self {
            version,
            driver,
            root: root.to_owned(),
            pod_pids_max: None,
            cfs_quota: true,
            cfs_period: Duration::from_millis(100),
            oom_group: version == CgroupVersion::V2,
            hugepage_sizes: BTreeSet::new(),
            kubepods: KubepodsBounds::default(),
            memory_qos: None,
            swap: SwapBehavior::Uncounted,
        }
    }
}

/// Bounds of all pods together: what is not reserved, or all of the machine where `enforceNodeAllocatable` does not name
/// `pods`. Hard eviction thresholds are not taken off, so that there is something to evict by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubepodsBounds {
    /// CPU, memory, huge pages.
    pub resources: Quantities,
    /// Number of tasks; `None` where the machine cannot bound it.
    pub pids_max: Option<u64>,
    /// CPUs of the machine in the kernel's form, such as `0-3,8`; `None` where cgroups have none. That binds nobody, but tells
    /// systemd that the controller is in use, which it else takes back.
    pub cpus: Option<String>,
}

/// Memory QoS (feature gate `MemoryQoS`, KEP-2570), which only version 2 has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryQos {
    /// `memoryThrottlingFactor`: which part of the way from its request to its limit a container may go before it is
    /// slowed down; more than 0, at most 1.
    pub throttling_factor: f64,
    /// `memoryReservationPolicy`.
    pub reservation: MemoryReservation,
    /// Size of a page in bytes.
    pub page_bytes: u64,
}

/// `memoryReservationPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryReservation {
    /// `None`: a request protects nothing.
    None,
    /// `TieredReservation`: requested memory is never taken from Guaranteed pods, and from Burstable ones only when there
    /// is no other to take.
    Tiered,
}

/// `memorySwap.swapBehavior`, as far as the kernel can bound it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapBehavior {
    /// The kernel does not count swap by cgroup: containers have no bound.
    Uncounted,
    /// `NoSwap`.
    NoSwap,
    /// `LimitedSwap`, which only version 2 has: Burstable pods get their share.
    LimitedSwap {
        /// All swap of the machine in bytes.
        node_bytes: u64,
    },
}

/// What becomes of volumes in memory (secrets, tokens, emptyDirs) when the machine runs short of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryVolumes {
    /// Whether the machine has swap.
    pub is_swap_on: bool,
    /// Whether the kernel keeps a tmpfs out of swap that asks for it (`noswap`).
    pub has_noswap: bool,
}

impl MemoryVolumes {
    /// Whether what is in them may come to a disk. Source: `NewContainerManager` of `pkg/kubelet/cm/container_manager_linux.go`.
    #[must_use]
    pub fn may_be_swapped(self) -> bool {
        self.is_swap_on && !self.has_noswap
    }
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

/// Removal of images that nothing uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageCollection {
    /// How full their disk is when it begins, in percent (`imageGCHighThresholdPercent`).
    pub high_percent: u64,
    /// And when it has freed enough (`imageGCLowThresholdPercent`).
    pub low_percent: u64,
    /// For how long an image has to be there before it goes for that (`imageMinimumGCAge`).
    pub age_min: Duration,
    /// After how long without use one goes in any case (`imageMaximumGCAge`); `None` is never.
    pub age_max: Option<Duration>,
}

/// Rotation of container logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSettings {
    /// `containerLogMaxSize` in bytes.
    pub max_size_bytes: u64,
    /// `containerLogMaxFiles`.
    pub max_files: u32,
}
