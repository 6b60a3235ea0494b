//! An API server that knows tokens and who may what.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
};

use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::cluster::Clients;

/// The server. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Api(Arc<Mutex<State>>);

#[derive(Default)]
pub(super) struct State {
    /// Specs of all reviews.
    pub(super) tokens: Vec<Value>,
    pub(super) access: Vec<Value>,
    /// Has it answer nothing before there is a permit.
    pub(super) held_by: Option<Arc<Semaphore>>,
    /// Does it say no more of a token that is nobody's.
    pub(super) refuses_without_a_word: bool,
    /// What it answers with instead of an answer.
    pub(super) fails_with: Option<u16>,
}

impl Api {
    pub(super) fn clients(&self) -> Clients {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let path = request.uri().path().to_owned();
                let sent = request.into_body().collect().await.unwrap().to_bytes();
                let held_by = api.state().held_by.clone();
                let (status, answer) = api.answer(&path, &serde_json::from_slice(&sent).unwrap());
                if let Some(held_by) = held_by {
                    held_by.acquire().await.unwrap().forget();
                }
                let answer = Full::new(Bytes::from(answer.to_string()));
                Ok::<_, Infallible>(Response::builder().status(status).body(answer).unwrap())
            }
        });
        Clients::new(Client::new(service, "default"))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn answer(&self, path: &str, review: &Value) -> (u16, Value) {
        let mut state = self.state();
        let spec = review["spec"].clone();
        let mut answer = review.clone();
        answer["status"] = match path {
            "/apis/authentication.k8s.io/v1/tokenreviews" => {
                state.tokens.push(spec.clone());
                token(spec["token"].as_str().unwrap(), state.refuses_without_a_word)
            }
            "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
                state.access.push(spec.clone());
                access(&spec)
            }
            other => panic!("{other} is asked for"),
        };
        match state.fails_with {
            Some(code) => {
                (code, json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code }))
            }
            None => (201, answer),
        }
    }
}

/// `good-<user>` is the token of a user.
fn token(token: &str, is_silent: bool) -> Value {
    match token.strip_prefix("good-") {
        Some(user) => json!({
            "authenticated": true,
            "user": {
                "username": user, "uid": "u-1", "groups": ["testers"], "extra": { "example.com/a": ["b"] },
            },
            "audiences": ["https://kubernetes.default.svc"],
        }),
        None if is_silent || token == "unknown" => json!({ "authenticated": false }),
        None => json!({ "authenticated": false, "error": "invalid bearer token" }),
    }
}

/// `admin` may everything on this node, `reader` read metrics of it, `old` what goes by the name of `proxy`, `elsewhere` everything on another one, `confused` is told both.
fn access(spec: &Value) -> Value {
    let asked = &spec["resourceAttributes"];
    let is_here = asked["name"] == "node-1" && asked["resource"] == "nodes";
    let (allowed, denied) = match spec["user"].as_str().unwrap() {
        "admin" => (is_here, false),
        "reader" => (is_here && asked["subresource"] == "metrics" && asked["verb"] == "get", false),
        "old" => (is_here && asked["subresource"] == "proxy", false),
        "elsewhere" => (asked["name"] == "node-2", false),
        "confused" => (true, true),
        _ => (false, false),
    };
    json!({ "allowed": allowed, "denied": denied, "reason": "so it is" })
}
