//! Root file systems: what the mounts of a creation request ask for, as a plan that names every step.
//!
//! containerd describes a root file system as a list of mounts (`core/mount`). Since 2.2 their types may carry prefixes
//! of its mount manager: `format/` fills templates in with the places of earlier mounts, `mkdir/` makes directories and
//! `mkfs/` an image first. [`plan`] applies them in the order in which they are written, and says which mounts make the
//! root file system and which only serve later ones.
//!
//! Invariants: every index, path and size is checked here; nothing leads out of the directories in [`Roots`] unless the
//! request names it outright; a list of any form ends in a plan or an error.

mod data;
mod error;
mod idmap;
mod options;
mod plan;
mod template;
mod transform;

pub use data::{Datum, Location};
pub use error::PlanError;
pub use idmap::IdMap;
pub use options::{Device, Options, flag};
pub use plan::{Mount, MountType, Place, Plan, Roots, Step, plan};
pub use transform::{Beneath, Directory, Format, Image, Owner, Root};

/// Mounts of one root file system: more than an overlay takes layers (`OVL_MAX_STACK` is 500).
pub const MOUNTS_MAX: usize = 512;
