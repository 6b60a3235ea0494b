//! Images, as a pod sees them: looked for and pulled once for all pods that wait (`pod::pulls`).
//!
//! They are looked for and pulled before it is their containers' turn. What fails then is told to nobody and counts for nothing, since
//! an init container may fill the registry, make the pull secret or load the image: it is tried anew in its turn.

use std::{borrow::Cow, sync::Arc, time::Duration};

use crate::{
    failure::{Failure, FailureKind},
    id::{ContainerName, ImageRef},
    image::{self, ImageInfo, WantedImage},
    pod::{
        actual::{Life, Preparing, Run},
        machine::{PodMachine, Shared},
        pulls::Pulled,
        resource::Retry,
        text::{about, about_pod, go_duration, pull_back_off},
        turn::is_in_turn,
    },
    spec::{ImagePullPolicy, ObjectKey, ObjectKind},
    status::Severity,
    time::Mono,
};

/// First delay of a failed pull. Source: `pkg/kubelet/kubelet.go` `imageBackOffPeriod`.
const PULL_BACKOFF_FIRST: Duration = Duration::from_secs(10);

/// Longest delay of a failed pull. Source: `pkg/kubelet/kubelet.go` `MaxImageBackOff`.
const PULL_BACKOFF_MAX: Duration = Duration::from_secs(300);

/// An earlier failure of a pull counts for so long, and also after a pull that succeeded (`hasExpired` of
/// `k8s.io/client-go/util/flowcontrol/backoff.go`).
const PULL_BACKOFF_COUNTS: Duration = PULL_BACKOFF_MAX.saturating_mul(2);

/// Reason of an image that is not on the node and may not be pulled.
const NEVER_PULL: &str = "ErrImageNeverPull";

/// Delay until an image that may not be pulled is looked for again, as the kubelet's next sync after an error would.
const NEVER_PULL_RETRY: Duration = Duration::from_secs(10);

/// The image of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum ImageUse {
    /// To be looked for.
    Wanted,
    /// Not to be had before its container's turn: looked for again when that comes.
    Postponed,
    /// Being looked for.
    Inspecting {
        /// How many looks in a row have failed.
        tries: u32,
        /// Whether it was asked for before its container's turn.
        is_early: bool,
    },
    /// To be pulled, when no back-off forbids it.
    Missing,
    /// Being pulled, or waiting for a free place among the pulls.
    Pulling {
        /// Whether it was asked for before its container's turn.
        is_early: bool,
        /// Whether a pull secret has come or changed meanwhile: the pull may have begun without it.
        secret_changed: bool,
    },
    /// On the node.
    Ready(Arc<ImageInfo>),
    /// Not to be had.
    Refused {
        /// Reason of the waiting state.
        reason: Cow<'static, str>,
        /// When it is looked for again.
        retry: Retry,
    },
}

/// Why and until when an image is not pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullBackoff {
    /// The last failure; `None` since a pull succeeded.
    pub error: Option<String>,
    /// When the last failure was.
    pub failed_at: Mono,
    /// How long the next pull waits after that, unless something changes that it may have failed for.
    pub delay: Duration,
    /// Until when it waits.
    pub ends_at: Mono,
    /// Whether the wait was announced: the reason is `ImagePullBackOff` from then on, before that `ErrImagePull`.
    pub announced: bool,
}

impl PodMachine {
    /// Asks for the image of a container to be looked for. For a name that is none nobody is asked.
    pub(in crate::pod) fn inspect(&mut self, name: &ContainerName, shared: &mut Shared<'_>, now: Mono) {
        let Some(container) = self.container(name) else { return };
        let tries = match self.life.run(name) {
            Run::Preparing(Preparing { image: ImageUse::Refused { retry, .. }, .. }) => retry.tries,
            Run::Idle
            | Run::BackingOff
            | Run::Preparing(_)
            | Run::Starting(_)
            | Run::Running(_)
            | Run::Ended(_) => 0,
        };
        let is_early = !is_in_turn(&self.life, &container);
        if let Err(error) = image::name::parse(container.image.as_str()) {
            let failure = Failure::new(FailureKind::InvalidImageName, error.to_string());
            let quoted = format!("{:?}", container.image.as_str());
            let state = if is_early {
                ImageUse::Postponed
            } else {
                self.not_inspected(name, &quoted, &failure, tries, now)
            };
            return self.use_image(name, state);
        }
        shared.pulls.inspect(&self.wanted(&container.image), self.asker(name));
        self.use_image(name, ImageUse::Inspecting { tries, is_early });
    }

    /// Asks for the image of a container to be pulled.
    pub(in crate::pod) fn pull(&mut self, name: &ContainerName, shared: &mut Shared<'_>, now: Mono) {
        let Some(container) = self.container(name) else { return };
        shared.pulls.pull(&self.wanted(&container.image), self.asker(name), now);
        let text = format!("Pulling image {:?}", container.image.as_str());
        self.notes.push(about(name, Severity::Normal, "Pulling", text));
        let is_early = !is_in_turn(&self.life, &container);
        self.use_image(name, ImageUse::Pulling { is_early, secret_changed: false });
    }

