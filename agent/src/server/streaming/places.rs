//! How many sessions there may be at once.

use berth_core::{
    id::{PodName, PodUid},
    server::streaming::Refusal,
};

use crate::server::{
    lasting::{Lasting, Lasts},
    shares::{Share, Shares},
};

/// Sessions of the node: each may hold some hundred KiB and a few descriptors, and beside them 1 MiB that its process or its ports do not take,
/// or up to twice that of a message of a WebSocket that comes in parts. Logs find places beside them.
pub(in crate::server) const NODE_MAX: usize = 384;

/// Sessions of one pod, so that none takes those of all others.
pub(in crate::server) const POD_MAX: usize = 208;

/// Places for sessions. Clones share them.
#[derive(Debug, Clone)]
pub(in crate::server) struct Places {
    pods: Shares<PodUid>,
    lasting: Lasting,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(in crate::server) struct Place {
    _of_pod: Share<PodUid>,
    _lasts: Lasts,
}

impl Places {
    /// Those that are free, of which none is had that `lasting` has not.
    pub(in crate::server) fn beside(lasting: &Lasting) -> Self {
        Self { pods: Shares::new(NODE_MAX, POD_MAX), lasting: lasting.clone() }
    }

    /// Takes a place for a session of a pod.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(in crate::server) fn take(&self, name: &PodName, uid: &PodUid) -> Result<Place, Refusal> {
        let of_pod = self.pods.take_for_request(uid, "the pod", "streaming sessions")?;
        Ok(Place { _of_pod: of_pod, _lasts: self.lasting.take(&name.namespace)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &Places, namespace: &str, pod: usize) -> Result<Place, Refusal> {
        let (namespace, pod) = (namespace.to_owned(), pod.to_string());
        places.take(&PodName { namespace, name: pod.clone() }, &PodUid::new(pod))
    }

    #[test]
    fn nobody_has_more_than_their_sessions() {
        let lasting = Lasting::default();
        // Which are held, as namespace, number of the first pod and sessions of each; who asks then, and how they are refused.
        for (held, (namespace, pod), text) in [
            (&[("a", 0, 208)][..], ("a", 0), Some("the pod has 208 streaming sessions")),
            (&[("a", 0, 208)], ("a", 1), None),
            (&[("a", 0, 208), ("a", 1, 16)], ("a", 1), Some("the namespace has 224 sessions and logs")),
            (&[("a", 0, 208), ("a", 1, 16)], ("b", 2), None),
            (
                &[("a", 0, 208), ("a", 1, 16), ("b", 2, 160)],
                ("c", 4),
                Some("the node has 384 streaming sessions"),
            ),
        ] {
            let places = Places::beside(&lasting);
            let all = held.iter().flat_map(|(namespace, pod, count)| vec![(namespace, *pod); *count]);
            let mut all: Vec<_> =
                all.map(|(namespace, pod)| take(&places, namespace, pod).unwrap()).collect();
            let taken = take(&places, namespace, pod);
            let refusal = taken.as_ref().err();
            assert_eq!(refusal.is_some(), text.is_some(), "{held:?}");
            if let (Some(refusal), Some(text)) = (refusal, text) {
                assert!(refusal.status == 429 && refusal.text.starts_with(text), "{}", refusal.text);
                assert_eq!(refusal.headers, [("retry-after", "10".to_owned())]);
                all.pop();
                drop(take(&places, namespace, pod).unwrap());
            }
            drop((all, taken));
            assert!(places.pods.is_empty() && lasting.is_empty(), "nothing is kept of who has none");
        }
    }
}
