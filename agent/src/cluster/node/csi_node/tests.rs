use std::sync::{Arc, Mutex};

use http::{Response, request::Parts};
use kube::client::Body;
use serde_json::json;
use tokio::task::JoinHandle;

use super::*;
use crate::cluster::node::fake::clients;

/// Far longer than the pauses of some failures in a row.
const LONG: Duration = Duration::from_secs(600);

/// A server of one CSINode.
#[derive(Default)]
struct Server {
    kept: Option<Value>,
    /// How often it was written.
    version: u64,
    /// The methods of all requests.
    asked: Vec<String>,
    /// A method that it refuses, and how.
    refused: Option<(&'static str, u16)>,
}

impl Server {
    fn answer(&mut self, asked: &Parts, sent: &[u8]) -> Response<Body> {
        let sent = serde_json::from_slice(sent).unwrap_or_default();
        let method = asked.method.as_str();
        self.asked.push(method.to_owned());
        let (code, object) = self.act(method, sent);
        Response::builder().status(code).body(Body::from(object.to_string().into_bytes())).unwrap()
    }

    fn act(&mut self, method: &str, sent: Value) -> (u16, Value) {
        if let Some((_, code)) = self.refused.filter(|(refused, _)| *refused == method) {
            return refusal(code, "Refused");
        }
        match (method, self.kept.clone()) {
            ("GET", Some(kept)) => (200, kept),
            // As a server that does not know the kind.
            ("GET", None) => refusal(404, ""),
            ("POST", None) | ("PUT", Some(_)) => (200, self.put(sent)),
            ("POST", Some(_)) => refusal(409, "AlreadyExists"),
            ("DELETE", Some(kept)) if sent["preconditions"]["uid"] == kept["metadata"]["uid"] => {
                self.kept = None;
                (200, kept)
            }
            ("DELETE", Some(_)) => refusal(409, "Conflict"),
            _ => refusal(404, "NotFound"),
        }
    }

    fn put(&mut self, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["uid"] = json!(format!("c{}", self.version));
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.kept = Some(object.clone());
        object
    }
}

fn refusal(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure",
        "code": code, "reason": reason, "message": "it is refused"});
    (code, status)
}

/// The CSINode of the node object of this UID, with a driver.
fn of(uid: &str) -> Value {
    let Ask::Make(mut object) = first(Owner { node: "n", uid }, Origin::Made) else { panic!("none is made") };
    object["metadata"]["uid"] = json!("c0");
    object["spec"]["drivers"] = json!([{ "name": "csi.example.com", "nodeID": "x" }]);
    object
}

/// What the task is told, and what is seen of it.
struct Around {
    uid: watch::Sender<Option<String>>,
    made: watch::Sender<Option<String>>,
    state: watch::Receiver<CsiNode>,
    running: JoinHandle<()>,
}

impl Around {
    fn new(server: &Arc<Mutex<Server>>) -> Self {
        let (uid, known) = watch::channel(None);
        let (made, made_uid) = watch::channel(None);
        let (sender, state) = watch::channel(CsiNode::default());
        let initializer = Initializer {
            clients: clients(server, Server::answer),
            node: "n".to_owned(),
            made: made_uid,
            state: sender,
        };
        Self { uid, made, state, running: tokio::spawn(initializer.run(known)) }
    }

    /// Tells of a Node object, which the agent has made or not.
    fn tell(&self, uid: &str, origin: Origin) {
        let made = (origin == Origin::Made).then(|| uid.to_owned());
        self.made.send_replace(made);
        self.uid.send_replace(Some(uid.to_owned()));
    }

    /// Waits until the state is so.
    async fn until(&mut self, is_so: impl Fn(&CsiNode) -> bool) {
        let told = tokio::time::timeout(LONG, self.state.wait_for(is_so)).await;
        drop(told.unwrap().unwrap());
    }
}

