//! An API server for tests, in this process: objects that can be made, changed and removed, watches on them, and tokens.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::StreamExt;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::cluster::Clients;

/// The server. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Fake(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    version: u64,
    /// By collection, such as `/api/v1/namespaces/a/secrets`, and name.
    objects: BTreeMap<(String, String), Value>,
    watches: Vec<Watch>,
    begun: usize,
    tokens: usize,
    token_requests: Vec<Value>,
    tokens_live: Option<i64>,
    is_down: bool,
    ignores_selectors: bool,
    /// Watches that are refused yet.
    refusals: usize,
    /// Requests since it began to hold answers back, and after how many it gives them.
    asked: usize,
    held_until: usize,
}

struct Watch {
    collection: String,
    name: Option<String>,
    sender: mpsc::Sender<Bytes>,
}

type Answer = UnsyncBoxBody<Bytes, Infallible>;

impl Fake {
    pub(crate) fn clients(&self) -> Clients {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Clients::new(Client::new(service, "default"))
    }

    /// Makes or changes an object; `fields` are beside its metadata.
    pub(crate) fn put(&self, collection: &str, name: &str, fields: Value) {
        let namespace = collection.split('/').nth_back(1).unwrap().to_owned();
        self.put_in(collection, &namespace, name, fields);
    }

    /// The same in a collection of all namespaces.
    pub(super) fn put_in(&self, collection: &str, namespace: &str, name: &str, fields: Value) {
        let mut state = self.0.lock().unwrap();
        state.version += 1;
        let mut object = fields;
        object["metadata"] = json!({
            "name": name, "namespace": namespace, "resourceVersion": state.version.to_string(), "uid": name,
        });
        let key = (collection.to_owned(), name.to_owned());
        let kind = if state.objects.insert(key, object.clone()).is_some() { "MODIFIED" } else { "ADDED" };
        state.tell(collection, name, kind, &object);
    }

    pub(super) fn remove(&self, collection: &str, name: &str) {
        let mut state = self.0.lock().unwrap();
        state.version += 1;
        let mut object = state.objects.remove(&(collection.to_owned(), name.to_owned())).unwrap();
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        state.tell(collection, name, "DELETED", &object);
    }

    /// From now on nothing is answered but with an error, and watches end.
    pub(super) fn set_down(&self, is_down: bool) {
        let mut state = self.0.lock().unwrap();
        state.is_down = is_down;
        state.watches.clear();
    }

    /// Tokens live for so many seconds from now on, whatever is asked for (`--service-account-max-token-expiration`).
    pub(super) fn tokens_live(&self, seconds: i64) {
        self.0.lock().unwrap().tokens_live = Some(seconds);
    }

    /// So many watches are refused from now on: the server does not know yet what this node may read.
    pub(super) fn refuse(&self, watches: usize) {
        self.0.lock().unwrap().refusals = watches;
    }

    /// From now on watches tell of all objects of a collection, whatever they asked for.
    pub(super) fn ignore_selectors(&self) {
        self.0.lock().unwrap().ignores_selectors = true;
    }

    /// From now on nothing is answered before so many requests have come.
    pub(super) fn hold_until(&self, requests: usize) {
        let mut state = self.0.lock().unwrap();
        (state.asked, state.held_until) = (0, requests);
    }

    /// How many have come since.
    pub(super) fn asked(&self) -> usize {
        self.0.lock().unwrap().asked
    }

    fn is_held(&self) -> bool {
        let state = self.0.lock().unwrap();
        state.asked < state.held_until
    }

    /// How many watches are open.
    pub(super) fn watches(&self) -> usize {
        let mut state = self.0.lock().unwrap();
        state.watches.retain(|watch| !watch.sender.is_closed());
        state.watches.len()
    }

    /// How many were ever begun.
    pub(super) fn begun(&self) -> usize {
        self.0.lock().unwrap().begun
    }

    /// What was asked for of tokens.
    pub(super) fn token_requests(&self) -> Vec<Value> {
        self.0.lock().unwrap().token_requests.clone()
    }

