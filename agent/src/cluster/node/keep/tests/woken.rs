//! What is told at once, however seldom the node is computed, and what waits for as long as the server asks.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use berth_core::{
    cluster::{
        events::Happened,
        node::{AttachedBy, Cloud, NodeIps},
    },
    spec::Quantities,
};
use futures::{StreamExt, stream};
use http::Response;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};

use super::*;
use crate::{
    cluster::{Recorder, node::fake::clients},
    config::RuntimeSettings,
};

/// How often the node is computed, and far less, which is far more than it takes to tell of a change.
const SELDOM: Duration = Duration::from_secs(3600);
const LONG: Duration = Duration::from_secs(60);
/// Events that may wait for the node loop, which takes none.
const WAITING: usize = 16;

/// A server that has no node, and takes what it is told of one.
#[derive(Default)]
struct Server {
    node: Option<Value>,
    version: u64,
    patches: Vec<String>,
    /// When it was told of the node, and how often it has too much to do for that.
    told: Vec<Instant>,
    refusals: usize,
}

/// What it asks for then.
const RETRY_AFTER: u64 = 17;

impl Server {
    fn answer(&mut self, method: &str, sent: &[u8]) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
        if method == "GET" {
            return Response::new(nothing());
        }
        self.told.push(Instant::now());
        if self.told.len() <= self.refusals {
            let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 429,
                "details": {"retryAfterSeconds": RETRY_AFTER}});
            let body = Full::<Bytes>::from(status.to_string()).boxed_unsync();
            return Response::builder().status(429).body(body).unwrap();
        }
        match method {
            "POST" => self.node = Some(serde_json::from_slice(sent).unwrap()),
            _ => self.patches.push(String::from_utf8_lossy(sent).into_owned()),
        }
        self.version += 1;
        let mut node = self.node.clone().unwrap();
        node["metadata"]["uid"] = json!("u1");
        node["metadata"]["resourceVersion"] = json!(self.version.to_string());
        Response::new(Full::<Bytes>::from(node.to_string()).boxed_unsync())
    }

    fn is_told(&self, text: &str) -> bool {
        self.patches.iter().any(|patch| patch.contains(text))
    }
}

/// The list of no nodes, and a watch that tells of none.
fn nothing() -> UnsyncBoxBody<Bytes, Infallible> {
    let mark = json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "Node",
        "metadata": {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}}});
    let line = Bytes::from(format!("{mark}\n"));
    let lines = stream::iter([Ok::<_, Infallible>(Frame::data(line))]).chain(stream::pending());
    StreamBody::new(lines).boxed_unsync()
}

fn settings() -> NodeSettings {
    NodeSettings {
        name: "n".to_owned(),
        labels: BTreeMap::new(),
        taints: Vec::new(),
        provider_id: String::new(),
        registers: true,
        cloud: Cloud::None,
        attached_by: AttachedBy::Controller,
        ips: NodeIps::Given(Ipv4Addr::LOCALHOST.into(), None),
        pods_max: 110,
        images_max: None,
        port: 0,
        update_every: SELDOM,
        report_every: SELDOM,
        lease_seconds: 40,
    }
}

fn machine() -> Machine {
    let capacity = Quantities {
        cpu_milli: Some(1000),
        memory_bytes: Some(1 << 30),
        ephemeral_storage_bytes: Some(1 << 30),
        ..Quantities::default()
    };
    Machine { allocatable: capacity.clone(), capacity, ..Machine::default() }
}

fn containerds(fault: Option<&str>) -> CurrentRuntime {
    let settings = RuntimeSettings {
        handlers: BTreeMap::new(),
        snapshotter: String::new(),
        registry_dirs: Vec::new(),
        cni_conf_dir: PathBuf::new(),
        cni_conf_template: None,
        cni_bin_dirs: Vec::new(),
    };
    CurrentRuntime { settings: Arc::new(settings), fault: fault.map(str::to_owned) }
}

/// What is heard of the machine.
struct Heard {
    network: watch::Receiver<Readiness>,
    health: watch::Receiver<Health>,
    runtime: watch::Receiver<CurrentRuntime>,
}

/// Who keeps the node at a server.
fn keeper(server: &Arc<Mutex<Server>>, recorder: Recorder, heard: Heard) -> Keeper {
    let Heard { network, health, runtime } = heard;
    Keeper {
        addresses: Addresses::of(&settings()),
        settings: settings(),
        machine: machine(),
        runtime,
        clients: clients(server, Server::answer),
        network,
        health,
        images: watch::channel(None).1,
        notes: Notes { recorder, node: "n".to_owned() },
        uid: watch::channel(None).0,
        observed: watch::channel(Vec::new()).0,
        pod_cidrs: watch::channel(Vec::new()).0,
        events: mpsc::channel(WAITING).0,
        is_told: watch::channel(false).0,
    }
}

fn version(version: &str) -> Health {
    Health { version: Some(version.to_owned()), silent_since: None }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let told = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let told = tokio::time::timeout(LONG, told).await;
    told.unwrap_or_else(|_elapsed| panic!("{what} is not told"));
}

#[tokio::test]
async fn what_pods_wait_for_is_told_at_once_however_seldom_the_node_is_computed() {
    let server: Arc<Mutex<Server>> = Arc::default();
    let (recorder, mut happened) = Recorder::new();
    let (network, wired) = watch::channel(Some(Err("there is none".to_owned())));
    let (health, answering) = watch::channel(version("v1.0.0"));
    let (runtime, current) = watch::channel(containerds(None));
    let heard = Heard { network: wired, health: answering, runtime: current };
    let keeper = keeper(&server, recorder, heard);
    let changes = async {
        until("the node", || server.lock().unwrap().node.is_some()).await;
        network.send_replace(Some(Ok(())));
        until("its network", || server.lock().unwrap().is_told("KubeletReady")).await;
        health.send_replace(version("v9.8.7"));
        until("its containerd", || server.lock().unwrap().is_told("containerd://9.8.7")).await;
        runtime.send_replace(containerds(Some("no such shim")));
        let is_fault = |told: Happened| told.message.contains("no such shim");
        until("its fault", || happened.try_recv().is_ok_and(is_fault)).await;
    };
    tokio::select! {
        () = keeper.run() => panic!("it is kept as long as the agent runs"),
        () = changes => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_the_node_is_left_alone_for_as_long_as_it_asks() {
    let server = Arc::new(Mutex::new(Server { refusals: 1, ..Server::default() }));
    let (recorder, _happened) = Recorder::new();
    let heard = Heard {
        network: watch::channel(Some(Ok(()))).1,
        health: watch::channel(version("v1.0.0")).1,
        runtime: watch::channel(containerds(None)).1,
    };
    tokio::select! {
        () = keeper(&server, recorder, heard).run() => panic!("it is kept as long as the agent runs"),
        () = until("the node", || server.lock().unwrap().node.is_some()) => {}
    }
    let server = server.lock().unwrap();
    assert_eq!((server.told[1] - server.told[0]).as_secs(), RETRY_AFTER);
}
