//! The pod's volumes.
//!
//! What is in one with content may change while containers run: it stays ready, and its content is made anew when an object
//! that it shows has changed, when the pod has, and when a token in it grows old.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    config::NodeConfig,
    derived::content,
    effect::Act,
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{OpId, VolumeName},
    pod::{
        actual::{Life, Preparing, Run},
        fit,
        machine::{PodMachine, Shared},
        outcome::Slot,
        port::{backing::backing, image::ImageFor},
        resource::{EndedEffect, Resource, Retry},
    },
    record::VolumeImage,
    spec::{ObjectKey, Pod, Volume, VolumeSource},
    time::Mono,
    users::HostIds,
};

pub use super::backing::{Backing, NoPages};

/// A volume to make.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeRequest {
    /// The pod.
    pub pod: Arc<Pod>,
    /// The volume.
    pub volume: Volume,
    /// Group that is to own it.
    pub fs_group: Option<u32>,
    /// What a directory of the pod's own is kept in, or why that cannot be had.
    pub backing: Result<Backing, NoPages>,
    /// The image that it is made of.
    pub image: Option<VolumeImage>,
    /// Ids of the pod, for which owners of what is in the image are shifted.
    pub ids: Option<HostIds>,
}

/// Content of a volume that is to be made anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refresh {
    /// At a time.
    At {
        /// When.
        at: Mono,
        /// How often it failed, in a row.
        tries: u32,
    },
    /// Being made.
    Asked {
        /// The effect.
        op: OpId,
        /// Whether something has changed since it was asked for.
        again: bool,
    },
}

fn request(life: &Life, name: &VolumeName, config: &NodeConfig) -> Option<VolumeRequest> {
    let pod = Arc::clone(&life.spec);
    let volume = pod.volume(name)?.clone();
    let backing = backing(&pod, &volume.source, config);
    let (fs_group, image) = (pod.security.fs_group, life.record.volume_images.get(name).cloned());
    Some(VolumeRequest { pod, volume, fs_group, backing, image, ids: life.record.ids })
}

impl PodMachine {
    /// Asks for a volume.
    pub(in crate::pod) fn ensure_volume(&mut self, name: VolumeName, shared: &mut Shared<'_>) {
        let Some(request) = request(&self.life, &name, shared.config) else { return };
        let tries = self.life.actual.volumes.get(&name).map_or(0, Resource::tries);
        let act = Act::EnsureVolume(Box::new(request));
        let op = self.ask(shared, Slot::Volume(name.clone()), tries, act);
        self.life.actual.refreshes.remove(&name);
        self.life.actual.volumes.insert(name, Resource::Ensuring(op));
    }

    /// Asks for its content anew.
    pub(in crate::pod) fn refresh_volume(&mut self, name: VolumeName, shared: &mut Shared<'_>) {
        let Some(request) = request(&self.life, &name, shared.config) else { return };
        let tries = match self.life.actual.refreshes.get(&name) {
            Some(Refresh::At { tries, .. }) => *tries,
            Some(Refresh::Asked { .. }) | None => 0,
        };
        let op = self.ask(shared, Slot::Volume(name.clone()), tries, Act::EnsureVolume(Box::new(request)));
        self.life.actual.refreshes.insert(name, Refresh::Asked { op, again: false });
    }

    /// An object that it may use has changed, or come: volumes that show it are made anew, and what waits because of it goes on.
    pub fn object_changed(&mut self, object: &ObjectKey, now: Mono) {
        self.pull_secret_changed(object, now);
        let spec = Arc::clone(&self.life.spec);
        for volume in spec.volumes.iter().filter(|volume| content::shows(&spec, volume, object)) {
            self.content_changed(&volume.name, now);
        }
        for run in self.life.actual.containers.values_mut() {
            if let Run::Preparing(Preparing { refused: Some(refusal), .. }) = run {
                refusal.retry.end_wait(FailureKind::Config, now);
            }
        }
    }

    /// What volumes show of the pod itself has changed.
    pub(in crate::pod) fn pod_changed(&mut self, now: Mono) {
        let spec = Arc::clone(&self.life.spec);
        for volume in spec.volumes.iter().filter(|volume| content::shows_pod(volume)) {
            self.content_changed(&volume.name, now);
        }
    }

