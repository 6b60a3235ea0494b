//! Images, as a pod sees them: looked for and pulled once for all pods that wait (`pod::pulls`).
//!
//! Those of containers are looked for and pulled before it is their containers' turn. What fails then is told to nobody and counts for
//! nothing, since an init container may fill the registry, make the pull secret or load the image: it is tried anew in its turn. Those of
//! volumes are told of at once: the kubelet pulls them before it starts the first container (`getImageVolumes` of
//! `pkg/kubelet/kuberuntime/kuberuntime_manager.go`).

use std::{borrow::Cow, sync::Arc, time::Duration};

use crate::{
    failure::{Failure, FailureKind},
    id::{ContainerName, ImageRef, VolumeName},
    image::{self, ImageInfo, WantedImage},
    pod::{
        actual::{Preparing, Run},
        image_need::{Need, mounts, need},
        machine::{PodMachine, Shared},
        pulls::Pulled,
        resource::Retry,
        text::{about, about_pod, go_duration},
        turn::is_in_turn,
    },
    record::VolumeImage,
    spec::ImagePullPolicy,
    status::{PodEvent, Severity},
    time::Mono,
};

/// Reason of an image that is not on the node and may not be pulled.
const NEVER_PULL: &str = "ErrImageNeverPull";

/// Delay until an image that may not be pulled is looked for again, as the kubelet's next sync after an error would.
const NEVER_PULL_RETRY: Duration = Duration::from_secs(10);

/// Time between two looks for an image whose pull has failed, as between two syncs of a pod.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// What of a pod an image is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageFor {
    /// A container.
    Container(ContainerName),
    /// A volume.
    Volume(VolumeName),
}

/// The image of a run, or of a volume.
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
    /// A pull of it has failed. It may come by other ways meanwhile.
    Failed {
        /// When it is looked for again: at the end of the back-off at the latest.
        look_at: Mono,
    },
    /// Being pulled, or waiting for a free place among the pulls.
    Pulling {
        /// Whether it was asked for before its container's turn.
        is_early: bool,
        /// Whether a pull secret has come or changed meanwhile: the pull may have begun without it.
        secret_changed: bool,
    },
    /// On the node. That of a volume is in the record then.
    Ready(Arc<ImageInfo>),
    /// Not to be had.
    Refused {
        /// Reason of the waiting state.
        reason: Cow<'static, str>,
        /// When it is looked for again.
        retry: Retry,
    },
}

impl ImageUse {
    /// How many looks in a row have failed.
    fn tries(&self) -> u32 {
        match self {
            Self::Refused { retry, .. } => retry.tries,
            Self::Wanted
            | Self::Postponed
            | Self::Inspecting { .. }
            | Self::Missing
            | Self::Failed { .. }
            | Self::Pulling { .. }
            | Self::Ready(_) => 0,
        }
    }

    /// Lets a look go on now that waits because of this kind of failure.
    pub(in crate::pod) fn end_wait(&mut self, kind: FailureKind, now: Mono) {
        if let Self::Refused { retry, .. } = self {
            retry.end_wait(kind, now);
        }
    }

    /// A pull secret has come or changed.
    pub(in crate::pod) fn secret_changed(&mut self, now: Mono) {
        match self {
            Self::Pulling { secret_changed, .. } => *secret_changed = true,
            Self::Failed { look_at } => *look_at = now,
            Self::Refused { reason, retry } if reason != NEVER_PULL => {
                retry.end_wait(FailureKind::Config, now);
            }
            Self::Wanted
            | Self::Postponed
            | Self::Inspecting { .. }
            | Self::Missing
            | Self::Ready(_)
            | Self::Refused { .. } => {}
        }
    }
}

impl PodMachine {
    /// Asks for an image to be looked for. For a name that is none nobody is asked.
    pub(in crate::pod) fn inspect(&mut self, of: ImageFor, shared: &mut Shared<'_>, now: Mono) {
        let Some(Need { image, state, is_early, .. }) = need(&self.life, &of) else { return };
        let (image, tries) = (image.clone(), state.tries());
        if let Err(error) = image::name::parse(image.as_str()) {
            let failure = Failure::new(FailureKind::InvalidImageName, error.to_string());
            let state = if is_early {
                ImageUse::Postponed
            } else {
                self.not_inspected(&of, &image, &failure, tries, now)
            };
            return self.use_image(&of, state);
        }
        shared.pulls.inspect(&self.wanted(&image), self.asker(of.clone()));
        self.use_image(&of, ImageUse::Inspecting { tries, is_early });
    }

