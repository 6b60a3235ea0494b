//! Values of a pod's cgroup and of the levels above it.
//!
//! Source: `pkg/kubelet/cm/helpers_linux.go` `ResourceConfigForPod`, `qos_container_manager_linux.go`,
//! `node_container_manager_linux.go`.

use std::collections::BTreeMap;

use super::{CgroupValues, QosValues, cpu};
use crate::{
    config::NodeConfig,
    spec::{Pod, QosClass, Quantities},
    totals,
};

/// Values of the pod's own level.
#[must_use]
pub fn pod_values(pod: &Pod, node: &NodeConfig) -> CgroupValues {
    let requests = totals::requests(pod);
    let limits = totals::limits(pod);
    let cpu_limited = totals::every_container_limits(pod, |limits| limits.cpu_milli);
    let memory_limited = totals::every_container_limits(pod, |limits| limits.memory_bytes);
    let (shares, cpu_limited, memory_limited) = match pod.qos {
        QosClass::Guaranteed => (cpu::shares(requests.cpu_milli.unwrap_or(0)), true, true),
        QosClass::Burstable => (cpu::shares(requests.cpu_milli.unwrap_or(0)), cpu_limited, memory_limited),
        QosClass::BestEffort => (cpu::SHARES_MIN, false, false),
    };
    let period = period_us(node);
    let quota = cpu::quota_us(limits.cpu_milli.unwrap_or(0), period);
    CgroupValues {
        cpu_shares: Some(shares),
        cpu_quota_us: quota.filter(|_| cpu_limited && node.cgroups.cfs_quota),
        cpu_period_us: cpu_limited.then_some(period),
        memory_bytes_max: limits.memory_bytes.filter(|bytes| memory_limited && *bytes > 0),
        pids_max: node.cgroups.pod_pids_max,
        hugepages_bytes_max: hugepages(&requests, node),
    }
}

/// Values of `kubepods` and of the QoS levels, for the pods that are on the node.
#[must_use]
pub fn qos_values<'a>(node: &NodeConfig, pods: impl IntoIterator<Item = &'a Pod>) -> QosValues {
    let burstable_milli = pods
        .into_iter()
        .filter(|pod| pod.qos == QosClass::Burstable)
        .map(|pod| totals::requests(pod).cpu_milli.unwrap_or(0))
        .fold(0, u64::saturating_add);
    let only_shares = |shares| CgroupValues { cpu_shares: Some(shares), ..CgroupValues::default() };
    QosValues {
        kubepods: CgroupValues {
            cpu_shares: node.allocatable.cpu_milli.map(cpu::shares),
            memory_bytes_max: node.allocatable.memory_bytes.filter(|bytes| *bytes > 0),
            hugepages_bytes_max: node.allocatable.hugepages_bytes.clone(),
            ..CgroupValues::default()
        },
        burstable: only_shares(cpu::shares(burstable_milli)),
        best_effort: only_shares(cpu::SHARES_MIN),
    }
}

/// Length of a CPU period in µs.
pub(crate) fn period_us(node: &NodeConfig) -> u64 {
    u64::try_from(node.cgroups.cfs_period.as_micros()).unwrap_or(u64::MAX)
}

/// Huge pages of every size that the node has: what is asked for, else none.
pub(crate) fn hugepages(asked: &Quantities, node: &NodeConfig) -> BTreeMap<u64, u64> {
    let asked_of = |size: &u64| asked.hugepages_bytes.get(size).copied().unwrap_or(0);
    node.capacity.hugepages_bytes.keys().map(|size| (*size, asked_of(size))).collect()
}

#[cfg(test)]
mod tests;
