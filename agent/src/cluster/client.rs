//! The clients of now, and bounds on requests.
//!
//! One client has what must not wait: the node, its lease, pods and their patches, tokens, events. Watches of objects, which are as many
//! as pods name, have another, so that what they bring does not delay the others. Both are made from the same configuration, and replaced
//! together.

use std::{fmt, sync::Arc, time::Duration};

use berth_core::cluster::certificate::Validity;
use http::{Request, Response};
use jiff::Timestamp;
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
    /// Whether there are none yet: with these, every request fails.
    pub(super) is_awaited: bool,
}

/// Of one that has no connections of its own.
impl From<Client> for Connection {
    fn from(client: Client) -> Self {
        let (wires, many) = (Wires::default(), client.clone());
        Self { client, many, wires, made_from: None, validity: None, is_awaited: false }
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
        Self { sender: Arc::new(sender), receiver }
    }

    /// Begins with none: who may ask before the first ones are given waits until [`there_are_some`](Self::there_are_some).
    pub(super) fn awaited() -> Self {
        let none = tower::service_fn(|_: Request<Body>| {
            std::future::ready(Err::<Response<Body>, _>(BoxError::from("the node has no client yet")))
        });
        Self::new(Connection { is_awaited: true, ..Connection::from(Client::new(none, "default")) })
    }

    /// Whether there are none yet.
    pub(super) fn are_awaited(&self) -> bool {
        self.receiver.borrow().is_awaited
    }

    /// Waits until there are some to ask with.
    pub async fn there_are_some(&self) {
        // The sender lives as long as this handle.
        drop(self.receiver.clone().wait_for(|now| !now.is_awaited).await);
    }

    /// The one of now, for one request or one watch.
    #[must_use]
    pub fn get(&self) -> Client {
        self.receiver.borrow().client.clone()
    }

    /// Uses these from now on. Watches begin again with them.
    pub(super) fn replace(&self, connection: Connection) {
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

    /// Until when the certificate of the clients of now holds, where they have one of their own.
    #[must_use]
    pub fn holds_until(&self) -> Option<Timestamp> {
        self.validity().map(|validity| validity.not_after)
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

/// Waits for the turn of a request. Whose turn has come does not sleep: the shortest sleep is a millisecond, also one of no time.
pub(super) async fn turn(wait: Duration) {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn whose_turn_has_come_does_not_sleep() {
        for (seconds, is_done) in [(0, true), (3600, false)] {
            let waited = turn(Duration::from_secs(seconds)).now_or_never();
            assert_eq!(waited.is_some(), is_done, "{seconds}");
        }
    }
}
