//! Differences that are known, each with the place that explains it.

use super::play::Finding;

/// A difference that is explained.
#[derive(Debug)]
pub struct Explained {
    /// What it is, in a few words.
    pub what: &'static str,
    /// Where it is explained: a section of docs/differences.md, or a decision.
    pub at: &'static str,
    /// Whether a finding is one of it.
    is: fn(&Finding) -> bool,
}

const PODS: &str = "docs/differences.md, What pods and the Node show otherwise";
const STATUSES: &str = "docs/decisions/0033-which-statuses-are-told-at-once.md";

/// All of them.
pub const EXPLAINED: &[Explained] = &[
    Explained {
        what: "sums of resources of the pod as a whole are not told",
        at: STATUSES,
        is: |finding| {
            let path = &finding.difference.path;
            let of_changed = path == "changed[]" && finding.difference.ours == "-";
            path.starts_with("status/resources/")
                || path.starts_with("status/allocatedResources/")
                || (of_changed
                    && finding
                        .difference
                        .theirs
                        .lines()
                        .all(|one| one.starts_with("resources/") || one.starts_with("allocatedResources/")))
        },
    },
    Explained {
        what: "of CPUs without thermal counters, these are masked too, which runtimes pass over",
        at: PODS,
        is: |finding| {
            finding.difference.path.ends_with("/maskedPaths[]")
                && finding.difference.theirs == "-"
                && finding.difference.ours.lines().all(|one| one.ends_with("/thermal_throttle"))
        },
    },
    Explained {
        what: "the node's own network and names are no entries, and not those of a pause container",
        at: PODS,
        is: |finding| {
            let path = &finding.difference.path;
            finding.difference.ours == "-"
                && ["network", "uts", "ipc", "pid"]
                    .iter()
                    .any(|kind| path.contains(&format!("/namespaces[{kind}]/")))
        },
    },
    Explained {
        what: "/dev/shm is a file system of the pod's that the shim mounts, and no bind of a pause container's",
        at: PODS,
        is: |finding| {
            let path = &finding.difference.path;
            path.contains("/spec/mounts[/dev/shm]/") || path.ends_with("/spec/mounts[order]")
        },
    },
];

/// The first that explains a finding.
#[must_use]
pub fn of(finding: &Finding) -> Option<usize> {
    EXPLAINED.iter().position(|one| (one.is)(finding))
}
