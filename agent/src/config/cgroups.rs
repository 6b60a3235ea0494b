//! cgroups: what of the settings fits the machine, and what the core gets of them.

use berth_core::config::{
    CgroupDriver, CgroupSettings, CgroupVersion, KubepodsBounds, MemoryQos, MemoryReservation, SwapBehavior,
};

use super::{Facts, Settings, resolve::duration};
use crate::document::{Fault, Node};

impl Settings {
    /// What of the settings does not fit the machine.
    pub(super) fn check_cgroups(&self, facts: &Facts) -> Result<(), Fault> {
        let kubelet = &self.kubelet;
        let limited = self.swap_behavior() == Some("LimitedSwap");
        let v1 = facts.cgroup_version == CgroupVersion::V1;
        let without_systemd =
            !facts.booted_with_systemd && self.cgroup_driver(facts) == CgroupDriver::Systemd;
        for (is_wrong, field, message) in [
            // As the kubelet since 1.35 (KEP-5573).
            (
                v1 && kubelet.fail_cgroup_v1 != Some(false),
                "failCgroupV1",
                "this machine uses cgroup v1, which Kubernetes has given up: boot it with cgroup v2, or set `failCgroupV1: false` (or --fail-cgroupv1=false) to run on v1 all the same",
            ),
            (
                v1 && kubelet.single_process_oom_kill == Some(false),
                "singleProcessOOMKill",
                "this machine uses cgroup v1, which kills one process at a time: leave it out, or set it to true",
            ),
            (
                v1 && limited,
                "memorySwap.swapBehavior",
                "this machine uses cgroup v1, where swap cannot be bounded: LimitedSwap needs cgroup v2",
            ),
            (
                facts.swap.is_on && kubelet.fail_swap_on != Some(false),
                "failSwapOn",
                "swap is on (see /proc/swaps), and nobody has said that pods may run beside it: turn it off, or set `failSwapOn: false` (or --fail-swap-on=false)",
            ),
            (
                without_systemd && self.containerd.systemd_cgroup.is_some(),
                "cgroupDriver",
                "this machine is not booted with systemd, so nobody makes slices: set `SystemdCgroup = false` in containerd's configuration",
            ),
            (
                without_systemd,
                "cgroupDriver",
                "this machine is not booted with systemd, so nobody makes slices: set `cgroupDriver: cgroupfs` (or --cgroup-driver=cgroupfs)",
            ),
        ] {
            if is_wrong {
                return Err(self.documents.kubelet.fault(field, message));
            }
        }
        Ok(())
    }

    pub(super) fn cgroups(&self, facts: &Facts) -> CgroupSettings {
        let kubelet = &self.kubelet;
        let root = kubelet.cgroup_root.as_deref().unwrap_or_default();
        CgroupSettings {
            version: facts.cgroup_version,
            driver: self.cgroup_driver(facts),
            root: format!("/{}", root.trim_matches('/')),
            pod_pids_max: kubelet
                .pod_pids_limit
                .and_then(|limit| u64::try_from(limit).ok())
                .filter(|limit| *limit > 0),
            cfs_quota: kubelet.cpu_cfs_quota != Some(false),
            cfs_period: duration(kubelet.cpu_cfs_quota_period),
            oom_group: facts.cgroup_version == CgroupVersion::V2
                && kubelet.single_process_oom_kill != Some(true),
            hugepage_sizes: facts.hugepage_sizes.clone(),
            kubepods: self.kubepods(facts),
            memory_qos: self.memory_qos(facts),
            swap: self.swap(facts),
        }
    }

    /// What containerd's configuration says, as it would to a kubelet, whose own word does not count then (KEP-4033); what is
    /// set, else; else what suits the machine: two must not write one tree, and on cgroup v2 systemd writes it where it is
    /// process 1.
    pub(super) fn cgroup_driver(&self, facts: &Facts) -> CgroupDriver {
        if let Some(said) = &self.containerd.systemd_cgroup {
            return if said.value { CgroupDriver::Systemd } else { CgroupDriver::Cgroupfs };
        }
        let is_set = self.documents.kubelet.get("cgroupDriver").and_then(Node::text).is_some();
        let suits = facts.booted_with_systemd && facts.cgroup_version == CgroupVersion::V2;
        match self.kubelet.cgroup_driver.as_deref() {
            Some("systemd") => CgroupDriver::Systemd,
            Some(_) | None if !is_set && suits => CgroupDriver::Systemd,
            Some(_) | None => CgroupDriver::Cgroupfs,
        }
    }

    /// Source: `enforceNodeAllocatableCgroups`, `getNodeAllocatableInternalAbsolute` in
    /// `pkg/kubelet/cm/node_container_manager_linux.go`.
    fn kubepods(&self, facts: &Facts) -> KubepodsBounds {
        let enforced = self.kubelet.enforce_node_allocatable.as_deref().unwrap_or_default();
        let (resources, pids_kept) = if enforced.iter().any(|name| name == "pods") {
            (self.unreserved(&facts.capacity), self.reserved_pids())
        } else {
            (facts.capacity.clone(), 0)
        };
        let pids_max = facts.pids_max.map(|all| all.saturating_sub(pids_kept));
        KubepodsBounds { resources, pids_max, cpus: facts.cpus.clone() }
    }

    fn memory_qos(&self, facts: &Facts) -> Option<MemoryQos> {
        let kubelet = &self.kubelet;
        let is_on = facts.cgroup_version == CgroupVersion::V2 && kubelet.has_gate("MemoryQoS");
        is_on.then(|| MemoryQos {
            throttling_factor: kubelet.memory_throttling_factor.unwrap_or_default(),
            reservation: match kubelet.memory_reservation_policy.as_deref() {
                Some("TieredReservation") => MemoryReservation::Tiered,
                Some(_) | None => MemoryReservation::None,
            },
            page_bytes: facts.page_bytes,
        })
    }

    fn swap(&self, facts: &Facts) -> SwapBehavior {
        match self.swap_behavior() {
            _ if !facts.swap.is_counted => SwapBehavior::Uncounted,
            Some("LimitedSwap") => SwapBehavior::LimitedSwap { node_bytes: facts.swap.bytes },
            Some(_) | None => SwapBehavior::NoSwap,
        }
    }

    fn swap_behavior(&self) -> Option<&str> {
        self.kubelet.memory_swap.as_ref()?.swap_behavior.as_deref()
    }
}
