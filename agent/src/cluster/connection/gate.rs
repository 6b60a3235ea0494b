//! One connection is made at a time.
//!
//! A pool that does not know yet whether the server speaks HTTP/2 makes a connection for each request that finds none, and throws all
//! but the first away: after a break that is one for each watch. Here requests get their connections one after another. With one that
//! is there that takes no time.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::Request;
use hyper_util::client::legacy::connect::capture_connection;
use tokio::sync::Mutex;
use tower::Service;

/// The service, whose requests get their connections one after another.
#[derive(Debug, Clone)]
pub(super) struct OneByOne<S> {
    inner: S,
    gate: Arc<Mutex<()>>,
}

impl<S> OneByOne<S> {
    pub(super) fn of(inner: S) -> Self {
        Self { inner, gate: Arc::default() }
    }
}

impl<S, B> Service<Request<B>> for OneByOne<S>
where
    S: Service<Request<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let another = self.inner.clone();
        // It is this one that is ready.
        let mut inner = std::mem::replace(&mut self.inner, another);
        let gate = Arc::clone(&self.gate);
        Box::pin(async move {
            let mut connection = capture_connection(&mut request);
            // Whoever gives up lets the next one in.
            let place = gate.lock().await;
            let mut answer = pin!(inner.call(request));
            let connected = async { drop(connection.wait_for_connection_metadata().await) };
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                () = connected => drop(place),
            }
            answer.await
        })
    }
}
