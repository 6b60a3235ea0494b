//! What of an effect its metrics name.

use berth_core::{
    effect::{Act, Effect, NodeAct},
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{ContainerId, PodUid},
    image::collection::Reason,
    pod::port::{probe::ProbeCall, start_failure::Call},
    spec::{ContainerKind, ProbeKind, UserMode, VolumeSource},
};

/// What an effect was about, kept while it is performed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A start of a container in a pod with these users.
    Container(ContainerKind, UserMode),
    /// A sandbox, by its handler, which is empty for the default, and its users.
    Sandbox(String, UserMode),
    /// A volume, by its plugin.
    Volume(&'static str),
    /// A question to a container.
    Probe(PodUid, ContainerId, ProbeKind, Asks),
    /// An image that is removed, by why.
    Collected(Reason),
    /// Something else.
    Other,
}

/// Whom a probe asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// A command that is run for it.
    Command,
    /// A server.
    Server,
}

impl Asks {
    fn of(call: &ProbeCall) -> Self {
        if matches!(call, ProbeCall::Exec(_)) { Self::Command } else { Self::Server }
    }
}

impl Subject {
    /// That of an effect.
    #[must_use]
    pub fn of(effect: &Effect) -> Self {
        let (pod, act) = match effect {
            Effect::Pod { pod, act, .. } => (pod, act),
            Effect::Node { act: NodeAct::RemoveImage(removal), .. } => {
                return Self::Collected(removal.reason);
            }
            Effect::Node { .. } => return Self::Other,
        };
        match act {
            Act::StartContainer(request) => Self::Container(request.container.kind, request.pod.users),
            Act::EnsureSandbox(request) => {
                Self::Sandbox(request.pod.runtime.clone().unwrap_or_default(), request.pod.users)
            }
            Act::EnsureVolume(request) => Self::Volume(plugin(&request.volume.source)),
            Act::Probe(request) => {
                Self::Probe(pod.clone(), request.id.clone(), request.kind, Asks::of(&request.call))
            }
            _ => Self::Other,
        }
    }
}

/// The plugin of volumes that are made of images.
pub(super) const OF_IMAGES: &str = "kubernetes.io/image";

/// The name of a volume's plugin. Source: `GetPluginName` of `pkg/volume/*`.
pub(super) fn plugin(source: &VolumeSource) -> &'static str {
    match source {
        VolumeSource::EmptyDir { .. } => "kubernetes.io/empty-dir",
        VolumeSource::HostPath { .. } => "kubernetes.io/host-path",
        VolumeSource::Content(content) => match content.kind.plugin() {
            "kubernetes.io~configmap" => "kubernetes.io/configmap",
            "kubernetes.io~secret" => "kubernetes.io/secret",
            "kubernetes.io~downward-api" => "kubernetes.io/downward-api",
            _ => "kubernetes.io/projected",
        },
        // Whatever needs no driver and is claimed is most often that.
        VolumeSource::Claim(_) => "kubernetes.io/local-volume",
        VolumeSource::Image { .. } => OF_IMAGES,
    }
}

/// The role of a container. Source: `pkg/kubelet/metrics/metrics.go`.
pub(super) fn role(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Main => "container",
        ContainerKind::Init | ContainerKind::Sidecar => "init_container",
        ContainerKind::Ephemeral => "ephemeral_container",
    }
}

/// Why a container was not started, as its status says it; `None` where it was.
pub(super) fn start_error(outcome: &Result<Outcome, Failure>) -> Option<&'static str> {
    match outcome {
        Ok(Outcome::NotStarted(failure)) => match failure.call {
            Call::Create => Some("CreateContainerError"),
            Call::Start => Some("RunContainerError"),
        },
        Ok(_) => None,
        Err(failure) => Some(match failure.kind {
            FailureKind::StartFailed => "RunContainerError",
            FailureKind::Config => "CreateContainerConfigError",
            FailureKind::Transient
            | FailureKind::Unknown
            | FailureKind::RuntimeDown
            | FailureKind::InvalidImageName
            | FailureKind::ImagePull
            | FailureKind::LayersGone
            | FailureKind::SandboxGone
            | FailureKind::Silent
            | FailureKind::Unrecorded => "CreateContainerError",
        }),
    }
}
