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

/// Images cannot be removed by how full their disk is (`InvalidDiskCapacity`).
#[must_use]
pub fn image_disk_has_no_size() -> Note {
    warning("InvalidDiskCapacity", "invalid capacity 0 on image filesystem".to_owned())
}

/// The disk of images is as full after the removal of what may be removed, of which so many bytes were freed (`FreeDiskSpaceFailed` of
/// `pkg/kubelet/images/image_gc_manager.go`).
#[must_use]
pub fn image_disk_stays_full(percent: u64, capacity: u64, freed: u64) -> Note {
    let capacity = size(capacity);
    let message = format!(
        "Insufficient free disk space on the node's image filesystem ({percent}% of {capacity} used). Failed to free sufficient \
         space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, \
         logs, volumes, or other data."
    );
    warning("FreeDiskSpaceFailed", message)
}

/// Unused images could not be removed, more than once in a row (`StartGarbageCollection` of `pkg/kubelet/kubelet.go`).
#[must_use]
pub fn images_not_removed(why: String) -> Note {
    warning("ImageGCFailed", why)
}

/// Bytes in words: `512 B`, `1.5 KiB`, `2.0 TiB`.
fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let Some((shift, unit)) = units.into_iter().find(|(shift, _)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    // In tenths, rounded.
    let tenths = (u128::from(bytes) * 10 + (1 << (shift - 1))) >> shift;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_the_largest_unit_that_they_fill() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1024.0 KiB"),
            (10 << 20, "10.0 MiB"),
            ((53 << 30) / 10, "5.3 GiB"),
            (2 << 40, "2.0 TiB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
        assert_eq!(size(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn a_disk_that_stays_full_is_told_as_by_a_kubelet() {
        let note = image_disk_stays_full(91, 10 << 30, 1234);
        assert_eq!(
            note.message,
            "Insufficient free disk space on the node's image filesystem (91% of 10.0 GiB used). Failed to free sufficient space by \
             deleting unused images (freed 1234 bytes). Investigate disk usage, as it could be used by active images, logs, \
             volumes, or other data."
        );
    }
}
