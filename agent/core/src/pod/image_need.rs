//! What of a pod needs an image: containers that are being prepared, and volumes that are made of one.

use super::{
    actual::{Life, Run},
    port::image::{ImageFor, ImageUse},
    turn::is_in_turn,
};
use crate::{
    id::{ImageRef, VolumeName},
    spec::{Container, ImagePullPolicy, Volume},
};

/// An image that something of a pod needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need<'a> {
    /// Its name, as written.
    pub(super) image: &'a ImageRef,
    /// When it is pulled.
    pub(super) policy: ImagePullPolicy,
    /// How far it is.
    pub(super) state: &'a ImageUse,
    /// Whether it is not the turn of the container yet.
    pub(super) is_early: bool,
    /// Whether it was told that the image is there, or may have been by an agent before.
    pub(super) is_told: bool,
}

/// What something of a pod needs, unless it has it or does not need it yet.
pub(super) fn need<'a>(life: &'a Life, of: &ImageFor) -> Option<Need<'a>> {
    match of {
        ImageFor::Container(name) => {
            of_container(life, life.spec.all_containers().find(|one| one.name == *name)?)
        }
        ImageFor::Volume(name) => of_volume(life, life.spec.volume(name)?),
    }
}

/// All that the pod needs.
pub(super) fn needs(life: &Life) -> impl Iterator<Item = (ImageFor, Need<'_>)> {
    let volumes = life
        .spec
        .volumes
        .iter()
        .filter_map(|one| Some((ImageFor::Volume(one.name.clone()), of_volume(life, one)?)));
    let containers = life
        .spec
        .all_containers()
        .filter_map(|one| Some((ImageFor::Container(one.name.clone()), of_container(life, one)?)));
    volumes.chain(containers)
}

pub(super) fn of_container<'a>(life: &'a Life, container: &'a Container) -> Option<Need<'a>> {
    let Run::Preparing(preparing) = life.run(&container.name) else { return None };
    Some(Need {
        image: &container.image,
        policy: container.pull_policy,
        state: &preparing.image,
        is_early: !is_in_turn(life, container),
        is_told: preparing.is_image_told,
    })
}

/// It is resolved once for the pod, as the API has it.
pub(super) fn of_volume<'a>(life: &'a Life, volume: &'a Volume) -> Option<Need<'a>> {
    let (image, policy) = volume.image()?;
    if life.record.volume_images.contains_key(&volume.name) {
        return None;
    }
    let state = life.actual.volume_images.get(&volume.name).unwrap_or(&ImageUse::Wanted);
    Some(Need { image, policy, state, is_early: false, is_told: false })
}

/// Whether a container mounts a volume.
pub(super) fn mounts(container: &Container, volume: &VolumeName) -> bool {
    container.mounts.iter().any(|mount| mount.volume == *volume)
}
