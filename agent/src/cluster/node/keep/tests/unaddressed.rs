//! A new node whose kernel does not tell the addresses of its interfaces.

use std::sync::{Arc, Mutex};

use http::{Response, request::Parts};
use tokio::sync::oneshot;

use super::{
    kept::{Answer, keeper, nothing, settings, until, whole},
    *,
};
use crate::cluster::node::fake::clients;

/// A server that has no node, and counts how often it is told of a new one.
#[derive(Default)]
struct Server {
    posts: usize,
}

impl Server {
    fn answer(&mut self, asked: &Parts, sent: &[u8]) -> Response<Answer> {
        if asked.method == "GET" {
            return Response::new(nothing());
        }
        self.posts += usize::from(asked.method == "POST");
        let mut node: Value = serde_json::from_slice(sent).unwrap();
        node["metadata"]["uid"] = json!("u1");
        node["metadata"]["resourceVersion"] = json!("1");
        whole(200, &node)
    }
}

/// Whoever waits for a new node reaches it by its addresses.
#[tokio::test(start_paused = true)]
async fn a_new_node_is_made_when_its_addresses_are_known() {
    let server: Arc<Mutex<Server>> = Arc::default();
    let (mut keeper, kept) = keeper(clients(&server, Server::answer));
    let (tell, kernel) = oneshot::channel();
    keeper.addresses = Addresses::held(&settings(), kernel);
    let posts = || server.lock().unwrap().posts;
    let changes = async {
        until("that there is none", || *kept.is_told.borrow()).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(posts(), 0, "its addresses are not known");
        tell.send(()).unwrap();
        let told = Instant::now();
        until("that it is made", || posts() == 1).await;
        assert!(told.elapsed() <= UNTOLD_AGAIN_AFTER * 2, "{:?}", told.elapsed());
    };
    tokio::select! {
        () = keeper.run() => panic!("it is kept as long as the agent runs"),
        () = changes => {}
    }
}
