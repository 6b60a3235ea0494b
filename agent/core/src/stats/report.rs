//! What a reading says as a [`Summary`]. Source: `pkg/kubelet/stats/helper.go`, `cri_stats_provider.go`,
//! `pkg/kubelet/server/stats/summary.go`, `summary_sys_containers.go`.

use jiff::Timestamp;

use super::{
    Collected, DiskUsage, FileSystem, Interface, Level, Network, Pressure, Psi, Sampled, Usage,
    collected::{ContainerSubject, PodSubject, VolumeSubject},
    disk::PodUsage,
    summary::{
        ContainerStats, CpuStats, FsStats, InterfaceStats, IoStats, MemoryStats, NetworkStats, NodeStats,
        PodReference, PodStats, ProcessStats, PsiData, PsiStats, RlimitStats, RuntimeStats, Summary,
        SwapStats, VolumeStats,
    },
};

/// The interface that stands for all of them. Source: `defaultNetworkInterfaceName`.
const DEFAULT_INTERFACE: &str = "eth0";

/// More is no limit: the kernel rounds the largest number. Source: `isMemoryUnlimited`.
pub(super) const LIMIT_MAX: u64 = 1 << 62;

/// Levels that are shown as system containers, where they are named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemContainers {
    /// The agent's own.
    pub kubelet: Option<String>,
    /// The runtime's (`--runtime-cgroups`).
    pub runtime: Option<String>,
    /// That of everything else (`systemCgroups`).
    pub misc: Option<String>,
    /// That of all pods.
    pub pods: Option<String>,
}

impl SystemContainers {
    /// Those that are named, with what they are called.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [
            ("kubelet", &self.kubelet),
            ("runtime", &self.runtime),
            ("misc", &self.misc),
            ("pods", &self.pods),
        ];
        all.into_iter().filter_map(|(name, level)| Some((name, level.as_deref()?)))
    }
}

/// All of it. `None` when the root could not be read.
#[must_use]
pub fn summary(read: &Collected, disks: &DiskUsage) -> Option<Summary> {
    let mut summary = cpu_and_memory(read)?;
    let root = read.levels.get("/")?;
    let node = &mut summary.node;
    node.io = io(root);
    node.network = (!read.node.network.interfaces.is_empty()).then(|| network(&read.node.network));
    node.fs = disks.node.map(|(at, fs)| whole(at, &fs, None));
    node.runtime = disks.images.map(|(at, fs)| {
        let images = whole(at, &fs, disks.images_used());
        RuntimeStats { image_fs: Some(images.clone()), container_fs: Some(images) }
    });
    node.rlimit =
        Some(RlimitStats { time: read.at.into(), maxpid: read.node.tasks_max, curproc: read.node.tasks });
    for (stats, (_, level)) in node
        .system_containers
        .iter_mut()
        .zip(read.subjects.system.all().filter(|(_, level)| read.levels.contains_key(*level)))
    {
        stats.io = read.levels.get(level).and_then(io);
    }
    let shown = read.subjects.pods.iter().filter(|pod| is_shown(read, pod));
    for (stats, pod) in summary.pods.iter_mut().zip(shown) {
        let usage = disks.pods.get(&pod.uid);
        complete_pod(stats, read, pod, disks, usage);
    }
    Some(summary)
}

/// Processors, memory and swap alone. `None` when the root could not be read.
#[must_use]
pub fn cpu_and_memory(read: &Collected) -> Option<Summary> {
    let root = read.levels.get("/")?;
    let system = read.subjects.system.all().filter_map(|(name, level)| {
        let sampled = read.levels.get(level)?;
        let started = if name == "kubelet" { Some(read.node.agent_began) } else { sampled.created };
        Some(of_level(name, started, sampled))
    });
    let node = NodeStats {
        node_name: read.node.name.clone(),
        system_containers: system.collect(),
        start_time: read.node.booted_at.map(Into::into).unwrap_or_default(),
        cpu: Some(cpu(root)),
        memory: Some(memory(root)),
        swap: swap(root),
        ..NodeStats::default()
    };
    let shown = read.subjects.pods.iter().filter(|pod| is_shown(read, pod));
    Some(Summary { node, pods: shown.map(|pod| of_pod(read, pod)).collect() })
}

/// A pod is shown of which a container runs, and whose cgroup was there, or that of one of its containers. What has a sandbox alone is
/// among cgroups, and not here (`listPodStatsPartiallyFromCRI`).
fn is_shown(read: &Collected, pod: &PodSubject) -> bool {
    !pod.containers.is_empty() && has_levels(read, pod)
}

