//! Account files of images, as they were read once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use berth_core::oci::Accounts;

/// Images whose accounts are kept; beyond it the cache begins anew.
const CACHE_MAX: usize = 128;

/// Account files by chain id: the same layers have the same files.
#[derive(Debug, Default)]
pub struct AccountsCache(Mutex<BTreeMap<String, Arc<Accounts>>>);

impl AccountsCache {
    pub(in crate::effects) fn get(&self, chain_id: &str) -> Option<Arc<Accounts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(chain_id).cloned()
    }

    pub(in crate::effects) fn put(&self, chain_id: String, accounts: &Arc<Accounts>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= CACHE_MAX {
            known.clear();
        }
        known.insert(chain_id, Arc::clone(accounts));
    }
}
