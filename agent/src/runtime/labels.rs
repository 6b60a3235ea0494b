//! Labels on what Berth makes in containerd. Those of Kubernetes are as containerd's CRI plugin sets them, so that every tool
//! finds the pods; nothing of an image ever becomes a label (CVE-2026-53488). What says to CRI that a record is its own,
//! `io.cri-containerd.kind`, is on none (decision 0018).

use std::collections::HashMap;

use berth_core::id::{Attempt, PodUid};
use containerd_client::services::v1::Container;

/// Name of a pod.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Namespace of a pod.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// UID of a pod.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Name of a container in its pod.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// On image records: `managed`.
pub const IMAGE: &str = "io.cri-containerd.image";
/// Which sandbox of the pod, or which run of the container.
pub const ATTEMPT: &str = "berth.dev/attempt";
/// Hash of the name and image that a container was made from, in hexadecimal.
const HASH: &str = "berth.dev/container-hash";
/// The sandbox that a container is in; the record of a sandbox names itself.
pub const SANDBOX: &str = "berth.dev/sandbox";
/// Keeps a snapshot until it is removed, while no container record does: a value of any kind.
pub const GC_ROOT: &str = "containerd.io/gc.root";

/// Whether a record is ours, and not another agent's.
#[must_use]
pub fn is_ours(record: &Container) -> bool {
    record.labels.contains_key(ATTEMPT)
}

/// The sandbox that a container is in; empty on what others made. Earlier versions said it in a field, by which CRI's store
/// of sandboxes is asked (decision 0018).
#[must_use]
pub fn sandbox_of(record: &Container) -> &str {
    record.labels.get(SANDBOX).unwrap_or(&record.sandbox)
}

/// The labels of something of ours, as read back.
#[derive(Debug, Clone, Copy)]
pub struct Labels<'a>(pub &'a HashMap<String, String>);

impl Labels<'_> {
    /// UID of its pod.
    #[must_use]
    pub fn pod(&self) -> Option<PodUid> {
        self.0.get(POD_UID).filter(|uid| !uid.is_empty()).map(PodUid::new)
    }

    /// Which attempt. Absent on what others made.
    #[must_use]
    pub fn attempt(&self) -> Option<Attempt> {
        self.0.get(ATTEMPT)?.parse().ok()
    }

    /// Hash of name and image; 0, which no hash is likely to be, when there is none: then the container counts as made from
    /// what is wanted.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.0.get(HASH).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or_default()
    }
}
