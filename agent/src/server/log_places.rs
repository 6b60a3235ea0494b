//! How many logs may be given at once.

use berth_core::{
    id::{ContainerName, PodName, PodUid},
    server::Refusal,
};

use super::{
    lasting::{Lasting, Lasts},
    shares::{Full, Share, Shares},
};

/// How many there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Most {
    /// Of the node.
    pub(super) all: usize,
    /// Of the containers of one namespace, so that none takes those of all others.
    pub(super) of_namespace: usize,
    /// Of one container, for the same reason, and of those that the node has itself.
    pub(super) each: usize,
}

/// Those that are followed. Each may have a connection, and has a few descriptors.
pub(super) const FOLLOWED: Most = Most { all: 256, of_namespace: 128, each: 64 };

/// Those that are given to their end. Each has a file open for as long as its reader takes.
pub(super) const NOT_FOLLOWED: Most = Most { all: 256, of_namespace: 128, each: 64 };

/// Whose a log is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Whose {
    Container(PodUid, ContainerName),
    Node,
}

/// Places for logs. Clones share them.
#[derive(Debug, Clone)]
pub struct LogPlaces {
    followed: Sort,
    not_followed: Sort,
    lasting: Lasting,
}

/// Places for one sort of logs.
#[derive(Debug, Clone)]
struct Sort {
    /// What they are called.
    what: &'static str,
    logs: Shares<Whose>,
    namespaces: Shares<String>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct LogPlace {
    _of_log: Share<Whose>,
    _of_namespace: Option<Share<String>>,
    _lasts: Lasts,
}

impl Sort {
    fn new(most: Most, what: &'static str) -> Self {
        let (logs, namespaces) = (Shares::new(most.all, most.each), Shares::new(most.all, most.of_namespace));
        Self { what, logs, namespaces }
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.logs.is_empty() && self.namespaces.is_empty()
    }
}

impl LogPlaces {
    /// Those that are free, of which none is had that `lasting` has not.
    pub(super) fn beside(lasting: &Lasting) -> Self {
        Self {
            followed: Sort::new(FOLLOWED, "followers of logs"),
            not_followed: Sort::new(NOT_FOLLOWED, "logs under way"),
            lasting: lasting.clone(),
        }
    }

    /// Takes a place for a log of a container.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(super) fn of_container(
        &self,
        (name, uid): (&PodName, &PodUid),
        container: &ContainerName,
        is_followed: bool,
    ) -> Result<LogPlace, Refusal> {
        let sort = if is_followed { &self.followed } else { &self.not_followed };
        let whose = Whose::Container(uid.clone(), container.clone());
        let of_log = sort.logs.take_for_request(&whose, "the container", sort.what)?;
        let of_namespace = sort.namespaces.take_for_request(&name.namespace, "the namespace", sort.what)?;
        let lasts = self.lasting.take(&name.namespace)?;
        Ok(LogPlace { _of_log: of_log, _of_namespace: Some(of_namespace), _lasts: lasts })
    }

