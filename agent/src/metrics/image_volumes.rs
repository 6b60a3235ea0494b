//! Volumes that are made of images.

use prometheus::{IntCounterVec, Registry};

use super::families::Families;

/// Families of such volumes.
#[derive(Debug)]
pub(super) struct ImageVolumes {
    requested: IntCounterVec,
    mounted: IntCounterVec,
    failed: IntCounterVec,
}

impl ImageVolumes {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let families = Families(registry);
        Ok(Self {
            requested: families.counter(
                "kubelet_image_volume_requested_total",
                "Images that were to be mounted.",
                &[],
            )?,
            mounted: families.counter(
                "kubelet_image_volume_mounted_succeed_total",
                "Images that were mounted.",
                &[],
            )?,
            failed: families.counter(
                "kubelet_image_volume_mounted_errors_total",
                "Images that could not be mounted.",
                &[],
            )?,
        })
    }

    /// One was to be mounted, and was or was not.
    pub(super) fn ended(&self, is_well: bool) {
        self.requested.with_label_values::<&str>(&[]).inc();
        let end = if is_well { &self.mounted } else { &self.failed };
        end.with_label_values::<&str>(&[]).inc();
    }
}
