//! How many logs may be followed at once.

use berth_core::{
    id::{ContainerName, PodUid},
    server::Refusal,
};

use super::shares::{Full, Share, Shares};

/// Followers of the node. Each has a connection, of which there are 512, and a few descriptors.
pub(super) const NODE_MAX: usize = 256;

/// Followers of one container, so that none takes those of all others.
pub(super) const CONTAINER_MAX: usize = 64;

type Container = (PodUid, ContainerName);

/// Places for followers of logs. Clones share them.
#[derive(Debug, Clone)]
pub struct Followers(Shares<Container>);

/// A place, until it is dropped.
pub(super) type Follower = Share<Container>;

impl Default for Followers {
    fn default() -> Self {
        Self(Shares::new(NODE_MAX, CONTAINER_MAX))
    }
}

impl Followers {
    /// Takes a place for a follower of a container.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(super) fn take(&self, pod: &PodUid, container: &ContainerName) -> Result<Follower, Refusal> {
        self.0.take(&(pod.clone(), container.clone())).map_err(|full| match full {
            Full::All => Refusal::too_many_followers("the node", NODE_MAX),
            Full::Own => Refusal::too_many_followers("the container", CONTAINER_MAX),
        })
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
        assert!(followers.0.is_empty(), "nothing is kept of containers that have none");
    }
}
