//! In which order pods and who waits with them hear of the node.

use std::{
    slice,
    sync::{Arc, Mutex},
};

use http::{Response, request::Parts};

use super::{
    kept::{Answer, keeper, listed, until, whole},
    *,
};
use crate::cluster::node::fake::clients;

/// A server of this node.
struct Server(Value);

impl Server {
    fn answer(&mut self, asked: &Parts, _: &[u8]) -> Response<Answer> {
        let node = &self.0;
        if asked.method == "GET" { Response::new(listed(slice::from_ref(node))) } else { whole(200, node) }
    }
}

/// Pods of the API server are asked for when the node is told, and admitted by what the node loop has heard of it until then.
#[tokio::test(start_paused = true)]
async fn the_node_is_told_when_the_node_loop_has_what_it_says_to_pods() {
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "uid": "u1", "resourceVersion": "1", "labels": {"zone": "a"}}});
    let expected = Event::NodeInfo(info("n", &node));
    let server = Arc::new(Mutex::new(Server(node)));
    let (keeper, mut kept) = keeper(clients(&server, Server::answer));
    let is_told = keeper.is_told.subscribe();
    // As much waits for the node loop as may.
    while keeper.events.try_send(Event::NodeInfo(NodeInfo::default())).is_ok() {}
    let changes = async {
        // By then all is heard: the clock stands still until nobody has anything to do.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!*is_told.borrow(), "the node loop has not heard of it");
        kept.node_loop.recv().await.unwrap();
        until("the node", || *is_told.borrow()).await;
        let last = std::iter::from_fn(|| kept.node_loop.try_recv().ok()).last();
        assert_eq!(last, Some(expected));
    };
    tokio::select! {
        () = keeper.run() => panic!("it is kept as long as the agent runs"),
        () = changes => {}
    }
}
