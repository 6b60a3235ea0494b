//! How many logs may be followed at once.

use berth_core::{
    id::{ContainerName, PodName, PodUid},
    server::Refusal,
};

use super::{
    lasting::{Lasting, Lasts},
    shares::{Full, Share, Shares},
};

/// Followers of the node. Each may have a connection, and has a few descriptors.
pub(super) const NODE_MAX: usize = 256;

/// Followers of one container, so that none takes those of all others.
pub(super) const CONTAINER_MAX: usize = 64;

type Container = (PodUid, ContainerName);

/// Places for followers of logs. Clones share them.
#[derive(Debug, Clone)]
pub struct Followers {
    containers: Shares<Container>,
    lasting: Lasting,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Follower {
    _of_container: Share<Container>,
    _lasts: Lasts,
}

impl Followers {
    /// Those that are free, of which none is had that `lasting` has not.
    pub(super) fn beside(lasting: &Lasting) -> Self {
        Self { containers: Shares::new(NODE_MAX, CONTAINER_MAX), lasting: lasting.clone() }
    }

    /// Takes a place for a follower of a container.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(super) fn take(
        &self,
        (name, uid): (&PodName, &PodUid),
        container: &ContainerName,
    ) -> Result<Follower, Refusal> {
        const WHAT: &str = "followers of logs";
        let of_container =
            self.containers.take(&(uid.clone(), container.clone())).map_err(|full| match full {
                Full::All => Refusal::too_many("the node", NODE_MAX, WHAT),
                Full::Own => Refusal::too_many("the container", CONTAINER_MAX, WHAT),
            })?;
        Ok(Follower { _of_container: of_container, _lasts: self.lasting.take(&name.namespace)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_a_container_nor_the_node_has_more_than_its_followers() {
        let lasting = Lasting::default();
        let followers = Followers::beside(&lasting);
        let take = |pod: usize, container: &str| {
            // A few pods of each namespace.
            let name = PodName { namespace: (pod % 2).to_string(), name: pod.to_string() };
            followers.take((&name, &PodUid::new(pod.to_string())), &ContainerName::new(container))
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
        assert!(followers.containers.is_empty(), "nothing is kept of containers that have none");
        assert!(lasting.is_empty());
    }
}