impl Drop for Around {
    fn drop(&mut self) {
        self.running.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_is_asked_than_it_takes_and_drivers_of_the_node_are_kept() {
    let bare = || {
        let mut object = of("u1");
        object["metadata"]["annotations"] = json!({});
        object
    };
    for (kept, origin, asked, has_drivers) in [
        (None, Origin::Made, &["POST"][..], false),
        (None, Origin::Found, &["GET", "POST"], false),
        (Some(of("u1")), Origin::Found, &["GET"], true),
        (Some(bare()), Origin::Found, &["GET", "PUT"], true),
        (Some(of("u0")), Origin::Found, &["GET", "DELETE", "POST"], false),
        (Some(of("u0")), Origin::Made, &["POST", "GET", "DELETE", "POST"], false),
    ] {
        let server = Arc::new(Mutex::new(Server { kept, ..Server::default() }));
        let mut around = Around::new(&server);
        around.tell("u1", origin);
        around.until(|state| state.is_there("u1")).await;
        let server = server.lock().unwrap();
        assert_eq!(server.asked, asked);
        let kept = server.kept.as_ref().unwrap();
        assert_eq!(kept["metadata"]["ownerReferences"][0]["uid"], "u1", "{asked:?}");
        assert_eq!(kept["spec"]["drivers"][0].is_object(), has_drivers, "{asked:?}");
        assert!(kept["metadata"]["annotations"].as_object().is_some_and(|all| all.len() == 1), "{kept}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_is_asked_again_and_what_it_refuses_is_told() {
    for (refused, code, told) in
        [("GET", 403, None), ("POST", 403, Some("it is refused")), ("POST", 404, Some("it is refused"))]
    {
        let refusing = Server { refused: Some((refused, code)), ..Server::default() };
        let server = Arc::new(Mutex::new(refusing));
        let mut around = Around::new(&server);
        around.tell("u1", Origin::Found);
        while server.lock().unwrap().asked.len() < 20 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        {
            let state = around.state.borrow();
            let CsiNode::Asked { owner, fault, .. } = &*state else { panic!("{:?}", *state) };
            assert_eq!((owner.as_str(), fault.as_deref()), ("u1", told), "{refused} {code}");
        }
        server.lock().unwrap().refused = None;
        around.until(|state| state.is_there("u1")).await;
    }
}

/// The node is not told to have none before a server that comes back could say so.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_has_its_time_when_it_is_back() {
    for (code, is_anew) in [(503, true), (403, false)] {
        let refusing = Server { refused: Some(("GET", code)), ..Server::default() };
        let server = Arc::new(Mutex::new(refusing));
        let mut around = Around::new(&server);
        let since = |state: &CsiNode| match state {
            CsiNode::Asked { since, .. } => Some(*since),
            CsiNode::Unasked | CsiNode::There { .. } => None,
        };
        around.tell("u1", Origin::Found);
        around.until(|state| since(state).is_some()).await;
        let first = since(&around.state.borrow_and_update());
        while server.lock().unwrap().asked.len() < 5 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(since(&around.state.borrow()) > first, is_anew, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_node_object_has_one_of_its_own_and_is_seen_to_once() {
    let server: Arc<Mutex<Server>> = Arc::default();
    let mut around = Around::new(&server);
    let asked = || server.lock().unwrap().asked.len();
    around.tell("u1", Origin::Made);
    around.until(|state| state.is_there("u1")).await;
    // Somebody between says that there is none, and that there is.
    around.uid.send_replace(None);
    tokio::time::sleep(LIMIT).await;
    around.tell("u1", Origin::Found);
    tokio::time::sleep(LIMIT).await;
    assert_eq!(asked(), 1);
    around.tell("u2", Origin::Made);
    around.until(|state| state.is_there("u2")).await;
    let server = server.lock().unwrap();
    assert_eq!(server.kept.as_ref().unwrap()["metadata"]["ownerReferences"][0]["uid"], "u2");
    assert_eq!(server.asked, ["POST", "POST", "GET", "DELETE", "POST"]);
}
