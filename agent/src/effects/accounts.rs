//! Account files of images, as they were read once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_core::oci::Accounts;

/// Bytes of account files that are kept, names included; beyond it the cache begins anew. Those of most images are a few
/// kilobytes.
const BYTES_MAX: usize = 4 << 20;

/// Account files by chain id: the same layers have the same files.
#[derive(Debug, Default)]
pub struct AccountsCache(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    accounts: BTreeMap<String, Arc<Accounts>>,
    bytes: usize,
}

impl AccountsCache {
    pub(in crate::effects) fn get(&self, chain_id: &str) -> Option<Arc<Accounts>> {
        self.known().accounts.get(chain_id).cloned()
    }

    pub(in crate::effects) fn put(&self, chain_id: String, accounts: &Arc<Accounts>) {
        let bytes = bytes(&chain_id, accounts);
        if bytes > BYTES_MAX {
            return;
        }
        let mut known = self.known();
        if known.bytes + bytes > BYTES_MAX {
            *known = Known::default();
        }
        if known.accounts.insert(chain_id, Arc::clone(accounts)).is_none() {
            known.bytes += bytes;
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes(chain_id: &str, accounts: &Accounts) -> usize {
    chain_id.len() + accounts.passwd.len() + accounts.group.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_by_its_bytes() {
        let cache = AccountsCache::default();
        let accounts =
            |kib: usize| Arc::new(Accounts { passwd: "x".repeat(kib << 10), group: String::new() });
        cache.put("small".into(), &accounts(1));
        cache.put("too large".into(), &accounts(5 << 10));
        assert!(cache.get("too large").is_none());
        assert!(cache.get("small").is_some(), "it did not make room for what is not kept");
        for number in 0..100 {
            let name = format!("image {number}");
            cache.put(name.clone(), &accounts(1 << 10));
            cache.put(name.clone(), &accounts(1 << 10));
            assert!(cache.get(&name).is_some());
            let known = cache.known();
            let held: usize = known.accounts.iter().map(|(id, accounts)| bytes(id, accounts)).sum();
            assert_eq!(held, known.bytes);
            assert!(held <= BYTES_MAX, "{held}");
        }
    }
}