fn has_levels(read: &Collected, pod: &PodSubject) -> bool {
    read.levels.contains_key(&pod.cgroup) || running(read, pod).next().is_some()
}

/// Containers that are shown: those whose cgroups were there. Where no container has one, as under shims that have them in one process,
/// all of them are shown without figures of their own: they are there, as the runtime says (`listPodStatsPartiallyFromCRI`).
fn shown<'a>(read: &'a Collected, pod: &'a PodSubject) -> Vec<(&'a ContainerSubject, Option<&'a Sampled>)> {
    let found: Vec<_> = running(read, pod).map(|(container, sampled)| (container, Some(sampled))).collect();
    if found.is_empty() { pod.containers.iter().map(|container| (container, None)).collect() } else { found }
}

fn running<'a>(
    read: &'a Collected,
    pod: &'a PodSubject,
) -> impl Iterator<Item = (&'a ContainerSubject, &'a Sampled)> {
    pod.containers.iter().filter_map(|container| Some((container, read.levels.get(&container.cgroup)?)))
}

fn of_pod(read: &Collected, pod: &PodSubject) -> PodStats {
    let level = read.levels.get(&pod.cgroup);
    let containers = shown(read, pod).into_iter().map(|(container, sampled)| match sampled {
        Some(sampled) => of_level(container.name.as_str(), Some(container.started_at), sampled),
        None => ContainerStats {
            name: container.name.as_str().to_owned(),
            start_time: container.started_at.into(),
            ..ContainerStats::default()
        },
    });
    PodStats {
        pod_ref: PodReference {
            name: pod.name.name.clone(),
            namespace: pod.name.namespace.clone(),
            uid: pod.uid.to_string(),
        },
        start_time: pod.started_at.map(Into::into).unwrap_or_default(),
        containers: containers.collect(),
        cpu: level.map(cpu),
        memory: level.map(memory),
        swap: level.and_then(swap),
        ..PodStats::default()
    }
}

fn of_level(name: &str, started: Option<Timestamp>, sampled: &Sampled) -> ContainerStats {
    ContainerStats {
        name: name.to_owned(),
        start_time: started.map(Into::into).unwrap_or_default(),
        cpu: Some(cpu(sampled)),
        memory: Some(memory(sampled)),
        swap: swap(sampled),
        ..ContainerStats::default()
    }
}

fn complete_pod(
    stats: &mut PodStats,
    read: &Collected,
    pod: &PodSubject,
    disks: &DiskUsage,
    usage: Option<&PodUsage>,
) {
    stats.io = read.levels.get(&pod.cgroup).and_then(io);
    stats.network = read.network(pod).map(network);
    let processes = running(read, pod).map(|(_, sampled)| sampled.level.tasks.processes);
    stats.process_stats = Some(ProcessStats { process_count: Some(processes.fold(0, u64::saturating_add)) });
    let shown = shown(read, pod);
    for (stats, (container, sampled)) in stats.containers.iter_mut().zip(&shown) {
        stats.io = sampled.and_then(io);
        let layer = usage.and_then(|usage| usage.layers.get(container.id.as_str()));
        stats.rootfs = disks.images.map(|(at, fs)| on(at, &fs, layer));
        let logs = usage.and_then(|usage| usage.logs.get(container.name.as_str()));
        stats.logs = disks.node.map(|(at, fs)| on(at, &fs, logs));
    }
    let measured =
        |volume: &VolumeSubject| usage.and_then(|usage| usage.volumes.get(volume.volume.name.as_str()));
    stats.volume = pod
        .volumes
        .iter()
        .filter_map(|volume| Some(of_volume(volume.volume.name.as_str(), measured(volume)?)))
        .collect();
    stats.ephemeral_storage = disks.node.map(|(at, fs)| {
        let layers = usage.map(|usage| shown.iter().filter_map(|(it, _)| usage.layers.get(it.id.as_str())));
        let logs = usage.map(|usage| shown.iter().filter_map(|(it, _)| usage.logs.get(it.name.as_str())));
        let local = pod.volumes.iter().filter(|volume| volume.is_local);
        let beside = usage.into_iter().flat_map(|usage| usage.pod_logs.iter().chain(&usage.hosts));
        let all = layers.into_iter().flatten().chain(logs.into_iter().flatten());
        sum(at, &fs, all.chain(local.filter_map(measured)).chain(beside))
    });
}

