//! The clients of now, and bounds on requests.
//!
//! One client has what must not wait: the node, its lease, pods and their patches, tokens, events. Watches of objects, which are as many
//! as pods name, have another, so that what they bring does not delay the others. Both are made from the same configuration, and replaced
//! together.

use std::{fmt, sync::Arc, time::Duration};

use berth_core::cluster::certificate::Validity;
use http::Request;
use kube::{Client, client::Body};
use tokio::sync::watch;
use tower::BoxError;

use super::{
    ApiError,
    connection::{Content, Wires},
};

/// Clients for a cluster.
pub struct Connection {
    /// The one of what must not wait.
    pub(super) client: Client,
    /// The one of many watches.
    pub(super) many: Client,
    /// Their connections.
    pub(super) wires: Wires,
    /// What the files held that they are made from.
    pub(super) made_from: Option<Content>,
    /// How long their certificate holds, where they have one of their own.
    pub(super) validity: Option<Validity>,
}

/// Of one that has no connections of its own.
impl From<Client> for Connection {
    fn from(client: Client) -> Self {
        Self { many: client.clone(), client, wires: Wires::default(), made_from: None, validity: None }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Connection")
    }
}

/// The clients of now: others take their place when certificates or the kubeconfig have changed. Clones share them.
#[derive(Clone)]
pub struct Clients {
    sender: Arc<watch::Sender<Connection>>,
    receiver: watch::Receiver<Connection>,
    /// Where the client goes that requests wait for, of those that begin with none.
    awaited: Option<watch::Sender<Option<Client>>>,
}

impl fmt::Debug for Clients {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Clients")
    }
}

impl Clients {
    /// Begins with these.
    #[must_use]
    pub fn new(connection: impl Into<Connection>) -> Self {
        let (sender, receiver) = watch::channel(connection.into());
        Self { sender: Arc::new(sender), receiver, awaited: None }
    }

    /// Begins with none: requests wait for those that are given first, and go to them.
    pub(super) fn awaited() -> Self {
        let (awaited, coming) = watch::channel::<Option<Client>>(None);
        let service = tower::service_fn(move |request: Request<Body>| {
            let mut coming = coming.clone();
            async move {
                let client = coming.wait_for(Option::is_some).await?.clone();
                let client = client.ok_or("there is no client")?;
                Ok::<_, BoxError>(client.send(request).await?)
            }
        });
        Self { awaited: Some(awaited), ..Self::new(Client::new(service, "default")) }
    }

    /// Whether requests wait.
    pub(super) fn are_awaited(&self) -> bool {
        self.awaited.as_ref().is_some_and(|awaited| awaited.borrow().is_none())
    }

    /// Waits until there are some to ask with.
    pub async fn there_are_some(&self) {
        if let Some(awaited) = &self.awaited {
            // The sender lives as long as this handle.
            drop(awaited.subscribe().wait_for(Option::is_some).await);
        }
    }

    /// The one of now, for one request or one watch.
    #[must_use]
    pub fn get(&self) -> Client {
        self.receiver.borrow().client.clone()
    }

    /// Uses these from now on. Watches begin again with them.
    pub(super) fn replace(&self, connection: Connection) {
        if let Some(awaited) = &self.awaited {
            awaited.send_replace(Some(connection.client.clone()));
        }
        self.sender.send_replace(connection);
    }

    /// Cuts the connections on which nothing has come for so long, though something was sent, and says how many: whatever is on them ends
    /// with an error, and is asked again over others.
    pub(super) fn cut_silent(&self, least: Duration) -> usize {
        self.receiver.borrow().wires.cut_silent(least)
    }

    /// Waits until those that were taken last through this handle were replaced.
    pub(super) async fn replaced(&mut self) {
        // The sender lives as long as this handle.
        drop(self.receiver.changed().await);
    }

    /// As [`get`](Self::get), and [`replaced`](Self::replaced) waits for the next one.
    pub(super) fn take(&mut self) -> Client {
        self.receiver.borrow_and_update().client.clone()
    }

    /// The same for one of many watches.
    pub(super) fn take_many(&mut self) -> Client {
        self.receiver.borrow_and_update().many.clone()
    }

    /// What the files held that the clients of now are made from, where they are made from files.
    pub(super) fn made_from(&self) -> Option<Content> {
        self.receiver.borrow().made_from
    }

    /// How long the certificate holds that the clients of now use, where they have one of their own.
    pub(super) fn validity(&self) -> Option<Validity> {
        self.receiver.borrow().validity
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
