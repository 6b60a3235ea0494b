//! How many sessions there may be at once.

use berth_core::{id::PodUid, server::streaming::Refusal};

use crate::server::shares::{Full, Share, Shares};

/// Sessions of the node: each may hold some hundred KiB and a few descriptors.
pub(in crate::server) const NODE_MAX: usize = 512;

/// Sessions of one pod, so that none takes those of all others. Build systems run dozens of commands in one.
pub(in crate::server) const POD_MAX: usize = 256;

/// Places for sessions. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Places(Shares<PodUid>);

/// A place, until it is dropped.
pub(super) type Place = Share<PodUid>;

impl Default for Places {
    fn default() -> Self {
        Self(Shares::new(NODE_MAX, POD_MAX))
    }
}

impl Places {
    /// Takes a place for a session of a pod.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(super) fn take(&self, pod: &PodUid) -> Result<Place, Refusal> {
        self.0.take(pod).map_err(|full| match full {
            Full::All => Refusal::too_many("the node", NODE_MAX),
            Full::Own => Refusal::too_many("the pod", POD_MAX),
        })
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
        assert!(places.0.is_empty(), "nothing is kept of pods that have none");
    }
}
