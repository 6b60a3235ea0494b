//! A node that is kept, and what is around it.

use std::{collections::BTreeMap, convert::Infallible, net::Ipv4Addr, path::PathBuf, sync::Arc};

use berth_core::{
    cluster::{
        events::Happened,
        node::{AttachedBy, Cloud, NodeIps},
    },
    config::CgroupDriver,
    spec::Quantities,
};
use futures::{StreamExt, stream};
use http::Response;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};

use super::*;
use crate::{
    cluster::Recorder, config::RuntimeSettings, metrics::Metrics, runtime::probe::OciCommand, view::View,
};

/// How often the node is computed, and far less, which is far more than it takes to tell of a change.
const SELDOM: Duration = Duration::from_secs(3600);
const LONG: Duration = Duration::from_secs(60);
/// Events that may wait for the node loop, which takes none of itself.
const WAITING: usize = 16;

/// A body of an answer.
pub(super) type Answer = UnsyncBoxBody<Bytes, Infallible>;

/// What the node is told, and what is seen of it.
pub(super) struct Kept {
    pub(super) network: watch::Sender<Readiness>,
    pub(super) health: watch::Sender<Health>,
    pub(super) runtime: watch::Sender<CurrentRuntime>,
    pub(super) happened: mpsc::Receiver<Happened>,
    pub(super) uid: watch::Receiver<Option<String>>,
    pub(super) node_loop: mpsc::Receiver<Event>,
    pub(super) made: watch::Receiver<Option<String>>,
    pub(super) csi_node: watch::Sender<CsiNode>,
    pub(super) is_told: watch::Receiver<bool>,
    _images: watch::Sender<Option<Vec<Image>>>,
}

/// The keeper of the node `n` without a network and with the CSINode of the UID `u1`, and what is around it.
pub(super) fn keeper(clients: Clients) -> (Keeper, Kept) {
    let (recorder, happened) = Recorder::new();
    let (network, wired) = watch::channel(Some(Err("there is none".to_owned())));
    let (health, heard) = watch::channel(version("v1.0.0"));
    let (runtime, current) = watch::channel(containerds(None));
    let (images, listed) = watch::channel(None);
    let (uid, known) = watch::channel(None);
    let (made, made_uid) = watch::channel(None);
    let (csi_node, initialized) = watch::channel(CsiNode::There { owner: "u1".to_owned() });
    let (events, node_loop) = mpsc::channel(WAITING);
    let (told, is_told) = watch::channel(false);
    let runtime_of_node = OciCommand { binary: "/nowhere".to_owned(), args: Vec::new() };
    let keeper = Keeper {
        features: RuntimeFeatures::new(&runtime_of_node, CgroupDriver::Cgroupfs),
        addresses: Addresses::of(&settings()),
        settings: settings(),
        machine: machine(),
        runtime: current,
        clients,
        network: wired,
        health: heard,
        images: listed,
        notes: Notes::of("n", Some(recorder)),
        csi_node: initialized,
        uid,
        made,
        observed: watch::channel(Vec::new()).0,
        pod_cidrs: watch::channel(Vec::new()).0,
        events,
        is_told: told,
        measured: Metrics::new("n", View::default()).unwrap().in_cluster(),
    };
    let kept = Kept {
        network,
        health,
        runtime,
        happened,
        uid: known,
        made: made_uid,
        csi_node,
        is_told,
        _images: images,
        node_loop,
    };
    (keeper, kept)
}

/// A containerd of this version that answers.
pub(super) fn version(version: &str) -> Health {
    Health { version: Some(version.to_owned()), silent_since: None }
}

/// What is used of containerd's configuration, and what keeps it from being used.
pub(super) fn containerds(fault: Option<&str>) -> CurrentRuntime {
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

pub(super) fn settings() -> NodeSettings {
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

/// The list of no nodes, and a watch that tells of none.
pub(super) fn nothing() -> Answer {
    listed(&[])
}

/// The list of these nodes, and a watch that tells of no change.
pub(super) fn listed(nodes: &[Value]) -> Answer {
    let mark = json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "Node",
        "metadata": {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}}});
    let added = nodes.iter().map(|node| json!({ "type": "ADDED", "object": node }));
    let events: Vec<String> = added.chain([mark]).map(|event| format!("{event}\n")).collect();
    let first = Bytes::from(events.concat());
    let lines = stream::iter([Ok::<_, Infallible>(Frame::data(first))]).chain(stream::pending());
    StreamBody::new(lines).boxed_unsync()
}

/// An object as the answer to a request.
pub(super) fn whole(code: u16, object: &Value) -> Response<Answer> {
    let body = Full::<Bytes>::from(object.to_string()).boxed_unsync();
    Response::builder().status(code).body(body).unwrap()
}

/// The answer to a request that is not carried out.
pub(super) fn refusal(code: u16, reason: &str) -> Response<Answer> {
    let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure",
        "code": code, "reason": reason});
    whole(code, &status)
}

/// What an object or a patch says of whether the node is ready.
pub(super) fn ready(patch: &Value) -> Value {
    let mut all = patch["status"]["conditions"].as_array().into_iter().flatten();
    all.find(|one| one["type"] == "Ready").cloned().unwrap_or_default()
}

/// Waits until it is so.
pub(super) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let told = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let told = tokio::time::timeout(LONG, told).await;
    told.unwrap_or_else(|_elapsed| panic!("{what} is not told"));
}
