//! The clients of now, and bounds on requests.
//!
//! One client has what must not wait: the node, its lease, pods and their patches, tokens, events. Watches of objects, which are as many
//! as pods name, are spread over further ones, each with a connection of its own (`berth_core::cluster::spread`). All of them are made
//! from the same configuration, and replaced together.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_core::cluster::spread::Spread;
use kube::Client;
use tokio::sync::watch;

use super::{ApiError, connection::Content};

/// Makes another client of the same configuration.
type Further = Box<dyn Fn() -> Result<Client, String> + Send + Sync>;

/// A client for a cluster, and what makes more of them.
pub struct Connection {
    /// The first one.
    pub(super) client: Client,
    /// Makes others, without reading files.
    pub(super) further: Further,
    /// What the files held that they are made from.
    pub(super) made_from: Option<Content>,
}

/// Of one that has no connections of its own.
impl From<Client> for Connection {
    fn from(client: Client) -> Self {
        let another = client.clone();
        Self { client, further: Box::new(move || Ok(another.clone())), made_from: None }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Connection")
    }
}

/// The clients of now: others take their place when certificates or the kubeconfig have changed. Clones share them.
#[derive(Debug, Clone)]
pub struct Clients {
    sender: Arc<watch::Sender<Arc<Shared>>>,
    receiver: watch::Receiver<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    connection: Connection,
    spread: Mutex<Spreading>,
}

/// Who carries which watches.
#[derive(Default)]
struct Spreading {
    places: Spread,
    clients: BTreeMap<usize, Client>,
}

impl fmt::Debug for Spreading {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.places.fmt(out)
    }
}

impl Clients {
    /// Begins with these.
    #[must_use]
    pub fn new(connection: impl Into<Connection>) -> Self {
        let (sender, receiver) = watch::channel(Shared::of(connection.into()));
        Self { sender: Arc::new(sender), receiver }
    }

    /// The one of now, for one request or one watch.
    #[must_use]
    pub fn get(&self) -> Client {
        self.receiver.borrow().connection.client.clone()
    }

    /// Uses these from now on. Watches begin again with them.
    pub(super) fn replace(&self, connection: Connection) {
        self.sender.send_replace(Shared::of(connection));
    }

    /// Waits until those that were taken last through this handle were replaced.
    pub(super) async fn replaced(&mut self) {
        // The sender lives as long as this handle.
        drop(self.receiver.changed().await);
    }

    /// As [`get`](Self::get), and [`replaced`](Self::replaced) waits for the next one.
    pub(super) fn take(&mut self) -> Client {
        self.receiver.borrow_and_update().connection.client.clone()
    }

    /// The same for one of many watches, which keeps its `place` as long as there are no other clients.
    pub(super) fn take_place(&mut self, place: &mut Option<Place>) -> Client {
        let shared = Arc::clone(&self.receiver.borrow_and_update());
        let known = place.take().filter(|place| Arc::ptr_eq(&place.shared, &shared));
        place.insert(known.unwrap_or_else(|| Shared::begin(shared))).client.clone()
    }

    /// What the files held that the clients of now are made from, where they are made from files.
    pub(super) fn made_from(&self) -> Option<Content> {
        self.receiver.borrow().connection.made_from
    }
}

/// The place of one watch among those that a connection carries. It is free again when this is dropped.
pub(super) struct Place {
    shared: Arc<Shared>,
    number: usize,
    client: Client,
}

impl fmt::Debug for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Place").field(&self.number).finish()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut spread = self.shared.spread();
        if spread.places.end(self.number) {
            spread.clients.remove(&self.number);
        }
    }
}

impl Shared {
    fn of(connection: Connection) -> Arc<Self> {
        Arc::new(Self { connection, spread: Mutex::default() })
    }

    fn spread(&self) -> MutexGuard<'_, Spreading> {
        self.spread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(shared: Arc<Self>) -> Place {
        let mut spread = shared.spread();
        let number = spread.places.begin();
        let known = spread.clients.get(&number).cloned();
        let client = known.unwrap_or_else(|| {
            let made = (shared.connection.further)().unwrap_or_else(|why| {
                tracing::error!(
                    why,
                    "make another client for watches: they share the first one's connection"
                );
                shared.connection.client.clone()
            });
            spread.clients.insert(number, made.clone());
            made
        });
        drop(spread);
        Place { shared, number, client }
    }
}

/// A request with a bound on its answer.
///
/// # Errors
/// As the server says, or no answer within the time.
pub async fn within<T, E>(time: Duration, request: impl Future<Output = Result<T, E>>) -> Result<T, ApiError>
where
    ApiError: From<E>,
{
    match tokio::time::timeout(time, request).await {
        Ok(answer) => answer.map_err(ApiError::from),
        Err(_elapsed) => Err(ApiError::Unanswered(format!("nothing came within {} s", time.as_secs()))),
    }
}

#[cfg(test)]
mod tests;
