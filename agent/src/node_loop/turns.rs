//! Since when the loop is busy: who asks about its health is told by it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_core::time::Mono;

/// Since when a turn lasts, in milliseconds; 0 while the loop waits. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Turns(Arc<AtomicU64>);

impl Turns {
    /// A turn begins.
    pub(crate) fn begin(&self, now: Mono) {
        self.0.store(u64::try_from(now.0.as_millis()).unwrap_or(u64::MAX).max(1), Relaxed);
    }

    /// It has ended: the loop waits for what happens next.
    pub(crate) fn end(&self) {
        self.0.store(0, Relaxed);
    }

    /// Since when one lasts; `None` while the loop waits.
    #[must_use]
    pub fn busy_since(&self) -> Option<Mono> {
        match self.0.load(Relaxed) {
            0 => None,
            since => Some(Mono(Duration::from_millis(since))),
        }
    }
}
