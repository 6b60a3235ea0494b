//! A node that was ready, and an agent that has begun and has not heard of its network.

use std::{
    slice,
    sync::{Arc, Mutex},
};

use http::{Response, request::Parts};

use super::{
    kept::{Answer, keeper, listed, ready, until, whole},
    *,
};
use crate::cluster::node::fake::clients;

/// A server of one node.
struct Server {
    node: Value,
    version: u64,
    patches: Vec<Value>,
}

impl Server {
    fn answer(&mut self, asked: &Parts, sent: &[u8]) -> Response<Answer> {
        if asked.method == "GET" {
            return Response::new(listed(slice::from_ref(&self.node)));
        }
        self.patches.push(serde_json::from_slice(sent).unwrap());
        self.version += 1;
        self.node["metadata"]["resourceVersion"] = json!(self.version.to_string());
        whole(200, &self.node)
    }
}

/// A server whose node is ready, of the boot `b1`.
fn server() -> Arc<Mutex<Server>> {
    let said = json!({"type": "Ready", "status": "True", "reason": "KubeletReady",
        "message": "kubelet is posting ready status"});
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "uid": "u1", "resourceVersion": "1"},
        "status": {"nodeInfo": {"bootID": "b1"}, "conditions": [said]}});
    Arc::new(Mutex::new(Server { node, version: 1, patches: Vec::new() }))
}

/// It is reported meanwhile.
#[tokio::test(start_paused = true)]
async fn a_node_that_was_ready_stays_so_until_the_network_has_answered() {
    let server = server();
    let (mut keeper, kept) = keeper(clients(&server, Server::answer));
    keeper.machine.boot_id = "b1".to_owned();
    kept.network.send_replace(None);
    let patches = || server.lock().unwrap().patches.clone();
    let changes = async {
        until("that it lives", || patches().len() == 1).await;
        let told = ready(&patches()[0]);
        assert!(told["lastHeartbeatTime"].is_string() && told["status"].is_null(), "{told}");
        kept.network.send_replace(Some(Err("none".to_owned())));
        until("what its network says", || patches().len() == 2).await;
        assert_eq!(ready(&patches()[1])["status"], "False");
    };
    tokio::select! {
        () = keeper.run() => panic!("it is kept as long as the agent runs"),
        () = changes => {}
    }
}

/// Neither its pods nor its lease wait for a network.
#[tokio::test(start_paused = true)]
async fn a_node_is_known_at_once_though_nothing_is_told_of_it_yet() {
    let server = server();
    let (keeper, kept) = keeper(clients(&server, Server::answer));
    kept.network.send_replace(None);
    let is_told = || !server.lock().unwrap().patches.is_empty();
    let began = Instant::now();
    let changes = async {
        until("the node", || *kept.is_told.borrow() && kept.uid.borrow().as_deref() == Some("u1")).await;
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert!(!is_told());
        until("what there is to tell", is_told).await;
        assert!(began.elapsed() >= FIRST_WITHIN, "{:?}", began.elapsed());
    };
    tokio::select! {
        () = keeper.run() => panic!("it is kept as long as the agent runs"),
        () = changes => {}
    }
}
