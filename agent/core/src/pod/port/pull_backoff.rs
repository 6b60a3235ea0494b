//! How long the next pull of an image waits after one that failed.

use std::time::Duration;

use crate::{
    failure::Failure,
    id::ImageRef,
    image::WantedImage,
    pod::{
        actual::{Life, Preparing, Run},
        image_need::needs,
        machine::PodMachine,
        port::image::{ImageFor, ImageUse, told},
        text::{about_pod, pull_back_off},
    },
    spec::{ObjectKey, ObjectKind},
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
    /// Whether the pod has an image with these secrets.
    #[must_use]
    pub fn wants(&self, wanted: &WantedImage) -> bool {
        let spec = &self.life.spec;
        spec.images().any(|image| WantedImage::of(spec, image) == *wanted)
    }

    /// Whether that is what was last told to be missing.
    #[must_use]
    pub fn knows_missing(&self, names: &[String]) -> bool {
        self.life.actual.missing_secrets == names
    }

    /// Tells that secrets cannot be read which an image of the pod is pulled with. Source: `getPullSecretsForPod` of
    /// `pkg/kubelet/kubelet_pods.go`, which tells so at each sync.
    pub fn pull_secrets_missing(&mut self, names: &[String]) {
        self.life.actual.missing_secrets = names.to_vec();
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
        let of_runs = actual.containers.values_mut().filter_map(|run| match run {
            Run::Preparing(Preparing { image, .. }) => Some(image),
            Run::Idle | Run::BackingOff | Run::Starting(_) | Run::Running(_) | Run::Ended(_) => None,
        });
        of_runs.chain(actual.volume_images.values_mut()).for_each(|image| image.secret_changed(now));
    }

    /// Says that the next pull of an image waits, for the containers whose turn it is and for volumes.
    pub(in crate::pod) fn back_off_pull(&mut self, image: &ImageRef) {
        let Some(backoff) = self.life.actual.pull_backoffs.get_mut(image) else { return };
        backoff.announced = true;
        let waiting = needs(&self.life).filter(|(_, need)| {
            let is_waiting = matches!(need.state, ImageUse::Missing | ImageUse::Failed { .. });
            need.image == image && is_waiting && !need.is_early
        });
        let waiting: Vec<ImageFor> = waiting.map(|(of, _)| of).collect();
        for of in waiting {
            self.notes.push(told(&of, Severity::Normal, "BackOff", pull_back_off(image)));
            self.tell_waiting(&of, "Error: ImagePullBackOff");
        }
    }

    /// The next pull of an image waits, twice as long as the last time. What of the pod waited for the same pull shares one wait.
    pub(in crate::pod) fn back_off_from(&mut self, image: &ImageRef, failure: &Failure, now: Mono) {
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

    /// An image was pulled: its next wait, if it comes soon, is longer all the same.
    pub(in crate::pod) fn pull_succeeded(&mut self, image: &ImageRef) {
        if let Some(backoff) = self.life.actual.pull_backoffs.get_mut(image) {
            backoff.error = None;
        }
    }

    /// An image need not wait for its next pull.
    pub(in crate::pod) fn end_pull_backoff(&mut self, image: &ImageRef, now: Mono) {
        if let Some(backoff) = self.life.actual.pull_backoffs.get_mut(image) {
            backoff.ends_at = now;
        }
    }
}
