//! The answer of `/stats/summary`. Source: `k8s.io/kubelet/pkg/apis/stats/v1alpha1/types.go`, with fields in its order.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

/// All of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The node.
    pub node: NodeStats,
    /// Pods of which something runs.
    pub pods: Vec<PodStats>,
}

macro_rules! stats {
    ($(#[$doc:meta])* $name:ident { $($(#[$attribute:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $($(#[$attribute])* pub $field: $kind,)*
        }
    };
}

/// A time in seconds; `null` where it is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Option<Timestamp>);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(time) => serializer.collect_str(&time.strftime("%Y-%m-%dT%H:%M:%SZ")),
            None => serializer.serialize_none(),
        }
    }
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self(Some(time))
    }
}

stats!(
    /// The node.
    NodeStats {
        /// Its name.
        node_name: String,
        /// Levels of the system.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        system_containers: Vec<ContainerStats>,
        /// When it was booted.
        start_time: Time,
        /// Processors.
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuStats>,
        /// Memory.
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        /// Disks.
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        /// Interfaces.
        #[serde(skip_serializing_if = "Option::is_none")]
        network: Option<NetworkStats>,
        /// The file system of the root directory.
        #[serde(skip_serializing_if = "Option::is_none")]
        fs: Option<FsStats>,
        /// The runtime.
        #[serde(skip_serializing_if = "Option::is_none")]
        runtime: Option<RuntimeStats>,
        /// Tasks.
        #[serde(skip_serializing_if = "Option::is_none")]
        rlimit: Option<RlimitStats>,
        /// Swap.
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
    }
);

stats!(
    /// Tasks of the node.
    RlimitStats {
        /// When.
        time: Time,
        /// How many there may be.
        #[serde(skip_serializing_if = "Option::is_none")]
        maxpid: Option<i64>,
        /// How many there are.
        #[serde(skip_serializing_if = "Option::is_none")]
        curproc: Option<i64>,
    }
);

stats!(
    /// The runtime.
    RuntimeStats {
        /// Where images are.
        #[serde(skip_serializing_if = "Option::is_none")]
        image_fs: Option<FsStats>,
        /// Where writable layers are.
        #[serde(skip_serializing_if = "Option::is_none")]
        container_fs: Option<FsStats>,
    }
);

stats!(
    /// A pod.
    PodStats {
        /// Which.
        pod_ref: PodReference,
        /// When it began.
        start_time: Time,
        /// Those that run.
        containers: Vec<ContainerStats>,
        /// Processors.
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuStats>,
        /// Memory.
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        /// Disks.
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        /// Interfaces.
        #[serde(skip_serializing_if = "Option::is_none")]
        network: Option<NetworkStats>,
        /// Volumes.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        volume: Vec<VolumeStats>,
        /// What it has on the node's disk.
        #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
        ephemeral_storage: Option<FsStats>,
        /// Processes.
        #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
        process_stats: Option<ProcessStats>,
        /// Swap.
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
    }
);

stats!(
    /// A pod's name.
    PodReference {
        /// Name.
        name: String,
        /// Namespace.
        namespace: String,
        /// UID.
        uid: String,
    }
);

stats!(
    /// Processes of a pod.
    ProcessStats {
        /// How many.
        #[serde(rename = "process_count", skip_serializing_if = "Option::is_none")]
        process_count: Option<u64>,
    }
);

stats!(
    /// A container, or a level of the system.
    ContainerStats {
        /// Its name.
        name: String,
        /// When it began.
        start_time: Time,
        /// Processors.
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuStats>,
        /// Memory.
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        /// Disks.
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        /// Its writable layer.
        #[serde(skip_serializing_if = "Option::is_none")]
        rootfs: Option<FsStats>,
        /// Its logs.
        #[serde(skip_serializing_if = "Option::is_none")]
        logs: Option<FsStats>,
        /// Swap.
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
    }
);

stats!(
    /// An interface.
    InterfaceStats {
        /// Its name.
        name: String,
        /// Bytes received.
        #[serde(skip_serializing_if = "Option::is_none")]
        rx_bytes: Option<u64>,
        /// Errors in receiving.
        #[serde(skip_serializing_if = "Option::is_none")]
        rx_errors: Option<u64>,
        /// Bytes sent.
        #[serde(skip_serializing_if = "Option::is_none")]
        tx_bytes: Option<u64>,
        /// Errors in sending.
        #[serde(skip_serializing_if = "Option::is_none")]
        tx_errors: Option<u64>,
    }
);