    /// Asks for an image to be pulled.
    pub(in crate::pod) fn pull(&mut self, of: ImageFor, shared: &mut Shared<'_>, now: Mono) {
        let Some(Need { image, is_early, .. }) = need(&self.life, &of) else { return };
        let image = image.clone();
        shared.pulls.pull(&self.wanted(&image), self.asker(of.clone()), now);
        self.notes.push(told(
            &of,
            Severity::Normal,
            "Pulling",
            format!("Pulling image {:?}", image.as_str()),
        ));
        self.use_image(&of, ImageUse::Pulling { is_early, secret_changed: false });
    }

    /// Waits no longer for the image of a volume.
    pub(in crate::pod) fn give_up_image(&mut self, name: VolumeName, shared: &mut Shared<'_>) {
        self.life.actual.volume_images.remove(&name);
        shared.pulls.withdraw(&self.asker(ImageFor::Volume(name)));
    }

    fn wanted(&self, image: &ImageRef) -> WantedImage {
        WantedImage::of(&self.life.spec, image)
    }

    /// Takes what was found of an image that something of the pod waits for.
    pub fn inspected(
        &mut self,
        of: ImageFor,
        image: &ImageRef,
        result: &Result<Option<Arc<ImageInfo>>, Failure>,
        now: Mono,
    ) {
        let need = need(&self.life, &of).filter(|need| need.image == image);
        let Some(Need { policy, state, is_told, .. }) = need else { return };
        let ImageUse::Inspecting { tries, is_early } = *state else { return };
        let quoted = format!("{:?}", image.as_str());
        let state = match result {
            Ok(Some(info)) => {
                // Source: `EnsureImageExists` of `pkg/kubelet/images/image_manager.go`.
                let text = format!(
                    "Container image {quoted} already present on machine and can be accessed by the pod"
                );
                if !is_told {
                    self.notes.push(told(&of, Severity::Normal, "Pulled", text));
                }
                self.pull_succeeded(image);
                ImageUse::Ready(Arc::clone(info))
            }
            Ok(None) if policy == ImagePullPolicy::Never && is_early => ImageUse::Postponed,
            Ok(None) if policy == ImagePullPolicy::Never => {
                let message = format!("Container image {quoted} is not present with pull policy of Never");
                self.notes.push(told(&of, Severity::Warning, "ErrImageNeverPull", message.clone()));
                self.tell_waiting(&of, "Error: ErrImageNeverPull");
                let failure = Failure::new(FailureKind::Config, message);
                let retry = Retry { failure, at: now + NEVER_PULL_RETRY, tries: 1 };
                ImageUse::Refused { reason: NEVER_PULL.into(), retry }
            }
            Ok(None) => self.not_there(image, now),
            Err(failure) if is_early && failure.kind != FailureKind::RuntimeDown => ImageUse::Postponed,
            Err(failure) if failure.kind == FailureKind::Config => ImageUse::Refused {
                reason: self.tell_wrong(&of, failure),
                retry: Retry::after(failure.clone(), 0, now),
            },
            Err(failure) => self.not_inspected(&of, image, failure, tries, now),
        };
        self.use_image(&of, state);
    }

    fn not_inspected(
        &mut self,
        of: &ImageFor,
        image: &ImageRef,
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
        let message = format!("Failed to {what} {:?}: {}", image.as_str(), failure.message);
        if failure.kind != FailureKind::RuntimeDown {
            self.notes.push(told(of, Severity::Warning, "InspectFailed", message.clone()));
            self.tell_waiting(of, &format!("Error: {reason}"));
        }
        let failure = Failure::new(failure.kind, message);
        ImageUse::Refused { reason: reason.into(), retry: Retry::after(failure, tries, now) }
    }

