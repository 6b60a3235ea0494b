//! Which images are removed where their disk is full or nobody has used them for long, and in which order.
//!
//! Source: `pkg/kubelet/images/image_gc_manager.go`. What is not as there is in decision 0038.

use jiff::Timestamp;

use crate::{
    config::ImageCollection,
    time::{Mono, Now},
};

/// The file system that images are on, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageDisk {
    /// What it holds.
    pub capacity: u64,
    /// What is free for all.
    pub available: u64,
}

/// An image as it is kept on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredImage {
    /// Digest of its config.
    pub id: String,
    /// Its records, by which it is removed.
    pub names: Vec<StoredName>,
    /// Chain id of its layers.
    pub chain_id: String,
    /// Bytes of what it was pulled as.
    pub size_bytes: u64,
    /// When the newest of its records was made or changed.
    pub touched: Timestamp,
    /// Why it is not removed, whatever there is too little of.
    pub stays: Option<Stays>,
}

/// Why an image is not removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stays {
    /// A container of anybody, or something else that is mounted, is made of it.
    Used,
    /// Somebody wants it kept.
    Pinned,
    /// Not all its records are the node's to manage.
    OfOthers,
}

/// A record of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredName {
    /// Its name.
    pub name: String,
    /// Digest of what it points at.
    pub target: String,
}

/// Why an image is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The disk is full.
    Space,
    /// Nobody has used it for long.
    Age,
}

impl Reason {
    /// As metrics have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Space => "space",
            Self::Age => "age",
        }
    }
}

/// A disk that is fuller than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// How full it is.
    pub percent: u64,
    /// What it holds, in bytes.
    pub capacity: u64,
    /// What is to be freed, in bytes.
    pub bytes: u64,
}

/// The disk has no size, so nobody knows how full it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoCapacity;

/// Whether a disk is fuller than it may be.
///
/// # Errors
/// It has no size.
pub fn shortage(settings: &ImageCollection, disk: ImageDisk) -> Result<Option<Shortage>, NoCapacity> {
    let (capacity, available) = (u128::from(disk.capacity), u128::from(disk.available.min(disk.capacity)));
    let free = (available * 100).checked_div(capacity).ok_or(NoCapacity)?;
    let percent = 100 - u64::try_from(free).unwrap_or(100);
    if percent < settings.high_percent {
        return Ok(None);
    }
    let to_be_free = capacity * u128::from(100 - settings.low_percent.min(100)) / 100;
    let bytes = u64::try_from(to_be_free.saturating_sub(available)).unwrap_or(u64::MAX);
    Ok(Some(Shortage { percent, capacity: disk.capacity, bytes }))
}

/// An image that nothing needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// Which.
    pub image: StoredImage,
    /// Since when it is known.
    pub since: Mono,
    /// When it was last used, where this agent has seen it.
    pub last_used: Option<Mono>,
}

/// An image that is to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Which.
    pub image: StoredImage,
    /// Why.
    pub reason: Reason,
}

/// What may be removed, in this order: what is too old, and after that, of what is old enough for it, as much as is needed. `began` is when
/// this agent began: what was used before it does not know.
#[must_use]
pub fn removals(settings: &ImageCollection, mut unused: Vec<Unused>, began: Mono, now: Now) -> Vec<Removal> {
    let now = now.mono;
    unused.retain(|one| one.image.stays.is_none());
    unused.sort_by(|one, other| {
        let key = |one: &Unused| (one.last_used, one.since, one.image.touched);
        key(one).cmp(&key(other)).then_with(|| one.image.id.cmp(&other.image.id))
    });
    let is_too_old = |one: &Unused| {
        let idle_since = one.last_used.map_or(one.since, |used| used.max(one.since));
        settings.age_max.is_some_and(|most| now.since(began) > most && now.since(idle_since) > most)
    };
    let (old, rest): (Vec<_>, Vec<_>) = unused.into_iter().partition(is_too_old);
    let old = old.into_iter().map(|one| Removal { image: one.image, reason: Reason::Age });
    let rest = rest.into_iter().filter(|one| now.since(one.since) >= settings.age_min);
    old.chain(rest.map(|one| Removal { image: one.image, reason: Reason::Space })).collect()
}

#[cfg(test)]
mod tests;
