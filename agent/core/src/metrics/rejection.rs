//! Pods that the node does not admit, by reason.

/// Reasons that are told as they are. Source: `admissionRejectionReasons` of `pkg/kubelet/kubelet.go`, those that this node gives.
const KNOWN: [&str; 8] = [
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SysctlForbidden",
    "UnexpectedAdmissionError",
];

/// Reasons that the kubelet has no word of their own for.
const OTHERS: [&str; 4] = ["NodeAffinity", "NodeName", "NodePorts", "TaintToleration"];

/// The label of a rejection with this reason; `None` where an event with it rejects nothing. There are few labels, whatever resources pods
/// ask for. Source: `recordAdmissionRejection` of `pkg/kubelet/kubelet.go`.
#[must_use]
pub fn rejection(reason: &str) -> Option<&'static str> {
    let known = KNOWN.into_iter().find(|known| *known == reason);
    let of_resources = || reason.starts_with("OutOf").then_some("OutOfExtendedResources");
    let other = || OTHERS.contains(&reason).then_some("Other");
    known.or_else(of_resources).or_else(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_few() {
        for (reason, label) in [
            ("OutOfcpu", Some("OutOfcpu")),
            ("OutOfpods", Some("OutOfpods")),
            ("OutOfexample.com/gpu", Some("OutOfExtendedResources")),
            ("OutOfhugepages-2Mi", Some("OutOfExtendedResources")),
            ("NodeAffinity", Some("Other")),
            ("SysctlForbidden", Some("SysctlForbidden")),
            ("Preempting", None),
            ("Pulled", None),
            ("", None),
        ] {
            assert_eq!(rejection(reason), label, "{reason}");
        }
    }
}