    /// Takes the end of a pull that something of the pod waits for.
    pub fn pulled(
        &mut self,
        image: &ImageRef,
        pulled: &Pulled,
        result: &Result<Arc<ImageInfo>, Failure>,
        now: Mono,
    ) {
        let of = &pulled.asker.of;
        let Some(need) = need(&self.life, of).filter(|need| need.image == image) else { return };
        let ImageUse::Pulling { is_early, secret_changed } = *need.state else { return };
        let is_looked_for = need.policy != ImagePullPolicy::Always;
        let quoted = format!("{:?}", image.as_str());
        match result {
            Ok(info) => {
                let (took, waited) = (go_duration(pulled.took), go_duration(pulled.waited));
                let text = format!(
                    "Successfully pulled image {quoted} in {took} ({waited} including waiting). Image size: {} bytes.",
                    info.size_bytes
                );
                self.notes.push(told(of, Severity::Normal, "Pulled", text));
                self.pull_succeeded(image);
                self.use_image(of, ImageUse::Ready(Arc::clone(info)));
            }
            Err(failure) if failure.kind == FailureKind::RuntimeDown => {
                let retry = Retry::after(failure.clone(), 0, now);
                self.use_image(of, ImageUse::Refused { reason: "ErrImagePull".into(), retry });
            }
            Err(_) if is_early => self.use_image(of, ImageUse::Postponed),
            // The registry was not asked, so it has nothing to rest from.
            Err(failure) if failure.kind == FailureKind::Config => {
                let reason = self.tell_wrong(of, failure);
                let mut retry = Retry::after(failure.clone(), 0, now);
                if secret_changed {
                    retry.end_wait(FailureKind::Config, now);
                }
                self.use_image(of, ImageUse::Refused { reason, retry });
            }
            Err(failure) => {
                let text = format!("Failed to pull image {quoted}: {}", failure.message);
                self.notes.push(told(of, Severity::Warning, "Failed", text));
                self.tell_waiting(of, "Error: ErrImagePull");
                self.back_off_from(image, failure, now);
                if secret_changed {
                    self.end_pull_backoff(image, now);
                }
                let state = if is_looked_for { self.not_there(image, now) } else { ImageUse::Missing };
                self.use_image(of, state);
            }
        }
    }

    /// Tells that something the pod gives for its image is wrong, which is the reason that is shown as well. Source: `EnsureImageExists` of
    /// `pkg/kubelet/images/image_manager.go`.
    fn tell_wrong(&mut self, of: &ImageFor, failure: &Failure) -> Cow<'static, str> {
        self.tell_waiting(of, &format!("Error: {}", failure.message));
        failure.message.clone().into()
    }

    /// What is not on the node is pulled, or looked for once more while that has to wait. Source: `imagePullPrecheck` of
    /// `pkg/kubelet/images/image_manager.go`, which comes before the back-off.
    fn not_there(&self, image: &ImageRef, now: Mono) -> ImageUse {
        let backoff = self.life.actual.pull_backoffs.get(image).filter(|backoff| backoff.ends_at > now);
        backoff.map_or(ImageUse::Missing, |backoff| ImageUse::Failed {
            look_at: backoff.ends_at.min(now + LOOK_EVERY),
        })
    }

    /// Tells the containers that wait for an image why. Source: `toKubeContainerImageVolumes` of
    /// `pkg/kubelet/kuberuntime/kuberuntime_manager.go`, `startContainer` of `kuberuntime_container.go`.
    pub(in crate::pod) fn tell_waiting(&mut self, of: &ImageFor, text: &str) {
        let waiting: Vec<ContainerName> = match of {
            ImageFor::Container(name) => vec![name.clone()],
            ImageFor::Volume(volume) => {
                let life = &self.life;
                let all = life.spec.all_containers().filter(|container| {
                    let is_waiting = matches!(life.run(&container.name), Run::Preparing(_));
                    is_waiting && mounts(container, volume) && is_in_turn(life, container)
                });
                all.map(|container| container.name.clone()).collect()
            }
        };
        self.notes.extend(waiting.iter().map(|name| about(name, Severity::Warning, "Failed", text)));
    }

    fn use_image(&mut self, of: &ImageFor, state: ImageUse) {
        match of {
            ImageFor::Container(name) => {
                if let Some(Run::Preparing(Preparing { image, is_image_told, .. })) =
                    self.life.actual.containers.get_mut(name)
                {
                    *is_image_told |= matches!(state, ImageUse::Ready(_));
                    *image = state;
                }
            }
            ImageFor::Volume(name) => {
                if let ImageUse::Ready(info) = &state {
                    let ImageInfo { name: image, chain_id, .. } = ImageInfo::clone(info);
                    let image = VolumeImage { name: image, chain_id };
                    self.life.record.volume_images.insert(name.clone(), image);
                    self.life.actual.volume_images.remove(name);
                } else {
                    self.life.actual.volume_images.insert(name.clone(), state);
                }
            }
        }
    }
}

/// An event about an image: about the container, or about the pod that has the volume.
pub(in crate::pod) fn told(
    of: &ImageFor,
    severity: Severity,
    reason: &'static str,
    text: String,
) -> PodEvent {
    match of {
        ImageFor::Container(name) => about(name, severity, reason, text),
        ImageFor::Volume(_) => about_pod(severity, reason, text),
    }
}