    fn wanted(&self, image: &ImageRef) -> WantedImage {
        WantedImage::of(&self.life.spec, image)
    }

    /// Tells that secrets cannot be read which an image of the pod is pulled with. Source: `getPullSecretsForPod` of
    /// `pkg/kubelet/kubelet_pods.go`.
    pub fn pull_secrets_missing(&mut self, names: &[String]) {
        let named = self.life.spec.pull_secrets.iter().filter(|name| names.contains(name));
        let named = named.map(String::as_str).collect::<Vec<_>>().join(", ");
        let text = format!(
            "Unable to retrieve some image pull secrets ({named}); attempting to pull the image may not succeed."
        );
        self.notes.push(about_pod(Severity::Warning, "FailedToRetrieveImagePullSecret", text));
    }

    /// A Secret has changed or come. Where images of the pod are pulled with it, none of them waits for what failed before, nor for a pull
    /// under way that fails. The next wait is as long as it would have been.
    pub(in crate::pod) fn pull_secret_changed(&mut self, object: &ObjectKey, now: Mono) {
        let Life { spec, actual, .. } = &mut self.life;
        let is_in_it = object.kind == ObjectKind::Secret && object.namespace == spec.name.namespace;
        if !is_in_it || !spec.pull_secrets.contains(&object.name) {
            return;
        }
        for backoff in actual.pull_backoffs.values_mut() {
            backoff.ends_at = backoff.ends_at.min(now);
        }
        for run in actual.containers.values_mut() {
            let Run::Preparing(Preparing { image, .. }) = run else { continue };
            match image {
                ImageUse::Pulling { secret_changed, .. } => *secret_changed = true,
                ImageUse::Refused { reason, retry } if reason != NEVER_PULL => {
                    retry.end_wait(FailureKind::Config, now);
                }
                ImageUse::Wanted
                | ImageUse::Postponed
                | ImageUse::Inspecting { .. }
                | ImageUse::Missing
                | ImageUse::Ready(_)
                | ImageUse::Refused { .. } => {}
            }
        }
    }

    /// Says that the next pull of an image waits, for the containers whose turn it is.
    pub(in crate::pod) fn back_off_pull(&mut self, image: &ImageRef) {
        let Some(backoff) = self.life.actual.pull_backoffs.get_mut(image) else { return };
        backoff.announced = true;
        let text = pull_back_off(image);
        let waiting = self.life.spec.all_containers().filter(|container| container.image == *image);
        for container in waiting {
            let is_waiting = matches!(self.life.run(&container.name), Run::Preparing(run) if run.image == ImageUse::Missing);
            if is_waiting && is_in_turn(&self.life, container) {
                self.notes.push(about(&container.name, Severity::Normal, "BackOff", text.clone()));
                self.notes.push(about(
                    &container.name,
                    Severity::Warning,
                    "Failed",
                    "Error: ImagePullBackOff",
                ));
            }
        }
    }

    /// Takes what was found of an image that a container waits for.
    pub fn inspected(
        &mut self,
        name: &ContainerName,
        image: &ImageRef,
        result: &Result<Option<Arc<ImageInfo>>, Failure>,
        now: Mono,
    ) {
        let Some(container) = self.container(name).filter(|container| container.image == *image) else {
            return;
        };
        let Run::Preparing(preparing) = self.life.run(name) else { return };
        let ImageUse::Inspecting { tries, is_early } = preparing.image else { return };
        let is_told = preparing.is_image_told;
        let quoted = format!("{:?}", image.as_str());
        let state = match result {
            Ok(Some(info)) => {
                // Source: `EnsureImageExists` of `pkg/kubelet/images/image_manager.go`.
                let text = format!(
                    "Container image {quoted} already present on machine and can be accessed by the pod"
                );
                if !is_told {
                    self.notes.push(about(name, Severity::Normal, "Pulled", text));
                }
                ImageUse::Ready(Arc::clone(info))
            }
            Ok(None) if container.pull_policy == ImagePullPolicy::Never && is_early => ImageUse::Postponed,
            Ok(None) if container.pull_policy == ImagePullPolicy::Never => {
                let message = format!("Container image {quoted} is not present with pull policy of Never");
                self.notes.push(about(name, Severity::Warning, "ErrImageNeverPull", message.clone()));
                self.notes.push(about(name, Severity::Warning, "Failed", "Error: ErrImageNeverPull"));
                let failure = Failure::new(FailureKind::Config, message);
                let retry = Retry { failure, at: now + NEVER_PULL_RETRY, tries: 1 };
                ImageUse::Refused { reason: NEVER_PULL.into(), retry }
            }
            Ok(None) => ImageUse::Missing,
            Err(failure) if is_early && failure.kind != FailureKind::RuntimeDown => ImageUse::Postponed,
            Err(failure) => self.not_inspected(name, &quoted, failure, tries, now),
        };
        self.use_image(name, state);
    }