fn cpu(sampled: &Sampled) -> CpuStats {
    let used = sampled.level.cpu.as_ref();
    CpuStats {
        time: sampled.at.wall.into(),
        usage_nano_cores: Some(sampled.nano_cores.unwrap_or(0)),
        usage_core_nano_seconds: Some(used.map_or(0, |cpu| cpu.total_ns)),
        psi: used.and_then(|cpu| cpu.psi).map(psi),
    }
}

fn memory(sampled: &Sampled) -> MemoryStats {
    let time = sampled.at.wall.into();
    let Level { memory: Some(used), limits, .. } = &sampled.level else {
        return MemoryStats { time, working_set_bytes: Some(0), ..MemoryStats::default() };
    };
    MemoryStats {
        time,
        available_bytes: left(limits.memory, used.working_set),
        usage_bytes: Some(used.usage),
        working_set_bytes: Some(used.working_set),
        rss_bytes: Some(used.rss),
        page_faults: Some(used.page_faults),
        major_page_faults: Some(used.major_page_faults),
        psi: used.psi.map(psi),
    }
}

fn swap(sampled: &Sampled) -> Option<SwapStats> {
    let used = sampled.level.memory.as_ref()?.swap;
    Some(SwapStats {
        time: sampled.at.wall.into(),
        swap_available_bytes: left(sampled.level.limits.swap, used),
        swap_usage_bytes: Some(used),
    })
}

/// What a limit leaves, where there is one.
fn left(limit: u64, used: u64) -> Option<u64> {
    (limit <= LIMIT_MAX).then(|| limit.saturating_sub(used))
}

fn io(sampled: &Sampled) -> Option<IoStats> {
    let pressure = sampled.level.io_psi?;
    Some(IoStats { time: sampled.at.wall.into(), psi: Some(psi(pressure)) })
}

fn psi(said: Psi) -> PsiStats {
    let line =
        |Pressure { avg10, avg60, avg300, total_us }| PsiData { total: total_us, avg10, avg60, avg300 };
    PsiStats { full: line(said.full), some: line(said.some) }
}

fn network(read: &Network) -> NetworkStats {
    let interfaces: Vec<InterfaceStats> = read.interfaces.iter().map(interface).collect();
    NetworkStats {
        time: read.at.into(),
        default: interfaces.iter().find(|it| it.name == DEFAULT_INTERFACE).cloned().unwrap_or_default(),
        interfaces,
    }
}

fn interface(read: &Interface) -> InterfaceStats {
    let ([rx_bytes, _, rx_errors, _], [tx_bytes, _, tx_errors, _]) = (read.received, read.sent);
    InterfaceStats {
        name: read.name.clone(),
        rx_bytes: Some(rx_bytes),
        rx_errors: Some(rx_errors),
        tx_bytes: Some(tx_bytes),
        tx_errors: Some(tx_errors),
    }
}

/// A file system as a whole, or what of it is used for something.
fn whole(at: Timestamp, fs: &FileSystem, used: Option<(u64, u64)>) -> FsStats {
    let (bytes, inodes) = used.unwrap_or((fs.used(), fs.inodes_used()));
    FsStats { used_bytes: Some(bytes), inodes_used: Some(inodes), ..room(at, fs) }
}

fn room(at: Timestamp, fs: &FileSystem) -> FsStats {
    FsStats {
        time: at.into(),
        available_bytes: Some(fs.available),
        capacity_bytes: Some(fs.capacity),
        inodes_free: Some(fs.inodes_free),
        inodes: Some(fs.inodes),
        ..FsStats::default()
    }
}

/// What something uses of a file system.
fn on(at: Timestamp, fs: &FileSystem, usage: Option<&Usage>) -> FsStats {
    sum(at, fs, usage.into_iter())
}

fn sum<'a>(at: Timestamp, fs: &FileSystem, usages: impl Iterator<Item = &'a Usage>) -> FsStats {
    usages.fold(room(at, fs), |sum, usage| FsStats {
        time: sum.time.max(usage.at.into()),
        used_bytes: Some(sum.used_bytes.unwrap_or(0).saturating_add(usage.bytes)),
        inodes_used: Some(sum.inodes_used.unwrap_or(0).saturating_add(usage.inodes)),
        ..sum
    })
}

fn of_volume(name: &str, usage: &Usage) -> VolumeStats {
    let used = FsStats {
        used_bytes: Some(usage.bytes),
        inodes_used: Some(usage.inodes),
        ..room(usage.at, &usage.file_system)
    };
    VolumeStats { fs: used, name: name.to_owned() }
}
