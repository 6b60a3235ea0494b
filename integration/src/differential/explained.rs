//! Differences that are known, each with the place that explains it.

use std::collections::BTreeSet;

use super::compare::Difference;
use super::play::{Finding, Phase};

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

impl Explained {
    /// Whether the kubelet is as it is by chance: as Go's maps are ordered.
    #[must_use]
    pub fn is_of_chance(&self) -> bool {
        ["by chance", "and not by chance"].iter().any(|end| self.what.ends_with(&format!(", {end}")))
    }
}

const PODS: &str = "docs/differences.md, What pods and the Node show otherwise";
const WANTED: &str = "docs/decisions/0028-where-berth-is-not-as-the-kubelet.md";

/// Cases that no node takes.
const REJECTED: [&str; 10] = [
    "affinity-to-others",
    "app-armor-absent",
    "app-armor-default",
    "no-huge-pages",
    "os-windows",
    "selector-of-others",
    "sysctls-unsafe",
    "too-much-cpu",
    "too-much-disk",
    "too-much-memory",
];

/// In an event of an image that is had, which a container that waits for another has.
const IMAGE_THERE: &str = " | Pulled | ";

/// All of them.
pub const EXPLAINED: &[Explained] = &[
    Explained {
        what: "a limit of memory of the pod as a whole that is the kernel's largest number is not told",
        at: PODS,
        is: |finding| {
            let Difference { path, theirs, .. } = &finding.difference;
            let is_limit = |path: &str| path == "resources/limits/memory";
            let is_none =
                theirs == "9007199254740988Ki" && path.strip_prefix("status/").is_some_and(is_limit);
            is_none || has_changed_too(finding, is_limit)
        },
    },
    Explained {
        what: "what a pod has as a whole is what its cgroup was given, from when it runs until it has ended",
        at: PODS,
        is: |finding| {
            let Difference { path, ours, theirs } = &finding.difference;
            let Some(amount) = path.strip_prefix("status/resources/") else {
                return has_changed_too(finding, |path| path.starts_with("resources/"));
            };
            match finding.phase {
                // Before it runs, and when it has ended, the kubelet shows what is allocated, and what is in no cgroup with it, and parts of a byte.
                _ if ours == "-" => true,
                Phase::Start if theirs.ends_with("00m") && amount == "limits/memory" => is_part(ours, theirs),
                // In between it may have found the cgroup gone: a kill may have ended the pod.
                Phase::Start | Phase::Crash | Phase::Restart | Phase::Deletion if theirs == "-" => true,
                // The kubelet lowers a cgroup's weight before it removes it (`ReduceCPULimits`).
                Phase::Deletion if amount == "requests/cpu" => theirs == "2m",
                _ => amount == "limits/memory" && is_in_pages(ours, theirs),
            }
        },
    },
    Explained {
        what: "options of resolv.conf come in order, and not by chance",
        at: PODS,
        is: |finding| {
            let Difference { path, ours, theirs } = &finding.difference;
            let words = |line: &str| {
                let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
                words.sort_unstable();
                words
            };
            path.ends_with("/log/resolv[]") && ours.starts_with("options ") && words(ours) == words(theirs)
        },
    },
    Explained {
        what: "a pod that has ended keeps its address when the agent begins anew",
        at: PODS,
        is: |finding| {
            let is_address = |path: &str| path == "podIP" || path == "podIPs[]";
            let path = &finding.difference.path;
            let is_kept = matches!(finding.phase, Phase::Restart | Phase::Deletion)
                && finding.difference.theirs == "-"
                && path.strip_prefix("status/").is_some_and(is_address);
            is_kept || has_changed_too(finding, |path| is_address(path) || path.starts_with("resources/"))
        },
    },
    Explained {
        what: "a name of a capability that is none is refused in drop",
        at: WANTED,
        is: |finding| finding.case == "capabilities-prefixed",
    },
    Explained {
        what: "what is wrong in a file of variables is told",
        at: PODS,
        is: |finding| {
            let Difference { ours, theirs, .. } = &finding.difference;
            let (text, why) = ("couldn't parse env file", "couldn't parse env file: line ");
            theirs.contains(text) && ours.contains(why)
        },
    },
    Explained {
        what: "sandbox and network do not wait for volumes",
        at: WANTED,
        is: |finding| {
            let Difference { path, ours, theirs } = &finding.difference;
            let begins = path.ends_with("status/conditions[PodReadyToStartContainers]/status");
            let is_address = path == "status/podIP" || path == "status/podIPs[]";
            (begins && ours == "True" && theirs == "False") || (is_address && theirs == "-")
        },
    },
    Explained {
        what: "why a container could not be made is told without the words that CRI puts before it",
        at: PODS,
        is: |finding| {
            let Difference { ours, theirs, .. } = &finding.difference;
            let of_cri = "failed to generate container \"ID\" spec: failed to generate spec: ";
            // They name a container, so that no two of them are the same, and many are combined.
            let without = theirs.replace(of_cri, "").replace("(combined from similar events): ", "");
            let lines = |text: &str| -> BTreeSet<String> {
                text.lines().filter(|line| !line.contains(IMAGE_THERE)).map(str::to_owned).collect()
            };
            theirs.contains(of_cri) && lines(&without) == lines(ours)
        },
    },
    Explained {
        what: "a message from a log begins elsewhere in a line, by chance",
        at: "docs/differential.md, What is compared, and when",
        is: |finding| {
            let Difference { path, ours, theirs } = &finding.difference;
            path.ends_with("/terminated/message")
                && (ours.ends_with(theirs.as_str()) || theirs.ends_with(ours.as_str()))
        },
    },
    Explained {
        what: "why a container waits is told on when the agent begins anew",
        at: PODS,
        is: |finding| {
            let Difference { path, theirs, .. } = &finding.difference;
            let is_why = |path: &str| {
                path.ends_with("/state/waiting/message") || path.ends_with("/state/waiting/reason")
            };
            let is_forgotten = finding.phase == Phase::Restart
                && is_why(path)
                && (theirs == "-" || theirs == "ContainerCreating" || theirs == "PodInitializing");
            is_forgotten || has_changed_too(finding, is_why)
        },
    },
    Explained {
        what: "a rejected pod stays as it was told, also when the agent begins anew",
        at: PODS,
        is: |finding| {
            REJECTED.contains(&finding.case.as_str())
                && matches!(finding.phase, Phase::Restart | Phase::Deletion)
        },
    },
    Explained {
        what: "the first process of a pod that shares its processes is the shim's",
        at: PODS,
        is: |finding| {
            let Difference { path, ours, .. } = &finding.difference;
            path.ends_with("/log/ps[]") && ours == "berth-pod"
        },
    },
    Explained {
        what: "a pod that never ran and is deleted has failed, and its conditions say so",
        at: PODS,
        is: |finding| {
            let Difference { path, ours, theirs } = &finding.difference;
            let is_ready =
                ["Ready", "ContainersReady"].iter().any(|kind| path.contains(&format!("[{kind}]/")));
            finding.phase == Phase::Deletion
                && is_ready
                && ((ours == "PodFailed" && theirs == "ContainersNotReady")
                    || (ours == "-" && theirs.starts_with("containers with unready status: ")))
        },
    },
    Explained {
        what: "a pod that has ended exceeds no deadline",
        at: PODS,
        is: |finding| finding.case == "deadline-of-ended",
    },
    Explained {
        what: "images are had while something else is waited for",
        at: WANTED,
        is: |finding| {
            let Difference { path, ours, theirs } = &finding.difference;
            path == "events[]" && theirs == "-" && ours.lines().all(|line| line.contains(IMAGE_THERE))
        },
    },
    Explained {
        what: "a probe that is given up with its pod is not told, nor one that came before the container could serve",
        at: PODS,
        is: |finding| {
            let Difference { path, ours, theirs } = &finding.difference;
            let given_up = [
                "context canceled",
                "context deadline exceeded",
                "connection refused",
                "i/o timeout",
                "container is in CONTAINER_EXITED state",
            ];
            let is_such = |line: &str| {
                line.contains(" | Unhealthy | ") && given_up.iter().any(|words| line.contains(words))
            };
            // A command that is killed with its container has failed.
            let died = |line: &str| line.ends_with("probe failed: ");
            path == "events[]" && (ours == "-" || ours.lines().all(died)) && theirs.lines().all(is_such)
        },
    },
    Explained {
        what: "why a probe by command could not be asked is told without the words of gRPC",
        at: PODS,
        is: |finding| finding.case == "ready-no-such-command" && finding.difference.path == "events[]",
    },
    Explained {
        what: "an expression of a sub path is told as it is written, since what it refers to may be secret",
        at: PODS,
        is: |finding| {
            let Difference { ours, theirs, .. } = &finding.difference;
            ours.contains("SubPath `$(") && theirs.contains("SubPath `")
        },
    },
    Explained {
        what: "a profile that is not there is told in fewer words",
        at: PODS,
        is: |finding| {
            let Difference { ours, theirs, .. } = &finding.difference;
            finding.case == "seccomp-absent"
                && [ours, theirs].iter().all(|text| text.contains("cannot load seccomp profile"))
        },
    },
    Explained {
        what: "a limit in which no process fits keeps the container from starting, and not a pause container",
        at: PODS,
        is: |finding| finding.case == "memory-too-small",
    },
    Explained {
        what: "a container that waits for its next run is shown so at once",
        at: PODS,
        is: |finding| {
            let Difference { path, ours, theirs } = &finding.difference;
            (path.ends_with("/state/terminated") && ours == "-")
                || (path.ends_with("/state/waiting/reason") && ours == "CrashLoopBackOff" && theirs == "-")
                || (path.ends_with("/state/waiting/reason")
                    && ours == "CrashLoopBackOff"
                    && theirs == "RunContainerError")
                || (path.ends_with("/state/waiting/message")
                    && ours.starts_with("back-off ")
                    && (theirs == "-" || theirs.starts_with("failed to create containerd task: ")))
        },
    },
    Explained {
        what: "what a startup probe has not decided is not decided by a restart of the agent",
        at: PODS,
        is: |finding| finding.case == "started-not-yet" && finding.phase == Phase::Restart,
    },
    Explained {
        what: "back-offs outlive the agent",
        at: WANTED,
        is: |finding| {
            let Difference { path, ours, theirs } = &finding.difference;
            finding.phase == Phase::Restart
                && ((path.ends_with("/reason") && ours == "ImagePullBackOff" && theirs == "ErrImagePull")
                    || (path.ends_with("/message") && ours.ends_with(theirs.as_str())))
        },
    },
    Explained {
        what: "variables come in the order of the spec, and not by chance",
        at: PODS,
        is: |finding| finding.difference.path.ends_with("/envInOrder[order]"),
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
            let is_order = path.ends_with("/spec/mounts[order]") || path.ends_with("/log/mounts[order]");
            let [ours, theirs] = [&finding.difference.ours, &finding.difference.theirs].map(|list| {
                list.lines().filter(|line| line.split(' ').next() != Some("/dev/shm")).collect::<Vec<_>>()
            });
            path.contains("/spec/mounts[/dev/shm]/") || (is_order && ours == theirs)
        },
    },
    Explained {
        what: "an image is mounted below the pod's directory, read-only as a whole, and told of by the volume's name",
        at: "docs/decisions/0041-volumes-that-are-images.md",
        is: is_of_image_volume,
    },
];