    fn not_inspected(
        &mut self,
        name: &ContainerName,
        quoted: &str,
        failure: &Failure,
        tries: u32,
        now: Mono,
    ) -> ImageUse {
        let (reason, what) = match failure.kind {
            FailureKind::InvalidImageName => ("InvalidImageName", "apply default image tag"),
            FailureKind::Transient
            | FailureKind::Unknown
            | FailureKind::RuntimeDown
            | FailureKind::Config
            | FailureKind::ImagePull
            | FailureKind::LayersGone
            | FailureKind::StartFailed
            | FailureKind::SandboxGone
            | FailureKind::Silent
            | FailureKind::Unrecorded => ("ImageInspectError", "inspect image"),
        };
        let message = format!("Failed to {what} {quoted}: {}", failure.message);
        if failure.kind != FailureKind::RuntimeDown {
            self.notes.push(about(name, Severity::Warning, "InspectFailed", message.clone()));
            self.notes.push(about(name, Severity::Warning, "Failed", format!("Error: {reason}")));
        }
        let failure = Failure::new(failure.kind, message);
        ImageUse::Refused { reason: reason.into(), retry: Retry::after(failure, tries, now) }
    }

    /// Takes the end of a pull that a container waits for.
    pub fn pulled(
        &mut self,
        image: &ImageRef,
        pulled: &Pulled,
        result: &Result<Arc<ImageInfo>, Failure>,
        now: Mono,
    ) {
        let name = &pulled.asker.container;
        if self.container(name).is_none_or(|container| container.image != *image) {
            return;
        }
        let Run::Preparing(preparing) = self.life.run(name) else { return };
        let ImageUse::Pulling { is_early, secret_changed } = preparing.image else { return };
        let quoted = format!("{:?}", image.as_str());
        match result {
            Ok(info) => {
                let (took, waited) = (go_duration(pulled.took), go_duration(pulled.waited));
                let text = format!(
                    "Successfully pulled image {quoted} in {took} ({waited} including waiting). Image size: {} bytes.",
                    info.size_bytes
                );
                self.notes.push(about(name, Severity::Normal, "Pulled", text));
                if let Some(backoff) = self.life.actual.pull_backoffs.get_mut(image) {
                    backoff.error = None;
                }
                self.use_image(name, ImageUse::Ready(Arc::clone(info)));
            }
            Err(failure) if failure.kind == FailureKind::RuntimeDown => {
                let retry = Retry::after(failure.clone(), 0, now);
                self.use_image(name, ImageUse::Refused { reason: "ErrImagePull".into(), retry });
            }
            Err(_) if is_early => self.use_image(name, ImageUse::Postponed),
            // The registry was not asked, so it has nothing to rest from; what is wrong is the reason that is shown as well. Source:
            // `EnsureImageExists` of `pkg/kubelet/images/image_manager.go`.
            Err(failure) if failure.kind == FailureKind::Config => {
                let text = format!("Error: {}", failure.message);
                self.notes.push(about(name, Severity::Warning, "Failed", text));
                let reason = failure.message.clone().into();
                let mut retry = Retry::after(failure.clone(), 0, now);
                if secret_changed {
                    retry.end_wait(FailureKind::Config, now);
                }
                self.use_image(name, ImageUse::Refused { reason, retry });
            }
            Err(failure) => {
                let text = format!("Failed to pull image {quoted}: {}", failure.message);
                self.notes.push(about(name, Severity::Warning, "Failed", text));
                self.notes.push(about(name, Severity::Warning, "Failed", "Error: ErrImagePull"));
                self.back_off_from(image, failure, now);
                if secret_changed && let Some(backoff) = self.life.actual.pull_backoffs.get_mut(image) {
                    backoff.ends_at = now;
                }
                self.use_image(name, ImageUse::Missing);
            }
        }
    }

    /// The next pull of an image waits, twice as long as the last time. Containers of the pod that waited for the same
    /// pull share one wait.
    fn back_off_from(&mut self, image: &ImageRef, failure: &Failure, now: Mono) {
        let delay = match self.life.actual.pull_backoffs.get(image) {
            Some(known) if known.failed_at == now => known.delay,
            Some(known) if now.since(known.failed_at) <= PULL_BACKOFF_COUNTS => {
                known.delay.saturating_mul(2).min(PULL_BACKOFF_MAX)
            }
            Some(_) | None => PULL_BACKOFF_FIRST,
        };
        let error = Some(failure.message.clone());
        let backoff = PullBackoff { error, failed_at: now, delay, ends_at: now + delay, announced: false };
        self.life.actual.pull_backoffs.insert(image.clone(), backoff);
    }

    fn use_image(&mut self, name: &ContainerName, state: ImageUse) {
        if let Some(Run::Preparing(preparing)) = self.life.actual.containers.get_mut(name) {
            preparing.is_image_told |= matches!(state, ImageUse::Ready(_));
            preparing.image = state;
        }
    }
}
