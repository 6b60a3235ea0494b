//! Images of the node, and the disk that they are on.

use berth_core::{
    effect::NodeAct,
    event::Outcome,
    failure::{Failure, FailureKind},
    id::ImageRef,
    image::{
        WantedImage,
        collection::{ImageDisk, Stays, StoredImage, StoredName},
        name,
    },
    pod::port::{rootfs::RootfsRequest, volume::VolumeRequest},
    record::VolumeImage,
};
use jiff::Timestamp;

use super::{World, failure, image_info};

/// What the disk holds.
const CAPACITY: u64 = 1000;
/// What each image takes of it.
const SIZE: u64 = 100;

impl World {
    /// Does what an effect on images asks for.
    pub(super) fn perform_on_images(&mut self, act: &NodeAct) -> Result<Outcome, Failure> {
        if self.runtime_is_down {
            return Err(failure(FailureKind::RuntimeDown, "containerd is away"));
        }
        Ok(match act {
            NodeAct::InspectImage(WantedImage { image, .. }) => {
                Outcome::Image(self.images.contains(image).then(|| image_info(image)))
            }
            NodeAct::PullImage(WantedImage { image, .. }) if self.registry.contains(image) => {
                self.images.insert(image.clone());
                Outcome::Image(Some(image_info(image)))
            }
            NodeAct::PullImage(_) => return Err(failure(FailureKind::ImagePull, "not found")),
            NodeAct::MeasureImages => {
                let used = self.files_beside_images + SIZE * self.images.len() as u64;
                Outcome::ImageDisk(ImageDisk { capacity: CAPACITY, available: CAPACITY.saturating_sub(used) })
            }
            NodeAct::ListImages => {
                Outcome::Images(self.images.iter().map(|image| self.stored(image)).collect())
            }
            NodeAct::RemoveImage(removal) => {
                let id = removal.image.id.as_str();
                let Some(image) = self.images.iter().find(|image| image.as_str() == id).cloned() else {
                    return Ok(Outcome::Done);
                };
                if self.is_used(&image) {
                    return Ok(Outcome::ImageKept);
                }
                self.images.remove(&image);
                self.images_removed += 1;
                Outcome::Done
            }
            NodeAct::SetQos(_) | NodeAct::ReadNodeObject | NodeAct::GiveUpPull(_) | NodeAct::Note(_) => {
                panic!("{act:?}")
            }
        })
    }

    fn stored(&self, image: &ImageRef) -> StoredImage {
        let name = name::parse(image.as_str()).unwrap().to_string();
        StoredImage {
            id: image.to_string(),
            names: vec![StoredName { name, target: format!("target of {image}") }],
            chain_id: format!("layers of {image}"),
            size_bytes: SIZE,
            touched: Timestamp::UNIX_EPOCH,
            stays: self.is_used(image).then_some(Stays::Used),
        }
    }

    /// Whether something is mounted of its layers.
    fn is_used(&self, image: &ImageRef) -> bool {
        let of_layers = self.snapshots.keys().filter_map(|id| self.layers.get(id));
        of_layers.chain(self.volume_layers.values()).any(|of| of == image)
    }

    /// Makes the layer of a volume, of the image that the record tells of.
    pub(super) fn make_volume_layer(&mut self, request: &VolumeRequest, made_of: &VolumeImage) {
        let (pod, name) = (&request.pod.uid, &request.volume.name);
        let recorded = self.records.get(pod).and_then(|record| record.volume_images.get(name));
        if recorded != Some(made_of) {
            self.violate(format!("{pod}/{name}: of {made_of:?}, and the record tells of {recorded:?}"));
        }
        let image = self.images.iter().find(|image| image_info(image).name == made_of.name).cloned();
        let Some(image) = image else {
            return self.violate(format!("{pod}/{name}: {} was removed under it", made_of.name));
        };
        self.images_mounted += 1;
        self.volume_layers.insert((pod.clone(), name.clone()), image);
    }

    /// Makes the layer of a container. What was looked at before is there still: only the agent removes images.
    pub(super) fn make_layer(&mut self, request: &RootfsRequest) {
        let image = self.images.iter().find(|image| image_info(image).name == request.image.name).cloned();
        match image {
            Some(image) => drop(self.layers.insert(request.id.clone(), image)),
            None => self.violate(format!("{}: {} was removed under it", request.id, request.image.name)),
        }
    }
}
