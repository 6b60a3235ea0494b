//! How many sessions there may be at once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_core::{id::PodUid, server::streaming::Refusal};

/// Sessions of the node: each may hold some hundred KiB and a few descriptors.
pub(in crate::server) const NODE_MAX: usize = 512;

/// Sessions of one pod, so that none takes those of all others. Build systems run dozens of commands in one.
pub(in crate::server) const POD_MAX: usize = 256;

/// Places for sessions. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Places(Arc<Mutex<BTreeMap<PodUid, usize>>>);

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    pod: PodUid,
}

impl Places {
    /// Takes a place for a session of a pod.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(super) fn take(&self, pod: &PodUid) -> Result<Place, Refusal> {
        let mut taken = self.taken();
        if taken.values().sum::<usize>() >= NODE_MAX {
            return Err(Refusal::too_many("the node", NODE_MAX));
        }
        let of_pod = taken.entry(pod.clone()).or_default();
        if *of_pod >= POD_MAX {
            return Err(Refusal::too_many("the pod", POD_MAX));
        }
        *of_pod += 1;
        Ok(Place { places: self.clone(), pod: pod.clone() })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<PodUid, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if let Some(count) = taken.get_mut(&self.pod) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.pod);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_a_pod_nor_the_node_has_more_than_its_sessions() {
        let places = Places::default();
        let take = |pod: usize| places.take(&PodUid::new(pod.to_string()));
        let mut held: Vec<Place> = (0..POD_MAX).map(|_| take(0).unwrap()).collect();
        let refusal = take(0).unwrap_err();
        assert_eq!(refusal.status, 429);
        assert!(refusal.text.starts_with("the pod has 256 streaming sessions"), "{}", refusal.text);
        assert_eq!(refusal.headers, [("retry-after", "10".to_owned())]);
        held.extend((POD_MAX..NODE_MAX).map(|number| take(1 + number / POD_MAX).unwrap()));
        let refusal = take(9).unwrap_err();
        assert!(refusal.text.starts_with("the node has 512 streaming sessions"), "{}", refusal.text);
        held.pop();
        held.push(take(9).unwrap());
        drop(held);
        assert!(places.taken().is_empty(), "nothing is kept of pods that have none");
    }
}