/// A restart of the agent changed of the status of the kubelet alone what is such.
fn has_changed_too(finding: &Finding, is_such: impl Fn(&str) -> bool) -> bool {
    let Difference { path, ours, theirs } = &finding.difference;
    path == "changed[]" && ours == "-" && theirs.lines().all(is_such)
}

/// Whether an amount is another one in whole bytes, which is in thousandths.
fn is_part(whole: &str, thousandths: &str) -> bool {
    let amount = |text: &str| text.trim_end_matches('m').parse::<u64>().ok();
    amount(whole).zip(amount(thousandths)).is_some_and(|(whole, parts)| whole == parts.div_ceil(1000))
}

/// Whether one limit of memory is another in whole pages.
fn is_in_pages(whole: &str, in_pages: &str) -> bool {
    let bytes = |text: &str| -> Option<u64> {
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "" => 1,
            "k" => 1000,
            "M" => 1_000_000,
            "G" => 1_000_000_000,
            "Ki" => 1 << 10,
            "Mi" => 1 << 20,
            "Gi" => 1 << 30,
            _ => return None,
        };
        digits.parse::<u64>().ok()?.checked_mul(unit)
    };
    bytes(whole).zip(bytes(in_pages)).is_some_and(|(whole, in_pages)| whole / 4096 * 4096 == in_pages)
}

fn is_of_image_volume(finding: &Finding) -> bool {
    let Difference { path, ours, theirs } = &finding.difference;
    let is_ours =
        ["/volumes/kubernetes.io~image/", "/volume-subpaths/"].iter().any(|place| ours.contains(place));
    let is_source = path.ends_with("/source") && theirs.contains("/image-volumes/") && is_ours;
    // The pod's own shared memory is elsewhere in the order.
    let without_shm = |list: &str| {
        list.lines().filter(|line| !line.starts_with("/dev/shm ")).collect::<Vec<_>>().join("\n")
    };
    let is_mount = path.contains("/log/mounts[")
        && ours.contains("  overlay ro,")
        && without_shm(theirs) == without_shm(ours).replace("  overlay ro,", "  overlay rw,");
    let of_parts = " in \"STATE/io.containerd.grpc.v1.cri/image-volumes/ID/ID\": ";
    let is_part = theirs.contains(of_parts) && *ours == theirs.replace(of_parts, " in volume \"v\": ");
    is_source || is_mount || is_part
}

/// The first that explains a finding.
#[must_use]
pub fn of(finding: &Finding) -> Option<usize> {
    EXPLAINED.iter().position(|one| (one.is)(finding))
}
