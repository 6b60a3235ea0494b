//! Places that many share: so many in all, and so many for each of them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_core::server::Refusal;

/// The places. Clones share them.
#[derive(Debug)]
pub(super) struct Shares<K> {
    all: usize,
    each: usize,
    taken: Arc<Mutex<BTreeMap<K, usize>>>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Share<K: Ord> {
    taken: Arc<Mutex<BTreeMap<K, usize>>>,
    of: K,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// All are taken.
    All,
    /// Those of one are.
    Own,
}

impl<K> Clone for Shares<K> {
    fn clone(&self) -> Self {
        Self { taken: Arc::clone(&self.taken), ..*self }
    }
}

impl<K: Ord + Clone> Shares<K> {
    /// So many places, of which each has so many at most.
    pub(super) fn new(all: usize, each: usize) -> Self {
        Self { all, each, taken: Arc::default() }
    }

    /// Takes a place.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn take(&self, of: &K) -> Result<Share<K>, Full> {
        let mut taken = lock(&self.taken);
        if taken.values().sum::<usize>() >= self.all {
            return Err(Full::All);
        }
        let own = taken.entry(of.clone()).or_default();
        if *own >= self.each {
            return Err(Full::Own);
        }
        *own += 1;
        Ok(Share { taken: Arc::clone(&self.taken), of: of.clone() })
    }

    /// Takes a place for a request: of the node, and of `whose`, in which each has its part of `what`.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(super) fn take_for_request(&self, of: &K, whose: &str, what: &str) -> Result<Share<K>, Refusal> {
        self.take(of).map_err(|full| match full {
            Full::All => Refusal::too_many("the node", self.all, what),
            Full::Own => Refusal::too_many(whose, self.each, what),
        })
    }

    /// Whether nothing is kept of anybody.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.taken).is_empty()
    }
}

impl<K: Ord> Drop for Share<K> {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        if let Some(count) = taken.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.of);
            }
        }
    }
}

fn lock<K>(taken: &Mutex<BTreeMap<K, usize>>) -> MutexGuard<'_, BTreeMap<K, usize>> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}
