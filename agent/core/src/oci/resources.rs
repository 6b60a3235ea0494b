//! Resource bounds of a container's own cgroup.
//!
//! Source: `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go` `generateLinuxContainerResources`, containerd
//! `internal/cri/opts` `WithResources`. Huge pages are bounded for the pod alone, as containerd's CRI does unless it is told
//! otherwise (`disable_hugetlb_controller`).

use std::collections::BTreeMap;

use oci_spec::runtime::{LinuxCpu, LinuxDeviceCgroup, LinuxMemory, LinuxResources};

use super::ContainerInputs;
use crate::{
    cgroup::{self, cpu, memory},
    config::{CgroupVersion, NodeConfig, SwapBehavior},
    spec::{Container, Pod, Quantities, Resizable},
};

pub(super) fn resources(inputs: &ContainerInputs<'_>) -> LinuxResources {
    let ContainerInputs { node, pod, container, .. } = *inputs;
    let mut resources = LinuxResources::default();
    let (time, bytes) = (time(node, pod, container), bytes(node, pod, container));
    resources.set_cpu(Some(time)).set_memory(Some(bytes)).set_devices(Some(devices(container)));
    let unified = unified(node, pod, container);
    if !unified.is_empty() {
        resources.set_unified(Some(unified.into_iter().collect()));
    }
    resources
}

/// What changes of the cgroup of a container that runs when one resource of it does. A limit that there is no more is taken away:
/// `was_limited` says whether it may have one. Where there never was one nothing is said of it: crun cannot write that of CPU, and for runc
/// no limit of memory is none of swap either.
#[must_use]
pub fn resized(
    node: &NodeConfig,
    pod: &Pod,
    container: &Container,
    resource: Resizable,
    was_limited: bool,
) -> LinuxResources {
    const NONE: i64 = -1;
    let mut resources = LinuxResources::default();
    match resource {
        Resizable::Cpu => {
            let mut time = time(node, pod, container);
            if time.period().is_some() && was_limited {
                time.set_quota(time.quota().or(Some(NONE)));
            }
            resources.set_cpu(Some(time));
        }
        Resizable::Memory => {
            let mut bytes = bytes(node, pod, container);
            bytes.set_limit(bytes.limit().or(was_limited.then_some(NONE)));
            resources.set_memory(Some(bytes));
            let mut unified = unified(node, pod, container);
            // Of the whole container, not of its memory; and no swap is given to one that runs.
            unified.retain(|file, _| file != "memory.oom.group" && file != "memory.swap.max");
            if node.cgroups.version == CgroupVersion::V2 && node.cgroups.memory_qos.is_some() {
                unified.entry("memory.high".to_owned()).or_insert_with(|| "max".to_owned());
            }
            if !unified.is_empty() {
                resources.set_unified(Some(unified.into_iter().collect()));
            }
        }
    }
    resources
}

/// A bound of the pod is a bound of each of its containers.
fn limit(pod: &Pod, container: &Container, amount: fn(&Quantities) -> Option<u64>) -> Option<u64> {
    let positive = |level: &Quantities| amount(level).filter(|amount| *amount > 0);
    let of_pod = || pod.resources.as_ref().and_then(|own| positive(&own.limits));
    positive(&container.resources.limits).or_else(of_pod)
}

fn time(node: &NodeConfig, pod: &Pod, container: &Container) -> LinuxCpu {
    let cpu_limit = limit(pod, container, |all| all.cpu_milli);
    let request = container.resources.requests.cpu_milli.or(cpu_limit).unwrap_or(0);
    let mut time = LinuxCpu::default();
    time.set_shares(Some(cpu::shares(request)));
    if node.cgroups.cfs_quota {
        let period = cgroup::period_us(node);
        let quota = cpu_limit.and_then(|milli| cpu::quota_us(milli, period));
        time.set_period(Some(period)).set_quota(quota.map(signed));
    }
    time
}

fn bytes(node: &NodeConfig, pod: &Pod, container: &Container) -> LinuxMemory {
    let memory_limit = limit(pod, container, |all| all.memory_bytes);
    let mut bytes = LinuxMemory::default();
    bytes.set_limit(memory_limit.map(signed)).set_swap(memory_and_swap(node, memory_limit).map(signed));
    bytes
}

/// Files of version 2 for which the spec has no other word.
fn unified(node: &NodeConfig, pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    match node.cgroups.version {
        CgroupVersion::V1 => BTreeMap::new(),
        CgroupVersion::V2 => {
            let resources = &container.resources;
            let request = resources.requests.memory_bytes.unwrap_or(0);
            let protected = memory::protection(pod.qos, request, &node.cgroups);
            let files = [
                ("memory.oom.group", node.cgroups.oom_group.then_some(1)),
                ("memory.min", protected.map(|bytes| bytes.min)),
                ("memory.low", protected.map(|bytes| bytes.low)),
                ("memory.high", memory::high(resources, node)),
                ("memory.swap.max", memory::swap_max(pod, resources, node)),
            ];
            let text = |(name, value): (&str, Option<u64>)| Some((name.to_owned(), value?.to_string()));
            files.into_iter().filter_map(text).collect()
        }
    }
}

/// Memory and swap together, in version 1: no more than the memory alone, which there is all that can be done against
/// swap. Version 2 has a file of its own, see [`unified`].
fn memory_and_swap(node: &NodeConfig, memory_limit: Option<u64>) -> Option<u64> {
    match (node.cgroups.version, node.cgroups.swap) {
        (CgroupVersion::V1, SwapBehavior::NoSwap | SwapBehavior::LimitedSwap { .. }) => memory_limit,
        (CgroupVersion::V1, SwapBehavior::Uncounted) | (CgroupVersion::V2, _) => None,
    }
}

/// A default that denies; runtimes add the harmless devices themselves. A privileged container may use all.
fn devices(container: &Container) -> Vec<LinuxDeviceCgroup> {
    let mut rule = LinuxDeviceCgroup::default();
    rule.set_allow(container.security.privileged).set_access(Some("rwm".to_owned())).set_typ(None);
    vec![rule]
}

fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}
