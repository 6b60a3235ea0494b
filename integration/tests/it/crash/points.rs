//! Where agents die, and when they come there.

/// Labels that a pod of our own runtime does not come to.
pub(super) const OF_GROUPED: [&str; 2] = ["grouped.recorded", "grouped.held"];

/// Labels that only the end of a pod comes to.
const OF_ENDS: [&str; 22] = [
    "signal.before",
    "signal.after",
    "remove-sandbox.before",
    "remove-sandbox.after",
    "remove-network.before",
    "remove-network.after",
    "remove-netns.before",
    "remove-netns.after",
    "remove-volumes.before",
    "remove-volumes.after",
    "remove-cgroup.before",
    "remove-cgroup.after",
    "remove-dirs.before",
    "remove-dirs.after",
    "pod.logs-removed",
    "sandbox.shut-down",
    "grouped.released",
    "volumes.unmounted",
    "drop-end.before",
    "drop-end.after",
    "forget.before",
    "forget.after",
];

/// Labels that both the start and the end of a pod come to.
const OF_BOTH: [&str; 10] = [
    "remove-container.before",
    "remove-container.after",
    "container.task-deleted",
    "container.snapshot-removed",
    "read-termination-message.before",
    "read-termination-message.after",
    "persist.before",
    "persist.after",
    "agent.restored",
    "set-qos.before",
];

/// Points at which a label is reached again, and whether that is at the end of a pod.
pub(super) const AGAIN: [(&str, bool); 9] = [
    ("persist.after#2", false),
    ("persist.after#4", false),
    ("ensure-rootfs.after#2", false),
    ("start-container.before#2", false),
    ("container.task-created#3", false),
    ("start-container.after#3", false),
    ("signal.after#2", true),
    ("container.snapshot-removed#2", true),
    ("remove-container.after#2", true),
];

/// Points after which nothing of their kind is left to be done: whoever recovers from a death there does not come to it.
pub(super) const DONE: [&str; 11] = [
    "create-mirror.after",
    "ensure-sandbox.after",
    "sandbox.started",
    "container.task-created#3",
    "start-container.after#3",
    "grouped.held",
    "pull.named",
    "pull-image.after",
    "unpack.done",
    "sweep.after",
    "forget.after",
];

/// Where every agent comes to that begins.
pub(crate) const BEGUN: &str = "agent.restored";

/// Points at which an agent dies whose pod has a handler of containerd's own.
pub(super) const GROUPED: [&str; 7] = [
    "grouped.recorded",
    "grouped.held",
    "container.record-created",
    "container.task-created",
    "container.task-started",
    "container.task-deleted",
    "grouped.released",
];

/// What labels of hooks begin with.
pub(super) const HOOK: &str = "run-hook.";

/// What labels of pulls begin with.
pub(super) const PULL: &str = "pull";

/// What labels of the unpacking of an imported image begin with.
pub(super) const UNPACK: &str = "unpack.";

/// Points about cgroups, which are tried on version 2 too (`scripts/test-guests`).
pub(super) const OF_CGROUPS: [&str; 6] = [
    "ensure-cgroup.before",
    "ensure-cgroup.after",
    "remove-cgroup.before",
    "remove-cgroup.after",
    "set-qos.before",
    "set-qos.after",
];

/// Whether a point is reached while a pod starts, and while it ends.
pub(super) fn phases(point: &str) -> (bool, bool) {
    if let Some((_, is_end)) = AGAIN.iter().find(|(again, _)| *again == point) {
        return (!is_end, *is_end);
    }
    let is_end = OF_ENDS.contains(&point);
    (!is_end, is_end || OF_BOTH.contains(&point))
}
