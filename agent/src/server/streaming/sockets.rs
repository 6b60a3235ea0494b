//! How many connections to ports of pods there may be at once.

use std::sync::Arc;

use berth_core::server::streaming::Refusal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::server::shares::{self, Share, Shares};

/// Connections of the node: each has two buffers of 16 KiB, a descriptor, and what the kernel holds.
pub(in crate::server) const NODE_MAX: usize = 1024;

/// Connections to the pods of one namespace, so that none takes those of all others.
pub(in crate::server) const NAMESPACE_MAX: usize = NODE_MAX / 2;

/// Connections of one session. Browsers open dozens at once.
pub(in crate::server) const SESSION_MAX: usize = 256;

/// The places of the node. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Sockets(Shares<String>);

/// The places of one session, which are of the node and of its pod's namespace as well. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct OfSession {
    node: Shares<String>,
    namespace: String,
    own: Arc<Semaphore>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _node: Share<String>,
    _own: OwnedSemaphorePermit,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    /// The session has all of its own.
    #[error("this session has {SESSION_MAX} connections, which is as many as it may: end one of them")]
    Session,
    /// All sessions with the pods of one namespace have those of it.
    #[error(
        "{NAMESPACE_MAX} connections to the namespace are forwarded, which is as many as there may be: end one of them"
    )]
    Namespace,
    /// All sessions together have those of the node.
    #[error("the node forwards {NODE_MAX} connections, which is as many as it may: end one of them")]
    Node,
}

impl Default for Sockets {
    fn default() -> Self {
        Self(Shares::new(NODE_MAX, NAMESPACE_MAX))
    }
}

impl Sockets {
    /// The places of a further session with a pod of a namespace.
    pub(super) fn of_session(&self, namespace: &str) -> OfSession {
        let own = Arc::new(Semaphore::new(SESSION_MAX));
        OfSession { node: self.0.clone(), namespace: namespace.to_owned(), own }
    }
}

impl Full {
    /// For who asks for connections with a request.
    pub(super) fn refusal(self) -> Refusal {
        let (whose, most) = match self {
            Self::Session => ("this session", SESSION_MAX),
            Self::Namespace => ("the namespace", NAMESPACE_MAX),
            Self::Node => ("the node", NODE_MAX),
        };
        Refusal::too_many(whose, most, "forwarded connections")
    }
}

impl OfSession {
    /// Takes so many places, or none.
    ///
    /// # Errors
    /// There are fewer.
    pub(super) fn take_all(&self, count: usize) -> Result<Vec<Place>, Full> {
        (0..count).map(|_number| self.take()).collect()
    }

    /// Takes a place.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn take(&self) -> Result<Place, Full> {
        let own = Arc::clone(&self.own).try_acquire_owned().map_err(|_full| Full::Session)?;
        let node = self.node.take(&self.namespace).map_err(|full| match full {
            shares::Full::All => Full::Node,
            shares::Full::Own => Full::Namespace,
        })?;
        Ok(Place { _node: node, _own: own })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_a_session_nor_a_namespace_nor_the_node_has_more_than_its_places() {
        let sockets = Sockets::default();
        let sessions = ["a", "a", "a", "b", "b", "c"].map(|namespace| sockets.of_session(namespace));
        let [first, second, third, fourth, fifth, last] = &sessions;
        let all = |session: &OfSession| -> Vec<Place> {
            (0..SESSION_MAX).map(|_| session.take().unwrap()).collect()
        };
        let mut held = vec![all(first), all(second)];
        assert_eq!(first.take().unwrap_err(), Full::Session);
        assert_eq!(third.take().unwrap_err(), Full::Namespace);
        held.extend([all(fourth), all(fifth)]);
        assert_eq!(last.take().unwrap_err(), Full::Node);
        drop(held);
        assert!(first.take().is_ok() && third.take().is_ok() && last.take().is_ok());
        assert!(sockets.0.is_empty(), "nothing is kept of namespaces that have none");
        let text = Full::Session.to_string();
        assert_eq!(text, "this session has 256 connections, which is as many as it may: end one of them");
    }
}