    fn content_changed(&mut self, name: &VolumeName, now: Mono) {
        let actual = &mut self.life.actual;
        let Some(state) = actual.volumes.get_mut(name) else { return };
        if let Resource::Failed(retry) = state {
            retry.at = retry.at.min(now);
            return;
        }
        match actual.refreshes.get_mut(name) {
            Some(Refresh::Asked { again, .. }) => *again = true,
            Some(Refresh::At { at, .. }) => *at = now.min(*at),
            None => {
                actual.refreshes.insert(name.clone(), Refresh::At { at: now, tries: 0 });
            }
        }
    }

    /// An image that could not be mounted is told to those who mount it. One that has gone is looked for again.
    fn image_volume_failed(&mut self, name: &VolumeName, result: &Result<Outcome, Failure>) {
        let Err(failure) = result else { return };
        if failure.kind == FailureKind::LayersGone {
            self.life.record.volume_images.remove(name);
        }
        if !failure.kind.is_told_elsewhere() {
            let text = format!("Error: {}", not_mounted(&failure.message));
            self.tell_waiting(&ImageFor::Volume(name.clone()), &text);
        }
    }

    /// Takes the outcome.
    pub(in crate::pod) fn volume_made(
        &mut self,
        name: &VolumeName,
        ended: EndedEffect,
        result: Result<Outcome, Failure>,
    ) {
        if self.life.spec.volume(name).is_some_and(|volume| volume.image().is_some()) {
            self.image_volume_failed(name, &result);
        } else {
            let prefix = format!("MountVolume.SetUp failed for volume {:?} : ", name.as_str());
            // Of a claim, what failed says itself which step it was and what it is about.
            let is_claim = is_claim(&self.life.spec, name);
            self.complain(&result, "FailedMount", if is_claim { "" } else { &prefix });
        }
        let made = made(result);
        let actual = &mut self.life.actual;
        let Some(state) = actual.volumes.get_mut(name) else { return };
        let refresh = actual.refreshes.get(name).cloned();
        match (&refresh, made) {
            (Some(Refresh::Asked { op, again }), made) if *op == ended.op => {
                let next = match made {
                    Ok(_) if *again => Some(Refresh::At { at: ended.at, tries: 0 }),
                    Ok((_, again_in)) => due(again_in, ended.at),
                    Err(failure) => {
                        let Retry { at, tries, .. } = Retry::after(failure, ended.tries, ended.at);
                        Some(Refresh::At { at: if *again { ended.at } else { at }, tries })
                    }
                };
                set(&mut actual.refreshes, name, next);
            }
            (refresh, made) => {
                // One that is there was set while the volume was being made.
                let is_own = state.op() == Some(ended.op);
                if let (true, None, Ok((_, again_in))) = (is_own, refresh, &made) {
                    set(&mut actual.refreshes, name, due(*again_in, ended.at));
                }
                state.settle(ended, made.map(|(path, _)| path));
            }
        }
    }
}

/// What an image cannot be mounted with, in the words of containerd's CRI, which mounts it for each container (`mutateMounts` of
/// `internal/cri/server/container_image_mount.go`).
#[must_use]
pub fn not_mounted(why: &str) -> String {
    format!("failed to mount image volume: ImageVolumeMountFailed: {why}")
}

fn is_claim(pod: &Pod, name: &VolumeName) -> bool {
    pod.volume(name).is_some_and(|volume| matches!(volume.source, VolumeSource::Claim(_)))
}

fn due(again_in: Option<Duration>, now: Mono) -> Option<Refresh> {
    again_in.map(|time| Refresh::At { at: now + time, tries: 0 })
}

fn set(refreshes: &mut BTreeMap<VolumeName, Refresh>, name: &VolumeName, next: Option<Refresh>) {
    match next {
        Some(refresh) => refreshes.insert(name.clone(), refresh),
        None => refreshes.remove(name),
    };
}

fn made(result: Result<Outcome, Failure>) -> Result<(String, Option<Duration>), Failure> {
    let outcome = result?;
    if let Outcome::Volume { path, again_in } = outcome {
        Ok((path, again_in))
    } else {
        Err(fit::unfitting(&outcome))
    }
}
