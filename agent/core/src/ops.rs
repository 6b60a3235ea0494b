//! Numbers of effects, and what each was for.

use std::collections::BTreeMap;

use crate::{
    id::{OpId, PodUid, SandboxId},
    image::WantedImage,
    node::Orphan,
    pod::outcome::Slot,
};

/// Effects that are under way.
#[derive(Debug, Default)]
pub struct Ops {
    next: u64,
    open: BTreeMap<OpId, Purpose>,
}

/// What an effect is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// Something of a pod.
    Pod {
        /// Which pod.
        uid: PodUid,
        /// What of it.
        slot: Slot,
        /// How often the same failed before, in a row.
        tries: u32,
    },
    /// Something that belongs to no pod.
    Orphan {
        /// Under which UID it was found.
        uid: PodUid,
        /// What.
        orphan: Orphan,
        /// How often its removal failed before, in a row.
        tries: u32,
    },
    /// The shim of a sandbox that belongs to no pod.
    OrphanShim {
        /// Under which UID it was found.
        uid: PodUid,
        /// Which sandbox.
        sandbox: SandboxId,
        /// How often its removal failed before, in a row.
        tries: u32,
    },
    /// Reading the Node object.
    NodeObject,
    /// Looking for an image.
    Inspect(WantedImage),
    /// Pulling an image.
    Pull(WantedImage),
    /// Looking how full the disk of images is.
    MeasureImages,
    /// Listing images.
    ListImages,
    /// Removing an image.
    RemoveImage,
    /// Values of the QoS cgroups.
    Qos {
        /// How often it failed before, in a row.
        tries: u32,
    },
}

impl Ops {
    /// A number that was not used before, for an effect without outcome.
    pub fn number(&mut self) -> OpId {
        self.next += 1;
        OpId(self.next)
    }

    /// A number for an effect whose outcome is waited for.
    pub fn open(&mut self, purpose: Purpose) -> OpId {
        let op = self.number();
        self.open.insert(op, purpose);
        op
    }

    /// What an effect was for; `None` when its outcome is not waited for.
    pub fn close(&mut self, op: OpId) -> Option<Purpose> {
        self.open.remove(&op)
    }
}
