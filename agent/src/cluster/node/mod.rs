//! The Node object, the CSINode and the Lease: the node as the cluster sees it.
//!
//! What the object says is decided in `berth_core::cluster::node`. Here the machine and containerd are asked, the object is
//! watched, and patches are sent: when something has changed, and when a report is due. The lease has a task of its own, so
//! that nothing makes it late, and the CSINode another, so that it makes nothing late.

mod addresses;
mod csi_node;
#[cfg(test)]
mod fake;
mod keep;
mod kernel_log;
mod lease;
mod machine;
mod notes;
mod runtime;
mod seen;

use std::{path::Path, sync::Arc};

use berth_core::{
    cluster::{
        csi_node::CsiNode,
        node::{Handler, Health, Image, NodeSettings, starting},
    },
    event::Event,
};
use tokio::sync::{mpsc, watch};

pub(super) use self::keep::chance;
pub(crate) use self::machine::names as machine_names;
use self::{addresses::Addresses, csi_node::Initializer, keep::Keeper};
pub use self::{notes::Notes, seen::NodeObject};
use super::{Clients, Recorder};
use crate::{
    config::{Config, CurrentRuntime, RuntimeSettings},
    metrics::InCluster,
    network::Readiness,
    runtime::{Containerd, Features, RuntimeFeatures},
};

/// What the tasks of the node need.
#[derive(Debug)]
pub struct Parts {
    /// The API server.
    pub clients: Clients,
    /// Who is asked whether it answers.
    pub containerd: Containerd,
    /// Whether pods can be wired.
    pub network: watch::Receiver<Readiness>,
    /// Handlers that pods may name.
    pub runtime: watch::Receiver<CurrentRuntime>,
    /// What their runtimes can do.
    pub features: RuntimeFeatures,
    /// Images of the node; `None` as long as nobody knows them.
    pub images: watch::Receiver<Option<Vec<Image>>>,
    /// Where events of the node go.
    pub recorder: Recorder,
    /// Where the addresses go that the Node object has: type and text of each.
    pub addresses: watch::Sender<Vec<(String, String)>>,
    /// Where ranges of addresses go that the Node object has for pods.
    pub pod_cidrs: watch::Sender<Vec<String>>,
    /// Who is told what the object says to pods.
    pub events: mpsc::Sender<Event>,
    /// Becomes true when the API server has told of the object, or that there is none, and the node loop was told before.
    pub is_told: watch::Sender<bool>,
    /// How long all of it takes.
    pub measured: InCluster,
}

/// Keeps the Node object, its CSINode and its lease. Runs until the agent stops.
pub async fn run(config: Arc<Config>, settings: NodeSettings, parts: Parts) {
    let Parts {
        clients,
        containerd,
        network,
        runtime,
        features,
        images,
        recorder,
        addresses,
        pod_cidrs,
        events,
        is_told,
        measured,
    } = parts;
    let notes = Notes::of(&settings.name, Some(recorder));
    let resolv_conf = config.live.resolv_conf.as_deref().map(Path::to_string_lossy).unwrap_or_default();
    let told = starting(&config.node.cgroups, config.memory_volumes, &config.node.dns, &resolv_conf);
    told.into_iter().for_each(|note| notes.tell(note));
    let log = kernel_log::follow(notes.clone());
    let (health, heard) = watch::channel(Health::default());
    let (uid, known_uid) = watch::channel(None);
    let (made, made_uid) = watch::channel(None);
    let (state, csi_node) = watch::channel(CsiNode::default());
    let initializer =
        Initializer { clients: clients.clone(), node: settings.name.clone(), made: made_uid, state };
    let initializing = initializer.run(known_uid.clone());
    let lease = lease::keep(clients.clone(), settings.name.clone(), settings.lease_seconds, known_uid);
    let keeper = Keeper {
        machine: machine::read(&config.node.capacity, &config.node.allocatable, &config.node.paths.root)
            .await,
        runtime,
        features,
        addresses: Addresses::of(&settings),
        clients,
        network,
        health: heard,
        images,
        notes,
        csi_node,
        uid,
        made,
        observed: addresses,
        pod_cidrs,
        events,
        is_told,
        measured,
        settings,
    };
    tokio::join!(keeper.run(), initializing, lease, runtime::ask(containerd, health), log);
}

async fn handlers(settings: &RuntimeSettings, features: &RuntimeFeatures) -> Vec<Handler> {
    let all = settings.handlers.iter().map(async |(name, handler)| {
        // Of one that does not answer, nothing is promised.
        let Features { recursive_read_only, user_namespaces } =
            features.of(&handler.runtime).await.unwrap_or_default();
        Handler { name: name.clone(), recursive_read_only, user_namespaces }
    });
    futures::future::join_all(all).await
}
