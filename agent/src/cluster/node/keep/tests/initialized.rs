//! A node whose CSINode comes after it.

use std::sync::{Arc, Mutex};

use http::{Response, request::Parts};

use super::{
    kept::{Answer, keeper, nothing, ready, refusal, until, version, whole},
    *,
};
use crate::cluster::node::fake::clients;

/// What is said before it is there.
const AT_FIRST: &str = "CSINode is not yet initialized";

/// A server that has no node, and takes what it is told of one.
#[derive(Default)]
struct Server {
    node: Option<Value>,
    version: u64,
    posts: Vec<Value>,
    patches: Vec<Value>,
}

impl Server {
    fn answer(&mut self, asked: &Parts, sent: &[u8]) -> Response<Answer> {
        let is_list = asked.uri.path().ends_with("/nodes");
        match (asked.method.as_str(), self.node.is_some()) {
            ("GET", _) if is_list => return Response::new(nothing()),
            ("POST", _) => {
                let mut node: Value = serde_json::from_slice(sent).unwrap();
                self.posts.push(node.clone());
                node["metadata"]["uid"] = json!(format!("u{}", self.posts.len()));
                self.node = Some(node);
            }
            (_, false) => return refusal(404, "NotFound"),
            ("GET", true) => {}
            _ => self.patches.push(serde_json::from_slice(sent).unwrap()),
        }
        self.version += 1;
        let mut node = self.node.clone().unwrap();
        node["metadata"]["resourceVersion"] = json!(self.version.to_string());
        whole(200, &node)
    }
}

#[tokio::test]
async fn a_node_is_ready_with_the_csi_node_of_its_own_object() {
    let server: Arc<Mutex<Server>> = Arc::default();
    let (keeper, mut kept) = keeper(clients(&server, Server::answer));
    kept.network.send_replace(Some(Ok(())));
    kept.csi_node.send_replace(CsiNode::Unasked);
    let there = |owner: &str| CsiNode::There { owner: owner.to_owned() };
    let posts = || server.lock().unwrap().posts.clone();
    let patches = || server.lock().unwrap().patches.clone();
    let changes = async {
        until("that it is made", || kept.made.borrow_and_update().as_deref() == Some("u1")).await;
        assert_eq!(ready(&posts()[0])["message"], AT_FIRST);
        kept.csi_node.send_replace(there("u0"));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(patches().is_empty(), "it is another's");
        kept.csi_node.send_replace(there("u1"));
        until("that it is ready", || patches().len() == 1).await;
        assert_eq!(ready(&patches()[0])["status"], "True");

        server.lock().unwrap().node = None;
        kept.health.send_replace(version("v9.8.7"));
        until("that it is made again", || kept.made.borrow_and_update().as_deref() == Some("u2")).await;
        assert_eq!(ready(&posts()[1])["message"], AT_FIRST);
    };
    tokio::select! {
        () = keeper.run() => panic!("it is kept as long as the agent runs"),
        () = changes => {}
    }
}