    async fn answer(&self, request: Request<Body>) -> Response<Answer> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        self.0.lock().unwrap().asked += 1;
        while self.is_held() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if self.0.lock().unwrap().is_down {
            return status(503, "down");
        }
        if path.ends_with("/token") {
            let body = body.collect().await.unwrap().to_bytes();
            return self.token(&serde_json::from_slice(&body).unwrap());
        }
        let name = query.split('&').find_map(|part| part.strip_prefix("fieldSelector=metadata.name%3D"));
        if query.contains("watch=true") {
            assert!(
                query.contains("sendInitialEvents=true") || query.contains("resourceVersion="),
                "{query}"
            );
            return self.watch(&path, name, query.contains("sendInitialEvents=true"));
        }
        match self.found(&path) {
            Some(object) => whole(200, &object),
            None => status(404, "no such path"),
        }
    }

    /// An object by its path.
    fn found(&self, path: &str) -> Option<Value> {
        let (collection, name) = path.rsplit_once('/')?;
        self.0.lock().unwrap().objects.get(&(collection.to_owned(), name.to_owned())).cloned()
    }

    fn token(&self, asked: &Value) -> Response<Answer> {
        let mut state = self.0.lock().unwrap();
        state.tokens += 1;
        state.token_requests.push(asked.clone());
        let mut answer = asked.clone();
        answer["metadata"] = json!({});
        if let Some(seconds) = state.tokens_live {
            answer["spec"]["expirationSeconds"] = json!(seconds);
        }
        answer["status"] = json!({"token": format!("token-{}", state.tokens), "expirationTimestamp": "2001-01-01T00:00:00Z"});
        whole(201, &answer)
    }

    fn watch(&self, collection: &str, name: Option<&str>, is_initial: bool) -> Response<Answer> {
        let mut state = self.0.lock().unwrap();
        if let Some(left) = state.refusals.checked_sub(1) {
            state.refusals = left;
            return status(403, "no relationship found between node and this object");
        }
        let name = name.filter(|_| !state.ignores_selectors);
        let (sender, mut events) = mpsc::channel(1024);
        state.begun += 1;
        if is_initial {
            for ((of, called), object) in &state.objects {
                if of == collection && name.is_none_or(|name| name == called) {
                    sender.try_send(line(collection, "ADDED", object)).unwrap();
                }
            }
            let version = state.version.to_string();
            let mark = json!({"kind": "x", "apiVersion": "v1", "metadata": {
                "resourceVersion": version, "annotations": {"k8s.io/initial-events-end": "true"}}});
            sender.try_send(line(collection, "BOOKMARK", &mark)).unwrap();
        }
        let name = name.map(str::to_owned);
        state.watches.push(Watch { collection: collection.to_owned(), name, sender });
        let stream = futures::stream::poll_fn(move |context| events.poll_recv(context));
        let body = StreamBody::new(stream.map(|bytes| Ok(Frame::data(bytes))));
        Response::builder().status(200).body(body.boxed_unsync()).unwrap()
    }
}

impl State {
    fn tell(&mut self, collection: &str, name: &str, kind: &str, object: &Value) {
        for watch in &self.watches {
            if watch.collection == collection && watch.name.as_deref().is_none_or(|of| of == name) {
                drop(watch.sender.try_send(line(collection, kind, object)));
            }
        }
    }
}

fn line(collection: &str, kind: &str, object: &Value) -> Bytes {
    let (version, of) = match collection.rsplit('/').next().unwrap() {
        "configmaps" => ("v1", "ConfigMap"),
        "secrets" => ("v1", "Secret"),
        "services" => ("v1", "Service"),
        "runtimeclasses" => ("node.k8s.io/v1", "RuntimeClass"),
        other => panic!("{other}"),
    };
    let mut object = object.clone();
    object["kind"] = json!(of);
    object["apiVersion"] = json!(version);
    let mut line = serde_json::to_vec(&json!({"type": kind, "object": object})).unwrap();
    line.push(b'\n');
    line.into()
}

fn whole(code: u16, value: &Value) -> Response<Answer> {
    let body = Body::from(serde_json::to_vec(value).unwrap());
    let body = body.map_err(|_never| -> Infallible { unreachable!() }).boxed_unsync();
    Response::builder().status(code).body(body).unwrap()
}

fn status(code: u16, message: &str) -> Response<Answer> {
    whole(
        code,
        &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message,
        "reason": "Unavailable", "code": code}),
    )
}
