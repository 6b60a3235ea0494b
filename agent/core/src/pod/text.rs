//! Texts that people and tools read: the kubelet's texts of events and waiting states.

use std::{borrow::Cow, time::Duration};

use crate::{
    id::{ContainerId, ContainerName, ImageRef},
    record::PodRecord,
    short::{EVENT_BYTES_MAX, short},
    status::{PodEvent, Severity},
};

/// An event about the pod.
pub(super) fn about_pod(
    severity: Severity,
    reason: impl Into<Cow<'static, str>>,
    message: impl Into<String>,
) -> PodEvent {
    let message = short(message.into(), EVENT_BYTES_MAX);
    PodEvent { container: None, severity, reason: reason.into(), message }
}

/// An event about a container.
pub(super) fn about(
    name: &ContainerName,
    severity: Severity,
    reason: &'static str,
    message: impl Into<String>,
) -> PodEvent {
    PodEvent { container: Some(name.clone()), ..about_pod(severity, reason, message) }
}

/// `name_namespace(uid)`. Source: `pkg/kubelet/util/format/pod.go` `Pod`.
#[must_use]
pub(super) fn pod_text(record: &PodRecord) -> String {
    format!("{}_{}({})", record.name.name, record.name.namespace, record.uid)
}

/// Message of an event about a container: its id has the container's name in its place, so that events of several runs are
/// one. Source: `recordContainerEvent` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`.
#[must_use]
pub(super) fn without_id(message: &str, id: &ContainerId, name: &ContainerName) -> String {
    message.replace(id.as_str(), name.as_str())
}

/// Message of `CrashLoopBackOff`.
#[must_use]
pub(super) fn crash_loop(name: &ContainerName, record: &PodRecord, delay: Duration) -> String {
    format!("back-off {} restarting failed container={name} pod={}", go_duration(delay), pod_text(record))
}

/// Message of the event that a pull waits. What failed is in the event of the failure. Source: `pullImage` of
/// `pkg/kubelet/images/image_manager.go`.
#[must_use]
pub(super) fn pull_back_off(image: &ImageRef) -> String {
    format!("Back-off pulling image {:?}", image.as_str())
}

/// Message of `ImagePullBackOff`.
#[must_use]
pub(super) fn pull_waits(image: &ImageRef, error: &str) -> String {
    format!("{}: ErrImagePull: {error}", pull_back_off(image))
}

/// Why no pod can be wired: in the node's condition, and of each pod that waits for it. Source: `updateRuntimeUp` of
/// `pkg/kubelet/kubelet.go`, `Status` of containerd's `internal/cri/server/status.go`.
#[must_use]
pub(crate) fn network_not_ready(why: &str) -> String {
    format!(
        "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
         message:Network plugin returns error: {why}"
    )
}

/// A duration as Go prints it, whole milliseconds: `1m20s`, `1.2s`, `350ms`, `0s`.
#[must_use]
pub fn go_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis == 0 {
        return "0s".into();
    }
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (seconds, millis) = (millis / 1000, millis % 1000);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let fraction = format!("{millis:03}");
    let fraction = fraction.trim_end_matches('0');
    let dot = if fraction.is_empty() { "" } else { "." };
    match (hours, minutes) {
        (0, 0) => format!("{seconds}{dot}{fraction}s"),
        (0, _) => format!("{minutes}m{seconds}{dot}{fraction}s"),
        (_, _) => format!("{hours}h{minutes}m{seconds}{dot}{fraction}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_the_container_and_not_its_run() {
        let (id, name) = (ContainerId::from_known("4f0a1b2c"), ContainerName::new("web"));
        for (message, expected) in [
            ("no such user", "no such user"),
            ("create 4f0a1b2c: mount /run/4f0a1b2c/rootfs", "create web: mount /run/web/rootfs"),
        ] {
            assert_eq!(without_id(message, &id, &name), expected);
        }
    }

    #[test]
    fn durations_read_as_gos() {
        let cases = [
            (0, "0s"),
            (7, "7ms"),
            (999, "999ms"),
            (1000, "1s"),
            (1200, "1.2s"),
            (1234, "1.234s"),
            (10_000, "10s"),
            (80_000, "1m20s"),
            (300_000, "5m0s"),
            (3_600_000, "1h0m0s"),
            (3_661_010, "1h1m1.01s"),
        ];
        for (millis, text) in cases {
            assert_eq!(go_duration(Duration::from_millis(millis)), text);
        }
    }
}
