//! A node of which an answer says that it is not there.

use std::sync::{Arc, Mutex};

use http::{Response, request::Parts};

use super::{
    kept::{Answer, keeper, nothing, refusal, until, version, whole},
    *,
};
use crate::cluster::node::fake::clients;

/// A server of one node, and somebody between whose list does not have it.
struct Server {
    node: Option<Value>,
    version: u64,
    /// Patches that are still to be answered as if there were no node.
    lost: usize,
    /// How often it was to be made.
    posts: usize,
    patches: Vec<String>,
}

impl Server {
    fn answer(&mut self, asked: &Parts, sent: &[u8]) -> Response<Answer> {
        let is_list = asked.uri.path().ends_with("/nodes");
        match (asked.method.as_str(), self.node.is_some()) {
            ("GET", _) if is_list => Response::new(nothing()),
            ("GET", true) => self.told(),
            ("POST", is_there) => {
                self.posts += 1;
                if is_there {
                    return refusal(409, "AlreadyExists");
                }
                let mut node: Value = serde_json::from_slice(sent).unwrap();
                node["metadata"]["uid"] = json!(format!("u{}", self.posts));
                self.node = Some(node);
                self.told()
            }
            (_, false) => refusal(404, "NotFound"),
            _ if self.lost > 0 => {
                self.lost -= 1;
                refusal(404, "NotFound")
            }
            _ => {
                self.patches.push(String::from_utf8_lossy(sent).into_owned());
                self.told()
            }
        }
    }

    fn told(&mut self) -> Response<Answer> {
        self.version += 1;
        let mut node = self.node.clone().unwrap();
        node["metadata"]["resourceVersion"] = json!(self.version.to_string());
        whole(200, &node)
    }
}

/// Whether a patch says that nothing is left of what others have put on the node.
fn forgets(patch: &str) -> bool {
    patch.contains("\"example.com/gpu\":\"0\"")
}

/// Neither its lease nor what others have put on it hangs on one answer.
#[tokio::test]
async fn a_node_is_gone_when_it_is_not_found_itself_and_the_same_one_is_taken_over_once() {
    let devices = json!({ "example.com/gpu": "2" });
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u1"},
        "status": {"capacity": devices, "allocatable": devices}});
    let server = Server { node: Some(node), version: 0, lost: 0, posts: 0, patches: Vec::new() };
    let server = Arc::new(Mutex::new(server));
    let (keeper, mut kept) = keeper(clients(&server, Server::answer));
    let patches = || server.lock().unwrap().patches.clone();
    let posts = || server.lock().unwrap().posts;
    let changes = async {
        // It cannot be made, since it is there.
        until("that it is taken over", || patches().len() == 1).await;
        assert!(forgets(&patches()[0]), "{:?}", patches());
        until("its UID", || kept.uid.borrow_and_update().as_deref() == Some("u1")).await;

        server.lock().unwrap().lost = 2;
        kept.network.send_replace(Some(Ok(())));
        until("its network", || patches().len() == 2).await;
        assert!(patches()[1].contains("KubeletReady") && !forgets(&patches()[1]), "{:?}", patches());
        assert!(!kept.uid.has_changed().unwrap(), "its lease was left alone");
        assert_eq!(posts(), 1);

        server.lock().unwrap().node = None;
        kept.health.send_replace(version("v9.8.7"));
        until("that it is made", || kept.uid.borrow().as_deref() == Some("u2")).await;
        assert_eq!(posts(), 2);
    };
    tokio::select! {
        () = keeper.run() => panic!("it is kept as long as the agent runs"),
        () = changes => {}
    }
}
