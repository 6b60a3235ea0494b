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
    /// Of one container, so that none takes those of all others, and of those that the node has itself.
    pub(super) each: usize,
}

/// Those that are followed. Each may have a connection, and has a few descriptors.
pub(super) const FOLLOWED: Most = Most { all: 256, each: 64 };

/// Those that are given to their end. Each has a file open for as long as its reader takes.
pub(super) const NOT_FOLLOWED: Most = Most { all: 256, each: 64 };

/// Whose a log is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Whose {
    Container(PodUid, ContainerName),
    Node,
}

/// Places for logs. Clones share them.
#[derive(Debug, Clone)]
pub struct LogPlaces {
    followed: Shares<Whose>,
    not_followed: Shares<Whose>,
    lasting: Lasting,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct LogPlace {
    _of_log: Share<Whose>,
    _lasts: Lasts,
}

impl LogPlaces {
    /// Those that are free, of which none is had that `lasting` has not.
    pub(super) fn beside(lasting: &Lasting) -> Self {
        let shares = |most: Most| Shares::new(most.all, most.each);
        Self { followed: shares(FOLLOWED), not_followed: shares(NOT_FOLLOWED), lasting: lasting.clone() }
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
        let (shares, most, what) = if is_followed {
            (&self.followed, FOLLOWED, "followers of logs")
        } else {
            (&self.not_followed, NOT_FOLLOWED, "logs under way")
        };
        let of_log =
            shares.take(&Whose::Container(uid.clone(), container.clone())).map_err(|full| match full {
                Full::All => Refusal::too_many("the node", most.all, what),
                Full::Own => Refusal::too_many("the container", most.each, what),
            })?;
        Ok(LogPlace { _of_log: of_log, _lasts: self.lasting.take(&name.namespace)? })
    }

    /// Takes a place for a log that the node has itself.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(super) fn of_node(&self) -> Result<LogPlace, Refusal> {
        let of_log = self.not_followed.take(&Whose::Node).map_err(|full| match full {
            Full::All => Refusal::too_many("the node", NOT_FOLLOWED.all, "logs under way"),
            Full::Own => Refusal::too_many("the node", NOT_FOLLOWED.each, "logs of its own under way"),
        })?;
        Ok(LogPlace { _of_log: of_log, _lasts: self.lasting.take("")? })
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
    fn neither_a_container_nor_the_node_has_more_than_its_logs() {
        for (is_followed, what) in [(true, "followers of logs"), (false, "logs under way")] {
            let places = LogPlaces::beside(&Lasting::default());
            let take = |pod: usize, container: &str| {
                // Two namespaces, neither of which has more than its part.
                let name = PodName { namespace: (pod % 2).to_string(), name: pod.to_string() };
                let (uid, container) = (PodUid::new(pod.to_string()), ContainerName::new(container));
                places.of_container((&name, &uid), &container, is_followed)
            };
            let Most { all, each } = if is_followed { FOLLOWED } else { NOT_FOLLOWED };
            let mut held: Vec<LogPlace> = (0..each).map(|_| take(0, "c").unwrap()).collect();
            let refusal = take(0, "c").unwrap_err();
            assert_eq!(refusal.status, 429);
            assert!(refusal.text.starts_with(&format!("the container has 64 {what}")), "{}", refusal.text);
            assert_eq!(refusal.headers, [("retry-after", "10".to_owned())]);
            held.push(take(0, "d").unwrap());
            held.extend((held.len()..all).map(|number| take(1 + number / each, "c").unwrap()));
            let refusal = take(99, "c").unwrap_err();
            assert!(refusal.text.starts_with(&format!("the node has 256 {what}")), "{}", refusal.text);
            held.pop();
            held.push(take(99, "c").unwrap());
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
