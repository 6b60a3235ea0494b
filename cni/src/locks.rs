//! Who may run plugins when (SPEC.md, section 2 "Lifecycle & Ordering").
//!
//! Never two operations for one container, also on different networks; any number for different containers; the plugins'
//! GC of a network alone. Every operation takes the network's lock first and the container's second, and an operation
//! that holds a container's lock takes no other, so nothing can wait in a circle. GC never waits for the network's lock:
//! a writer in the queue would hold up every later ADD and DEL for as long as the slowest one before it runs.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{
    Mutex as AsyncMutex, OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock,
};

use crate::name::{ContainerId, NetworkName};

#[derive(Debug, Default)]
pub(crate) struct Locks {
    networks: Registry<NetworkName, RwLock<()>>,
    containers: Registry<ContainerId, AsyncMutex<()>>,
}

/// Held during an operation on one container.
#[derive(Debug)]
#[must_use]
pub(crate) struct ContainerGuard {
    _container: OwnedMutexGuard<()>,
    _network: OwnedRwLockReadGuard<()>,
}

/// Held during GC of one network.
#[derive(Debug)]
#[must_use]
pub(crate) struct NetworkGuard {
    _network: OwnedRwLockWriteGuard<()>,
}

impl Locks {
    /// For ADD, DEL and CHECK.
    pub(crate) async fn container(&self, network: &NetworkName, id: &ContainerId) -> ContainerGuard {
        let network = self.networks.get(network).read_owned().await;
        ContainerGuard { _container: self.containers.get(id).lock_owned().await, _network: network }
    }

    /// For GC: only if nothing runs on the network and nothing waits for it.
    pub(crate) fn network_if_free(&self, network: &NetworkName) -> Option<NetworkGuard> {
        let network = self.networks.get(network).try_write_owned().ok()?;
        Some(NetworkGuard { _network: network })
    }
}

/// Locks by name that exist while somebody holds or awaits them.
#[derive(Debug)]
struct Registry<K, L>(Mutex<HashMap<K, Weak<L>>>);

impl<K, L> Default for Registry<K, L> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Clone + Eq + Hash, L: Default> Registry<K, L> {
    fn get(&self, key: &K) -> Arc<L> {
        // The map is whole whenever the lock is free, so a panic elsewhere does not spoil it.
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_key, lock| lock.strong_count() > 0);
        let lock = Arc::<L>::default();
        locks.insert(key.clone(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn network(name: &str) -> NetworkName {
        NetworkName::new(name).unwrap()
    }

    fn container(id: &str) -> ContainerId {
        ContainerId::new(id).unwrap()
    }

    #[test]
    fn who_excludes_whom() {
        let locks = Locks::default();
        let (a, b) = (network("a"), network("b"));
        let held = locks.container(&a, &container("1")).now_or_never().unwrap();
        assert!(locks.container(&a, &container("2")).now_or_never().is_some(), "other containers");
        assert!(locks.container(&a, &container("1")).now_or_never().is_none(), "the same container");
        assert!(locks.container(&b, &container("1")).now_or_never().is_none(), "also on another network");
        assert!(locks.network_if_free(&a).is_none(), "GC of the network");
        assert!(
            locks.container(&a, &container("3")).now_or_never().is_some(),
            "GC that was refused is in no queue"
        );
        let gc = locks.network_if_free(&b).expect("GC of another network");
        assert!(locks.container(&b, &container("3")).now_or_never().is_none(), "no ADD during GC");
        drop((held, gc));
        assert!(locks.network_if_free(&a).is_some());
        assert!(locks.container(&b, &container("3")).now_or_never().is_some());
    }

    #[test]
    fn locks_nobody_holds_are_forgotten() {
        let locks = Locks::default();
        for id in 0..100 {
            drop(locks.container(&network("a"), &container(&id.to_string())).now_or_never().unwrap());
        }
        assert!(locks.containers.0.lock().unwrap().len() <= 1);
    }
}
