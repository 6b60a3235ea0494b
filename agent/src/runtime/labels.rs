//! Labels on what Berth makes in containerd. Those of Kubernetes are as containerd's CRI plugin sets them, so that every tool
//! finds the pods; nothing of an image ever becomes a label (CVE-2026-53488). What says to CRI that a record is its own,
//! `io.cri-containerd.kind`, is on none (decision 0018).

use std::collections::HashMap;

use berth_core::{
    id::{Attempt, ContainerName, PodName, PodUid},
    pod::retention::RunName,
};
use containerd_client::services::v1::Container;

use crate::config::{Handler, PodRuntime};

/// Name of a pod.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Namespace of a pod.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// UID of a pod.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Name of a container in its pod.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// On image records: [`MANAGED`].
pub const IMAGE: &str = "io.cri-containerd.image";
/// Marks an image as the node's to manage.
pub const MANAGED: &str = "managed";
/// On image records: [`PINNED_VALUE`].
pub const PINNED: &str = "io.cri-containerd.pinned";
/// Keeps an image that nothing uses.
pub const PINNED_VALUE: &str = "pinned";
/// Which sandbox of the pod, or which run of the container.
pub const ATTEMPT: &str = "berth.dev/attempt";
/// Hash of the name and image that a container was made from, in hexadecimal.
const HASH: &str = "berth.dev/container-hash";
/// The sandbox that a container is in; the record of a sandbox names itself.
pub const SANDBOX: &str = "berth.dev/sandbox";
/// The run directory of the agent that made it. No two agents of a node have one, since it is locked, and the sockets of a
/// pod's shim are in it.
pub const RUN_DIR: &str = "berth.dev/run-dir";
/// On a snapshot: the volume that is mounted from it.
pub const VOLUME: &str = "berth.dev/volume";
/// Beside labels, on the record of a sandbox: the handler that it was made by, as JSON.
pub const HANDLER: &str = "berth.dev/handler";
/// Keeps a snapshot until it is removed, while no container record does: a value of any kind.
pub const GC_ROOT: &str = "containerd.io/gc.root";
/// On a snapshot: as whom the users that own its files are seen, as `container:host:count` (`core/snapshots/snapshotter.go`).
pub const UID_MAPPING: &str = "containerd.io/snapshot/uidmapping";
/// The same of groups.
pub const GID_MAPPING: &str = "containerd.io/snapshot/gidmapping";

/// Whether a record is that of the agent with this run directory (decision 0027). One that names no run directory was made by an
/// earlier version, which knew of no second agent at the same containerd.
#[must_use]
pub fn is_ours(record: &Container, run_dir: &str) -> bool {
    let owner = record.labels.get(RUN_DIR);
    record.labels.contains_key(ATTEMPT) && owner.is_none_or(|owner| owner == run_dir)
}

/// The sandbox that a container is in; empty on what others made. Earlier versions said it in a field, by which CRI's store
/// of sandboxes is asked (decision 0018).
#[must_use]
pub fn sandbox_of(record: &Container) -> &str {
    record.labels.get(SANDBOX).unwrap_or(&record.sandbox)
}

/// The handler that a sandbox was made by. Earlier versions recorded the name of its runtime alone.
#[must_use]
pub fn handler_of(sandbox: &Container) -> Option<Handler> {
    if let Some(kept) = sandbox.extensions.get(HANDLER) {
        return serde_json::from_slice(&kept.value).ok();
    }
    let runtime = sandbox.runtime.as_ref()?;
    Some(Handler::of(PodRuntime::named(&runtime.name)))
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

    /// Which run of a container. Absent on what others made.
    #[must_use]
    pub fn run(&self) -> Option<RunName> {
        let text = |name: &str| self.0.get(name).cloned().unwrap_or_default();
        Some(RunName {
            uid: self.pod()?,
            pod: PodName { namespace: text(POD_NAMESPACE), name: text(POD_NAME) },
            container: ContainerName::new(text(CONTAINER_NAME)),
            attempt: self.attempt()?,
        })
    }

    /// Hash of name and image; 0, which no hash is likely to be, when there is none: then the container counts as made from
    /// what is wanted.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.0.get(HASH).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_agent_made_is_not_ours() {
        let cases: [(&[(&str, &str)], bool); 5] = [
            (&[(ATTEMPT, "0"), (RUN_DIR, "/run/berth")], true),
            (&[(ATTEMPT, "0"), (RUN_DIR, "/run/second/berth")], false),
            (&[(ATTEMPT, "0")], true),
            (&[(RUN_DIR, "/run/berth")], false),
            (&[(POD_UID, "1-a")], false),
        ];
        for (labels, ours) in cases {
            let labels =
                labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let record = Container { labels, ..Container::default() };
            assert_eq!(is_ours(&record, "/run/berth"), ours, "{record:?}");
        }
    }

    #[test]
    fn a_run_is_named_by_its_labels() {
        let all = [(POD_UID, "1-a"), (POD_NAME, "web"), (POD_NAMESPACE, "default"), (CONTAINER_NAME, "main")];
        let run = |attempt: &str| {
            let labels = all.iter().copied().chain([(ATTEMPT, attempt)]);
            let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            Labels(&labels).run()
        };
        let expected = RunName {
            uid: PodUid::new("1-a"),
            pod: PodName { namespace: "default".to_owned(), name: "web".to_owned() },
            container: ContainerName::new("main"),
            attempt: 3,
        };
        assert_eq!(run("3"), Some(expected));
        assert_eq!(run(""), None, "what others made");
        assert_eq!(Labels(&HashMap::new()).run(), None);
    }
}
