//! A lease that others write.

use std::sync::{Arc, Mutex};

use http::{Response, request::Parts};
use kube::client::Body;

use super::*;
use crate::cluster::node::fake::clients;

/// Far more than two renewals take.
const LONG: Duration = Duration::from_secs(60);

/// A server of one lease, which takes no version of it but its own.
#[derive(Default)]
struct Server {
    lease: Option<Value>,
    version: u64,
    renewals: usize,
}

impl Server {
    fn put(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(lease.clone());
        lease
    }

    fn answer(&mut self, asked: &Parts, sent: &[u8]) -> Response<Body> {
        let sent = serde_json::from_slice(sent).unwrap_or_default();
        let (code, object) = self.act(asked.method.as_str(), sent);
        Response::builder().status(code).body(Body::from(object.to_string().into_bytes())).unwrap()
    }

    fn act(&mut self, method: &str, sent: Value) -> (u16, Value) {
        let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
        match (method, self.lease.clone()) {
            ("GET", Some(lease)) => (200, lease),
            ("GET" | "PUT", None) => refusal(404, "NotFound"),
            ("PUT", Some(known)) if version(&known) != version(&sent) => refusal(409, "Conflict"),
            ("PUT", Some(_)) => {
                self.renewals += 1;
                (200, self.put(sent))
            }
            ("POST", None) => (201, self.put(sent)),
            _ => refusal(409, "AlreadyExists"),
        }
    }
}

fn refusal(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure",
        "code": code, "reason": reason});
    (code, status)
}

/// Waits until the lease was renewed twice: the first time may have been under way.
async fn is_renewed(server: &Mutex<Server>, after: &str) {
    let before = server.lock().unwrap().renewals;
    let renewed = async {
        while server.lock().unwrap().renewals < before + 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let renewed = tokio::time::timeout(LONG, renewed).await;
    renewed.unwrap_or_else(|_elapsed| panic!("it is renewed no more after {after}"));
}

#[tokio::test]
async fn a_lease_that_others_changed_or_removed_is_renewed_all_the_same() {
    let server = Arc::new(Mutex::new(Server::default()));
    let (_told, uid) = watch::channel(Some("u1".to_owned()));
    let keeping = tokio::spawn(keep(clients(&server, Server::answer), "n".to_owned(), 1, uid));
    is_renewed(&server, "it was made").await;
    {
        let mut server = server.lock().unwrap();
        let lease = server.lease.clone().unwrap();
        server.put(lease);
    }
    is_renewed(&server, "a change, or an answer that was lost").await;
    server.lock().unwrap().lease = None;
    is_renewed(&server, "its end").await;
    keeping.abort();
}
