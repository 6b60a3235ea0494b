//! The JSON form of the images of volumes.

use std::collections::BTreeMap;

use berth_core::{id::VolumeName, record::VolumeImage};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(super) struct WireVolumeImage {
    name: String,
    chain_id: String,
}

pub(super) fn encode(images: &BTreeMap<VolumeName, VolumeImage>) -> BTreeMap<String, WireVolumeImage> {
    let one = |image: &VolumeImage| {
        let VolumeImage { name, chain_id } = image.clone();
        WireVolumeImage { name, chain_id }
    };
    images.iter().map(|(volume, image)| (volume.as_str().to_owned(), one(image))).collect()
}

pub(super) fn decode(wire: BTreeMap<String, WireVolumeImage>) -> BTreeMap<VolumeName, VolumeImage> {
    let one = |WireVolumeImage { name, chain_id }| VolumeImage { name, chain_id };
    wire.into_iter().map(|(volume, image)| (VolumeName::new(volume), one(image))).collect()
}
