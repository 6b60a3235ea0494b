//! What is told at once, however seldom the node is computed, and what waits for as long as the server asks.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use berth_core::cluster::events::Happened;
use http::{Response, request::Parts};

use super::{
    kept::{Answer, containerds, keeper, nothing, until, version, whole},
    *,
};
use crate::cluster::node::fake::clients;

/// A server that has no node, and takes what it is told of one.
#[derive(Default)]
struct Server {
    node: Option<Value>,
    version: u64,
    patches: Vec<String>,
    /// When it was told of the node, and how often it still has too much to do for that.
    told: Vec<Instant>,
    refusals: usize,
}

/// What it asks for then.
const RETRY_AFTER: u64 = 17;

impl Server {
    fn answer(&mut self, asked: &Parts, sent: &[u8]) -> Response<Answer> {
        if asked.method == "GET" {
            return Response::new(nothing());
        }
        self.told.push(Instant::now());
        if self.refusals > 0 {
            self.refusals -= 1;
            let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 429,
                "details": {"retryAfterSeconds": RETRY_AFTER}});
            return whole(429, &status);
        }
        match asked.method.as_str() {
            "POST" => self.node = Some(serde_json::from_slice(sent).unwrap()),
            _ => self.patches.push(String::from_utf8_lossy(sent).into_owned()),
        }
        self.version += 1;
        let mut node = self.node.clone().unwrap();
        node["metadata"]["uid"] = json!("u1");
        node["metadata"]["resourceVersion"] = json!(self.version.to_string());
        whole(200, &node)
    }

    fn is_told(&self, text: &str) -> bool {
        self.patches.iter().any(|patch| patch.contains(text))
    }
}

#[tokio::test]
async fn what_pods_wait_for_is_told_at_once_however_seldom_the_node_is_computed() {
    let server: Arc<Mutex<Server>> = Arc::default();
    let (keeper, mut kept) = keeper(clients(&server, Server::answer));
    let changes = async {
        until("the node", || server.lock().unwrap().node.is_some()).await;
        kept.network.send_replace(Some(Ok(())));
        until("its network", || server.lock().unwrap().is_told("KubeletReady")).await;
        kept.health.send_replace(version("v9.8.7"));
        until("its containerd", || server.lock().unwrap().is_told("containerd://9.8.7")).await;
        kept.runtime.send_replace(containerds(Some("no such shim")));
        let is_fault = |told: Happened| told.message.contains("no such shim");
        until("its fault", || kept.happened.try_recv().is_ok_and(is_fault)).await;
    };
    tokio::select! {
        () = keeper.run() => panic!("it is kept as long as the agent runs"),
        () = changes => {}
    }
}

/// What it refuses is told again; what has happened to the node is told once.
#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_the_node_is_left_alone_for_as_long_as_it_asks() {
    let server = Arc::new(Mutex::new(Server { refusals: 1, ..Server::default() }));
    let (keeper, mut kept) = keeper(clients(&server, Server::answer));
    let mut happened: BTreeMap<String, usize> = BTreeMap::new();
    let changes = async {
        until("the node", || server.lock().unwrap().node.is_some()).await;
        server.lock().unwrap().refusals = 1;
        kept.network.send_replace(Some(Ok(())));
        until("its network", || {
            let is_told = server.lock().unwrap().is_told("KubeletReady");
            while let Ok(told) = kept.happened.try_recv() {
                *happened.entry(told.reason).or_default() += 1;
            }
            is_told && happened.contains_key("NodeReady")
        })
        .await;
    };
    tokio::select! {
        () = keeper.run() => panic!("it is kept as long as the agent runs"),
        () = changes => {}
    }
    let server = server.lock().unwrap();
    let pause = |refused: usize| (server.told[refused + 1] - server.told[refused]).as_secs();
    assert_eq!((server.told.len(), pause(0), pause(2)), (4, RETRY_AFTER, RETRY_AFTER));
    let once = ["NodeHasNoDiskPressure", "NodeHasSufficientMemory", "NodeHasSufficientPID", "NodeReady"];
    assert_eq!(happened, BTreeMap::from(once.map(|reason| (reason.to_owned(), 1))));
}
