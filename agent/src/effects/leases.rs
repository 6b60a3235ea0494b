//! The leases under which this agent unpacks images, by id: what is not among them was left behind.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The leases in use.
#[derive(Debug, Clone, Default)]
pub struct LeasesInUse(Arc<Mutex<BTreeSet<String>>>);

impl LeasesInUse {
    /// Marks one as in use until the mark is dropped.
    pub(in crate::effects) fn mark(&self, id: String) -> InUse {
        self.lock().insert(id.clone());
        InUse { id, all: self.clone() }
    }

    /// Whether one is in use.
    pub(in crate::effects) fn has(&self, id: &str) -> bool {
        self.lock().contains(id)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mark of a lease that is in use.
#[derive(Debug)]
pub(in crate::effects) struct InUse {
    /// Its id.
    pub(in crate::effects) id: String,
    all: LeasesInUse,
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.all.lock().remove(&self.id);
    }
}