    /// Takes a place for a log that the node has itself.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(super) fn of_node(&self) -> Result<LogPlace, Refusal> {
        let Sort { what, logs, .. } = &self.not_followed;
        let of_log = logs.take(&Whose::Node).map_err(|full| match full {
            Full::All => Refusal::too_many("the node", NOT_FOLLOWED.all, what),
            Full::Own => Refusal::too_many("the node", NOT_FOLLOWED.each, "logs of its own under way"),
        })?;
        Ok(LogPlace { _of_log: of_log, _of_namespace: None, _lasts: self.lasting.take("")? })
    }

    /// Whether no log is given.
    #[cfg(test)]
    pub(super) fn are_free(&self) -> bool {
        self.followed.is_empty() && self.not_followed.is_empty() && self.lasting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            lanes::Lanes,
            lasting,
            streaming::places::{self, POD_MAX},
        },
        *,
    };

    fn pod(namespace: &str, pod: usize) -> (PodName, PodUid) {
        let (namespace, pod) = (namespace.to_owned(), pod.to_string());
        (PodName { namespace, name: pod.clone() }, PodUid::new(pod))
    }

    #[test]
    fn sessions_and_logs_have_places_beside_each_other() {
        const OF_NAMESPACE: &str = "the namespace has 224 sessions and logs";
        let lanes = Lanes::default();
        let session = |namespace: &str, number: usize| {
            let (name, uid) = pod(namespace, number);
            lanes.sessions.take(&name, &uid)
        };
        let log = |namespace: &str, number: usize, is_followed: bool| {
            let (name, uid) = pod(namespace, number);
            lanes.logs.of_container((&name, &uid), &ContainerName::new("c"), is_followed)
        };
        let all_but_one = 0..lasting::NAMESPACE_MAX - 1;
        let mut sessions: Vec<_> =
            all_but_one.map(|number| session("a", number / POD_MAX).unwrap()).collect();
        for is_followed in [true, false] {
            let held = log("a", 1, is_followed).unwrap();
            let refusal = session("a", 1).unwrap_err();
            assert!(refusal.text.starts_with(OF_NAMESPACE), "{}", refusal.text);
            drop(held);
        }
        sessions.push(session("a", 1).unwrap());
        for is_followed in [true, false] {
            let refusal = log("a", 1, is_followed).unwrap_err();
            assert_eq!(refusal.status, 429);
            assert!(refusal.text.starts_with(OF_NAMESPACE), "{}", refusal.text);
            drop(log("b", 2, is_followed).unwrap());
        }
        // There may be no more sessions than these: what is left is for logs.
        sessions.extend((sessions.len()..places::NODE_MAX).map(|_| session("b", 2).unwrap()));
        let left = lasting::NODE_MAX - places::NODE_MAX;
        let logs: Vec<_> = (0..left).map(|_| log("b", 2, true).unwrap()).collect();
        for refused in [lanes.logs.of_node(), log("c", 3, true), log("c", 3, false)] {
            let text = refused.unwrap_err().text;
            assert!(text.starts_with("the node has 448 sessions and logs"), "{text}");
        }
        drop(logs);
        assert!(
            lanes.logs.followed.is_empty() && lanes.logs.not_followed.is_empty(),
            "no refusal has a place"
        );
        drop(lanes.logs.of_node().unwrap());
        drop(sessions);
        assert!(lanes.logs.are_free());
    }

    #[test]
    fn neither_a_container_nor_a_namespace_nor_the_node_has_more_than_its_logs() {
        for (is_followed, what) in [(true, "followers of logs"), (false, "logs under way")] {
            let places = LogPlaces::beside(&Lasting::default());
            let take = |namespace: &str, pod: usize, container: &str| {
                let name = PodName { namespace: namespace.to_owned(), name: pod.to_string() };
                let (uid, container) = (PodUid::new(pod.to_string()), ContainerName::new(container));
                places.of_container((&name, &uid), &container, is_followed)
            };
            let is_refused = |(namespace, pod, container): (&str, usize, &str), text: &str| {
                let refusal = take(namespace, pod, container).unwrap_err();
                assert_eq!(refusal.status, 429);
                assert!(refusal.text.starts_with(&format!("{text} {what}")), "{}", refusal.text);
                assert_eq!(refusal.headers, [("retry-after", "10".to_owned())]);
            };
            let Most { all, of_namespace, each } = if is_followed { FOLLOWED } else { NOT_FOLLOWED };
            let mut held: Vec<LogPlace> = (0..each).map(|_| take("a", 0, "c").unwrap()).collect();
            is_refused(("a", 0, "c"), "the container has 64");
            held.push(take("a", 0, "d").unwrap());
            held.extend((held.len()..of_namespace).map(|_| take("a", 1, "c").unwrap()));
            is_refused(("a", 2, "c"), "the namespace has 128");
            held.extend((held.len()..all).map(|number| take("b", 3 + number / each, "c").unwrap()));
            is_refused(("c", 99, "c"), "the node has 256");
            held.pop();
            held.push(take("c", 99, "c").unwrap());
            drop(held);
            assert!(places.are_free(), "nothing is kept of containers that have none");
        }
    }

    #[test]
    fn the_node_has_so_many_of_its_own() {
        let places = LogPlaces::beside(&Lasting::default());
        let mut held: Vec<LogPlace> = (0..64).map(|_| places.of_node().unwrap()).collect();
        let refusal = places.of_node().unwrap_err();
        assert!(refusal.text.starts_with("the node has 64 logs of its own"), "{}", refusal.text);
        held.pop();
        held.push(places.of_node().unwrap());
    }
}
