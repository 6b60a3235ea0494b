//! The client of now, and bounds on requests.

use std::{sync::Arc, time::Duration};

use kube::Client;
use tokio::sync::watch;

use super::ApiError;

/// The client of now: another one takes its place when certificates or the kubeconfig have changed. Clones share it.
#[derive(Debug, Clone)]
pub struct Clients {
    sender: Arc<watch::Sender<Shared>>,
    receiver: watch::Receiver<Shared>,
}

/// A client has nothing to show.
#[derive(Clone)]
struct Shared(Client);

impl std::fmt::Debug for Shared {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Client")
    }
}

impl Clients {
    /// Begins with this one.
    #[must_use]
    pub fn new(client: Client) -> Self {
        let (sender, receiver) = watch::channel(Shared(client));
        Self { sender: Arc::new(sender), receiver }
    }

    /// The one of now, for one request or one watch.
    #[must_use]
    pub fn get(&self) -> Client {
        self.receiver.borrow().0.clone()
    }

    /// Uses this one from now on. Watches begin again with it.
    pub fn replace(&self, client: Client) {
        self.sender.send_replace(Shared(client));
    }

    /// Waits until the one that [`get`](Self::get) gave last through this handle was replaced.
    pub(super) async fn replaced(&mut self) {
        // The sender lives as long as this handle.
        drop(self.receiver.changed().await);
    }

    /// As [`get`](Self::get), and [`replaced`](Self::replaced) waits for the next one.
    pub(super) fn take(&mut self) -> Client {
        self.receiver.borrow_and_update().0.clone()
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
