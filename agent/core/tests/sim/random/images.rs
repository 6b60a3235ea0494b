//! The disk of images becomes full and has room again, somebody brings images, and those go that nothing needs.

use std::time::Duration;

use berth_core::{
    config::ImageCollection,
    effect::{Effect, NodeAct},
    event::Event,
    failure::FailureKind,
    id::ImageRef,
};

use super::chaos::Chaos;
use crate::world::failure;

/// With these every image goes that nothing needs, while there is more on the disk.
pub(super) fn settings() -> ImageCollection {
    let age_min = Duration::from_secs(5);
    ImageCollection { high_percent: 50, low_percent: 0, age_min, age_max: None }
}

impl Chaos {
    /// The disk may be full from now on, and what was asked for to remove images may be done, late or not at all.
    pub(super) fn change_images(&mut self) {
        let Some(dice) = &mut self.images else { return };
        if dice.is_one_in(20) {
            self.run.world.files_beside_images = [0, 900, 900][dice.below(3)];
        }
        if dice.is_one_in(10) {
            let brought = dice.pick(&["busybox:1", "pulled:1", "brought:1", "brought:2"]).unwrap();
            self.run.world.images.insert(ImageRef::new(brought));
        }
        if !dice.is_one_in(3) {
            return;
        }
        let Some(effect) = self.run.collections.front().cloned() else { return };
        if !dice.is_one_in(4) {
            self.run.collect();
            return;
        }
        let is_done = dice.is_one_in(2);
        if matches!(effect, Effect::Node { act: NodeAct::RemoveImage(_), .. }) {
            self.count("removals of images that failed");
        }
        // It may have been done, or a part of it.
        if is_done {
            drop(self.run.world.perform(&effect, self.run.now));
        }
        self.run.collections.pop_front();
        let outcome = Err(failure(FailureKind::Unknown, "no end within 240 s"));
        self.run.handle(Event::Done { op: effect.op(), outcome });
    }
}