stats!(
    /// Interfaces.
    NetworkStats {
        /// When.
        time: Time,
        /// The one that is called `eth0`.
        #[serde(flatten)]
        default: InterfaceStats,
        /// All of them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        interfaces: Vec<InterfaceStats>,
    }
);

stats!(
    /// Processors.
    CpuStats {
        /// When.
        time: Time,
        /// Nanoseconds in each second.
        #[serde(skip_serializing_if = "Option::is_none")]
        usage_nano_cores: Option<u64>,
        /// Nanoseconds since it began.
        #[serde(skip_serializing_if = "Option::is_none")]
        usage_core_nano_seconds: Option<u64>,
        /// Pressure.
        #[serde(skip_serializing_if = "Option::is_none")]
        psi: Option<PsiStats>,
    }
);

stats!(
    /// Memory, in bytes.
    MemoryStats {
        /// When.
        time: Time,
        /// What it may yet take.
        #[serde(skip_serializing_if = "Option::is_none")]
        available_bytes: Option<u64>,
        /// All that counts.
        #[serde(skip_serializing_if = "Option::is_none")]
        usage_bytes: Option<u64>,
        /// What cannot be taken back without a loss.
        #[serde(skip_serializing_if = "Option::is_none")]
        working_set_bytes: Option<u64>,
        /// Anonymous memory.
        #[serde(skip_serializing_if = "Option::is_none")]
        rss_bytes: Option<u64>,
        /// Page faults.
        #[serde(skip_serializing_if = "Option::is_none")]
        page_faults: Option<u64>,
        /// Those that waited for a disk.
        #[serde(skip_serializing_if = "Option::is_none")]
        major_page_faults: Option<u64>,
        /// Pressure.
        #[serde(skip_serializing_if = "Option::is_none")]
        psi: Option<PsiStats>,
    }
);

stats!(
    /// Disks.
    IoStats {
        /// When.
        time: Time,
        /// Pressure.
        #[serde(skip_serializing_if = "Option::is_none")]
        psi: Option<PsiStats>,
    }
);

stats!(
    /// Pressure.
    PsiStats {
        /// All tasks at once.
        full: PsiData,
        /// At least one.
        some: PsiData,
    }
);

stats!(
    /// One line of it.
    PsiData {
        /// Microseconds.
        total: u64,
        /// Percent of the last 10 s.
        #[serde(serialize_with = "as_go")]
        avg10: f64,
        /// Of the last minute.
        #[serde(serialize_with = "as_go")]
        avg60: f64,
        /// Of the last five minutes.
        #[serde(serialize_with = "as_go")]
        avg300: f64,
    }
);

stats!(
    /// Swap, in bytes.
    SwapStats {
        /// When.
        time: Time,
        /// What it may yet take.
        #[serde(skip_serializing_if = "Option::is_none")]
        swap_available_bytes: Option<u64>,
        /// What it has.
        #[serde(skip_serializing_if = "Option::is_none")]
        swap_usage_bytes: Option<u64>,
    }
);

stats!(
    /// A volume.
    VolumeStats {
        /// What it uses.
        #[serde(flatten)]
        fs: FsStats,
        /// Its name.
        #[serde(skip_serializing_if = "String::is_empty")]
        name: String,
    }
);

stats!(
    /// A file system, or what uses it.
    FsStats {
        /// When.
        time: Time,
        /// Bytes that are free for all.
        #[serde(skip_serializing_if = "Option::is_none")]
        available_bytes: Option<u64>,
        /// Bytes that it has.
        #[serde(skip_serializing_if = "Option::is_none")]
        capacity_bytes: Option<u64>,
        /// Bytes that are used.
        #[serde(skip_serializing_if = "Option::is_none")]
        used_bytes: Option<u64>,
        /// Inodes that are free.
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes_free: Option<u64>,
        /// Inodes that it has.
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes: Option<u64>,
        /// Inodes that are used.
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes_used: Option<u64>,
    }
);

/// Numbers below it are shown without a fraction where they have none.
const WHOLE_MAX: f64 = 1e15;

/// Go writes a number without a fraction as a whole one.
fn as_go<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.fract() == 0.0 && value.abs() < WHOLE_MAX {
        #[expect(clippy::cast_possible_truncation, reason = "it is whole and small")]
        let whole = *value as i64;
        return serializer.serialize_i64(whole);
    }
    serializer.serialize_f64(*value)
}
