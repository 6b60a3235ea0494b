//! A lease that others write.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::{Request, Response};
use kube::{Client, client::Body};

use super::*;

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

    fn answer(&mut self, method: &str, sent: Value) -> (u16, Value) {
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

fn clients(server: &Arc<Mutex<Server>>) -> Clients {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (parts, body) = request.into_parts();
            let sent = body.collect_bytes().await.unwrap();
            let sent = serde_json::from_slice(&sent).unwrap_or_default();
            let (code, object) = server.lock().unwrap().answer(parts.method.as_str(), sent);
            let body = Body::from(object.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
        }
    });
    Clients::new(Client::new(service, "default"))
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
    let keeping = tokio::spawn(keep(clients(&server), "n".to_owned(), 1, uid));
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
