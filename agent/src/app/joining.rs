//! The tasks that a node has in its cluster.

use std::{collections::BTreeMap, sync::Arc};

use berth_core::{cluster::events::Happened, event::Event, id::PodUid, spec::Pod};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::cancelled_with;
use crate::{
    cluster::{
        Clients, PodLoop, Recorder, Reports, Sinks,
        certificates::{self, Asking},
        node, send_events,
    },
    config::{Cluster, Config, CurrentRuntime},
    effects::{PullsUnderWay, follow_images},
    failpoint::Failpoint,
    metrics::InCluster,
    network::Readiness,
    runtime::{Containerd, RuntimeFeatures},
    view::View,
};

/// What they are made from.
pub(super) struct Joining {
    pub(super) config: Arc<Config>,
    pub(super) clients: Clients,
    pub(super) containerd: Containerd,
    pub(super) pulls: PullsUnderWay,
    pub(super) network: watch::Receiver<Readiness>,
    pub(super) runtime: watch::Receiver<CurrentRuntime>,
    pub(super) features: RuntimeFeatures,
    /// Where ranges of addresses go that the Node object has for pods.
    pub(super) pod_cidrs: watch::Sender<Vec<String>>,
    /// Pods that an earlier agent had.
    pub(super) recorded: BTreeMap<PodUid, Arc<Pod>>,
    pub(super) view: View,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) failpoint: Failpoint,
    pub(super) measured: InCluster,
    pub(super) cancel: CancellationToken,
}

impl Joining {
    /// Starts all of them; where the node loop tells what it does, and whom certificates of the server are asked of. What is told
    /// before there is a client waits.
    pub(super) fn join(self, cluster: &Cluster, tasks: &mut JoinSet<()>) -> (Option<Sinks>, Option<Asking>) {
        let (recorder, happened) = Recorder::new();
        let reports = Reports::default();
        let sinks = Sinks { reports, recorder };
        let (cancel, cluster) = (self.cancel.clone(), cluster.clone());
        let told = sinks.clone();
        let (addresses, observed) = watch::channel(Vec::new());
        let measured = self.measured.clone();
        let asking = Asking { clients: self.clients.clone(), addresses: observed, measured };
        let run = async move { self.run(cluster, told, happened, addresses).await };
        tasks.spawn(cancelled_with(cancel, run));
        (Some(sinks), Some(asking))
    }

    async fn run(
        self,
        cluster: Cluster,
        sinks: Sinks,
        happened: mpsc::Receiver<Happened>,
        addresses: watch::Sender<Vec<(String, String)>>,
    ) {
        let Self {
            config,
            clients,
            containerd,
            pulls,
            network,
            runtime,
            features,
            pod_cidrs,
            recorded,
            view,
            events,
            failpoint,
            measured,
            ..
        } = self;
        certificates::bootstrap(&cluster, &clients).await;
        let name = config.node.name.clone();
        // All of them end with this one.
        let mut tasks = JoinSet::new();
        tasks.spawn(send_events(clients.clone(), name.clone(), cluster.events, happened, failpoint.clone()));
        let (images, listed) = watch::channel(None);
        tasks.spawn(follow_images(containerd.clone(), pulls, config.node.paths.root.clone(), images));
        let (is_told, mut node_told) = watch::channel(false);
        let (node_clients, told) = (clients.clone(), events.clone());
        let parts = node::Parts {
            clients: node_clients,
            containerd,
            network,
            runtime,
            features,
            images: listed,
            recorder: sinks.recorder.clone(),
            addresses,
            pod_cidrs,
            events: told,
            is_told,
            measured: measured.clone(),
        };
        tasks.spawn(node::run(config, cluster.node.clone(), parts));
        let requests = cluster.requests;
        tasks.spawn(certificates::keep(clients.clone(), cluster, measured.clone()));
        tasks.spawn(async move {
            // Pods are admitted by what the Node object says (`NewSourceApiserver` of `pkg/kubelet/config/apiserver.go`).
            if node_told.wait_for(|is_told| *is_told).await.is_ok() {
                let pods = PodLoop::new(&name, clients, requests, sinks, view, events);
                let pods = pods.going_on_with(recorded).dying_at(failpoint).measured_by(measured);
                pods.run().await;
            }
        });
        while tasks.join_next().await.is_some() {}
    }
}
