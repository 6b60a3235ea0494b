//! How many logs may be followed at once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_core::{
    id::{ContainerName, PodUid},
    server::Refusal,
};

/// Followers of the node. Each has a connection, of which there are 512, and a few descriptors.
pub(super) const NODE_MAX: usize = 256;

/// Followers of one container, so that none takes those of all others.
pub(super) const CONTAINER_MAX: usize = 64;

type Container = (PodUid, ContainerName);

/// Places for followers of logs. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Followers(Arc<Mutex<BTreeMap<Container, usize>>>);

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Follower {
    followers: Followers,
    container: Container,
}

impl Followers {
    /// Takes a place for a follower of a container.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(super) fn take(&self, pod: &PodUid, container: &ContainerName) -> Result<Follower, Refusal> {
        let container = (pod.clone(), container.clone());
        let mut taken = self.taken();
        if taken.values().sum::<usize>() >= NODE_MAX {
            return Err(Refusal::too_many_followers("the node", NODE_MAX));
        }
        let of_container = taken.entry(container.clone()).or_default();
        if *of_container >= CONTAINER_MAX {
            return Err(Refusal::too_many_followers("the container", CONTAINER_MAX));
        }
        *of_container += 1;
        Ok(Follower { followers: self.clone(), container })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<Container, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut taken = self.followers.taken();
        if let Some(count) = taken.get_mut(&self.container) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.container);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_a_container_nor_the_node_has_more_than_its_followers() {
        let followers = Followers::default();
        let take = |pod: usize, container: &str| {
            followers.take(&PodUid::new(pod.to_string()), &ContainerName::new(container))
        };
        let mut held: Vec<Follower> = (0..CONTAINER_MAX).map(|_| take(0, "c").unwrap()).collect();
        let refusal = take(0, "c").unwrap_err();
        assert_eq!(refusal.status, 429);
        assert!(refusal.text.starts_with("the container has 64 followers of logs"), "{}", refusal.text);
        assert_eq!(refusal.headers, [("retry-after", "10".to_owned())]);
        held.push(take(0, "d").unwrap());
        held.extend((held.len()..NODE_MAX).map(|number| take(1 + number / CONTAINER_MAX, "c").unwrap()));
        let refusal = take(99, "c").unwrap_err();
        assert!(refusal.text.starts_with("the node has 256 followers of logs"), "{}", refusal.text);
        held.pop();
        held.push(take(99, "c").unwrap());
        drop(held);
        assert!(followers.taken().is_empty(), "nothing is kept of containers that have none");
    }
}
