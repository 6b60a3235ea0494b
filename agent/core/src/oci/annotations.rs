//! Labels of the containerd container and annotations of the OCI spec that tools of the field read.
//!
//! Source: `pkg/kubelet/kuberuntime/labels.go`, containerd `internal/cri/annotations`. Nothing here comes from the image
//! but its name (CVE-2026-53488).

use std::collections::BTreeMap;

use super::ContainerInputs;
use crate::spec::TerminationMessagePolicy;

pub(super) fn labels(inputs: &ContainerInputs<'_>) -> BTreeMap<String, String> {
    let ContainerInputs { pod, container, attempt, .. } = inputs;
    named([
        ("io.kubernetes.pod.name", pod.name.name.clone()),
        ("io.kubernetes.pod.namespace", pod.name.namespace.clone()),
        ("io.kubernetes.pod.uid", pod.uid.to_string()),
        ("io.kubernetes.container.name", container.name.to_string()),
        ("berth.dev/attempt", attempt.to_string()),
        ("berth.dev/container-hash", format!("{:x}", container.hash)),
    ])
}

pub(super) fn annotations(inputs: &ContainerInputs<'_>) -> BTreeMap<String, String> {
    let ContainerInputs { pod, container, attempt, sandbox, image, .. } = inputs;
    let policy = match container.termination_message.policy {
        TerminationMessagePolicy::File => "File",
        TerminationMessagePolicy::FallbackToLogsOnError => "FallbackToLogsOnError",
    };
    named([
        ("io.kubernetes.cri.container-type", "container".to_owned()),
        ("io.kubernetes.cri.container-name", container.name.to_string()),
        ("io.kubernetes.cri.image-name", image.name.clone()),
        ("io.kubernetes.cri.sandbox-id", sandbox.to_string()),
        ("io.kubernetes.cri.sandbox-name", pod.name.name.clone()),
        ("io.kubernetes.cri.sandbox-namespace", pod.name.namespace.clone()),
        ("io.kubernetes.cri.sandbox-uid", pod.uid.to_string()),
        ("io.kubernetes.container.hash", format!("{:x}", container.hash)),
        ("io.kubernetes.container.restartCount", attempt.to_string()),
        ("io.kubernetes.container.terminationMessagePath", container.termination_message.path.clone()),
        ("io.kubernetes.container.terminationMessagePolicy", policy.to_owned()),
    ])
}

fn named<const N: usize>(pairs: [(&str, String); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
