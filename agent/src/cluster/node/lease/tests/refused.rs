//! How long a server that refuses a lease is left alone.

use std::sync::{Arc, Mutex};

use http::{Response, request::Parts};
use kube::client::Body;

use super::*;
use crate::cluster::node::fake::clients;

/// A server that has too much to do.
struct Server {
    /// When it wants to be asked again.
    retry_after: u64,
    asked: Vec<Instant>,
}

impl Server {
    fn answer(&mut self, _asked: &Parts, _sent: &[u8]) -> Response<Body> {
        self.asked.push(Instant::now());
        let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 429,
            "details": {"retryAfterSeconds": self.retry_after}});
        Response::builder().status(429).body(Body::from(status.to_string().into_bytes())).unwrap()
    }
}

/// Longer than a renewal may wait, no server is obeyed.
#[tokio::test(start_paused = true)]
async fn a_server_is_left_alone_for_as_long_as_it_asks_but_no_renewal_is_left_out() {
    for (retry_after, pause) in [(0, 0), (7, 7), (60, 10)] {
        let server = Arc::new(Mutex::new(Server { retry_after, asked: Vec::new() }));
        let (_told, uid) = watch::channel(Some("u1".to_owned()));
        let keeping = keep(clients(&server, Server::answer), "n".to_owned(), 40, uid);
        tokio::time::timeout(Duration::from_secs(15), keeping).await.unwrap_err();
        let server = server.lock().unwrap();
        assert_eq!((server.asked[1] - server.asked[0]).as_secs(), pause, "{retry_after}");
    }
}
