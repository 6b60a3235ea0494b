//! Events of the node. Source: `pkg/kubelet/events/event.go` and where each is recorded.

use crate::{
    config::{CgroupSettings, CgroupVersion, DnsSettings, KubepodsBounds, MemoryVolumes},
    derived::resolv,
    status::Severity,
};

/// Said when a machine has cgroup v1 (`CgroupV1DeprecatedWarning` of `pkg/kubelet/cm/container_manager.go`: tools match it).
const CGROUP_V1: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. \
    Please migrate to cgroup v2. More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";

/// Said when volumes in memory may be swapped out (`NewContainerManager` of `pkg/kubelet/cm/container_manager_linux.go`).
const SWAPPED: &str = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) \
    might be swapped to disk and should no longer be considered secure.";

/// An event about the node, for the recorder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Whether somebody should look.
    pub severity: Severity,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
}

/// What is told once when the agent starts, the node's resolv.conf being at a path.
#[must_use]
pub fn starting(
    cgroups: &CgroupSettings,
    memory: MemoryVolumes,
    dns: &DnsSettings,
    resolv_conf: &str,
) -> Vec<Note> {
    let mut notes = vec![normal("Starting", "Starting kubelet.".to_owned())];
    if memory.may_be_swapped() {
        notes.push(warning("PossibleMemoryBackedVolumesOnDisk", SWAPPED.to_owned()));
    }
    if cgroups.version == CgroupVersion::V1 {
        notes.push(warning("CgroupV1", CGROUP_V1.to_owned()));
    }
    if cgroups.kubepods != KubepodsBounds::default() {
        notes
            .push(normal("NodeAllocatableEnforced", "Updated Node Allocatable limit across pods".to_owned()));
    }
    if let Some(message) = resolv::node_limits(dns, resolv_conf) {
        notes.push(warning("CheckLimitsForResolvConf", message));
    }
    notes
}

/// Containerd's configuration cannot be used, and what held before holds on. The kubelet has no such event: containerd itself
/// does not begin with such a file.
#[must_use]
pub fn runtime_fault(fault: &str) -> Note {
    let message = format!("containerd's configuration cannot be used; what held before holds on: {fault}");
    warning("InvalidRuntimeConfiguration", message)
}

/// A condition has become another (`recordNodeStatusEvent`).
pub(super) fn status_is(node: &str, reason: &str) -> Note {
    normal(reason, format!("Node {node} status is now: {reason}"))
}

pub(super) fn rebooted(node: &str, boot: &str) -> Note {
    warning("Rebooted", format!("Node {node} has been rebooted, boot id: {boot}"))
}

fn warning(reason: &str, message: String) -> Note {
    Note { severity: Severity::Warning, reason: reason.to_owned(), message }
}

fn normal(reason: &str, message: String) -> Note {
    Note { severity: Severity::Normal, reason: reason.to_owned(), message }
}
