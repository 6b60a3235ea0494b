//! Values of a pod's cgroup and of the levels above it.
//!
//! Source: `pkg/kubelet/cm/helpers_linux.go` `ResourceConfigForPod`, `qos_container_manager_linux.go`,
//! `node_container_manager_linux.go`.

use std::collections::BTreeMap;

use super::{
    CgroupValues, QosValues, cpu,
    memory::{self, Protection},
};
use crate::{
    config::NodeConfig,
    derived::totals,
    spec::{Pod, QosClass, Quantities},
};

/// Values of the pod's own level.
#[must_use]
pub fn pod_values(pod: &Pod, node: &NodeConfig) -> CgroupValues {
    let requests = totals::requests(pod);
    let limits = totals::limits(pod);
    let cpu_limited = totals::every_container_limits(pod, |limits| limits.cpu_milli);
    let (shares, cpu_limited) = match pod.qos {
        QosClass::Guaranteed => (cpu::shares(requests.cpu_milli.unwrap_or(0)), true),
        QosClass::Burstable => (cpu::shares(requests.cpu_milli.unwrap_or(0)), cpu_limited),
        QosClass::BestEffort => (cpu::SHARES_MIN, false),
    };
    let period = period_us(node);
    let quota = cpu::quota_us(limits.cpu_milli.unwrap_or(0), period);
    let protected = memory::protection(pod.qos, requests.memory_bytes.unwrap_or(0), &node.cgroups);
    CgroupValues {
        cpu_shares: Some(shares),
        cpu_quota_us: quota.filter(|_| cpu_limited && node.cgroups.cfs_quota),
        cpu_period_us: cpu_limited.then_some(period),
        cpus: None,
        memory_bytes_min: protected.map(|bytes| bytes.min),
        memory_bytes_low: protected.map(|bytes| bytes.low),
        memory_bytes_max: memory_max(pod),
        pids_max: node.cgroups.pod_pids_max,
        hugepages_bytes_max: hugepages(&requests, node),
    }
}

/// The memory limit of a pod's own level in bytes; `None` is without limit.
#[must_use]
pub fn memory_max(pod: &Pod) -> Option<u64> {
    let is_limited = match pod.qos {
        QosClass::Guaranteed => true,
        QosClass::Burstable => totals::every_container_limits(pod, |limits| limits.memory_bytes),
        QosClass::BestEffort => false,
    };
    totals::limits(pod).memory_bytes.filter(|bytes| is_limited && *bytes > 0)
}

/// What one pod asks of the levels above its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QosShare {
    burstable_milli: u64,
    protected: Protection,
}

impl QosShare {
    /// That of a pod.
    #[must_use]
    pub fn of(pod: &Pod, node: &NodeConfig) -> Self {
        let requests = totals::requests(pod);
        let burstable_milli = match pod.qos {
            QosClass::Burstable => requests.cpu_milli.unwrap_or(0),
            QosClass::Guaranteed | QosClass::BestEffort => 0,
        };
        let protected = memory::protection(pod.qos, requests.memory_bytes.unwrap_or(0), &node.cgroups);
        Self { burstable_milli, protected: protected.unwrap_or(Protection { min: 0, low: 0 }) }
    }
}

/// The shares of all pods that run. Wider than a share, so that what is added can be taken away again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QosTotals {
    burstable_milli: u128,
    min: u128,
    low: u128,
}

impl QosTotals {
    /// Adds a pod.
    pub fn add(&mut self, share: Option<QosShare>) {
        if let Some(share) = share {
            self.burstable_milli += u128::from(share.burstable_milli);
            self.min += u128::from(share.protected.min);
            self.low += u128::from(share.protected.low);
        }
    }

    /// Takes a pod away that was added.
    pub fn subtract(&mut self, share: Option<QosShare>) {
        if let Some(share) = share {
            self.burstable_milli -= u128::from(share.burstable_milli);
            self.min -= u128::from(share.protected.min);
            self.low -= u128::from(share.protected.low);
        }
    }
}

/// Values of `kubepods` and of the QoS levels, for the pods that are on the node.
#[must_use]
pub fn qos_values(node: &NodeConfig, totals: &QosTotals) -> QosValues {
    let at_most = |amount: u128| u64::try_from(amount).unwrap_or(u64::MAX);
    let burstable_milli = at_most(totals.burstable_milli);
    let requested = Protection { min: at_most(totals.min), low: at_most(totals.low) };
    let bounds = &node.cgroups.kubepods;
    // A level protects no more than the levels above it do: `kubepods` covers both kinds of all pods.
    let has_protection = node.cgroups.memory_qos.is_some();
    QosValues {
        kubepods: CgroupValues {
            cpu_shares: bounds.resources.cpu_milli.map(cpu::shares),
            cpus: bounds.cpus.clone(),
            memory_bytes_min: has_protection.then_some(requested.min.saturating_add(requested.low)),
            memory_bytes_low: has_protection.then_some(requested.low),
            memory_bytes_max: bounds.resources.memory_bytes.filter(|bytes| *bytes > 0),
            pids_max: bounds.pids_max,
            hugepages_bytes_max: hugepages(&bounds.resources, node),
            ..CgroupValues::default()
        },
        burstable: CgroupValues {
            cpu_shares: Some(cpu::shares(burstable_milli)),
            memory_bytes_low: has_protection.then_some(requested.low),
            ..CgroupValues::default()
        },
        best_effort: CgroupValues { cpu_shares: Some(cpu::SHARES_MIN), ..CgroupValues::default() },
    }
}

/// Length of a CPU period in µs.
pub(crate) fn period_us(node: &NodeConfig) -> u64 {
    u64::try_from(node.cgroups.cfs_period.as_micros()).unwrap_or(u64::MAX)
}

/// Huge pages of every size that can be bounded: what is asked for, else none, as there may be some later.
fn hugepages(asked: &Quantities, node: &NodeConfig) -> BTreeMap<u64, u64> {
    let asked_of = |size: &u64| asked.hugepages_bytes.get(size).copied().unwrap_or(0);
    node.cgroups.hugepage_sizes.iter().map(|size| (*size, asked_of(size))).collect()
}

#[cfg(test)]
mod tests;
