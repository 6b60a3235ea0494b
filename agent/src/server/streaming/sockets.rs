//! How many connections to ports of pods there may be at once.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections of the node: each has two buffers of 16 KiB, a descriptor, and what the kernel holds.
const NODE_MAX: usize = 1024;

/// Connections of one session. Browsers open dozens at once.
const SESSION_MAX: usize = 256;

/// The places of the node. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Sockets(Arc<Semaphore>);

/// The places of one session, which are of the node as well. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct OfSession {
    node: Arc<Semaphore>,
    own: Arc<Semaphore>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _node: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    /// The session has all of its own.
    #[error("this session has {SESSION_MAX} connections, which is as many as it may: end one of them")]
    Session,
    /// All sessions together have those of the node.
    #[error("the node forwards {NODE_MAX} connections, which is as many as it may: end one of them")]
    Node,
}

impl Default for Sockets {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(NODE_MAX)))
    }
}

impl Sockets {
    /// The places of a further session.
    pub(super) fn of_session(&self) -> OfSession {
        OfSession { node: Arc::clone(&self.0), own: Arc::new(Semaphore::new(SESSION_MAX)) }
    }
}

impl OfSession {
    /// Takes a place.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn take(&self) -> Result<Place, Full> {
        let own = Arc::clone(&self.own).try_acquire_owned().map_err(|_full| Full::Session)?;
        let node = Arc::clone(&self.node).try_acquire_owned().map_err(|_full| Full::Node)?;
        Ok(Place { _node: node, _own: own })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_a_session_nor_the_node_has_more_than_its_places() {
        let sockets = Sockets::default();
        let sessions: Vec<OfSession> =
            (0..=NODE_MAX / SESSION_MAX).map(|_number| sockets.of_session()).collect();
        let (last, others) = sessions.split_last().unwrap();
        let held: Vec<_> = others
            .iter()
            .flat_map(|session| std::iter::repeat_with(|| session.take()).take(SESSION_MAX))
            .collect();
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(others[0].take().unwrap_err(), Full::Session);
        assert_eq!(last.take().unwrap_err(), Full::Node);
        drop(held);
        assert!(others[0].take().is_ok() && last.take().is_ok());
        let text = Full::Session.to_string();
        assert_eq!(text, "this session has 256 connections, which is as many as it may: end one of them");
    }
}
