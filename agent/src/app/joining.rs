//! The tasks that a node has in its cluster.

use std::sync::Arc;

use berth_core::{
    cluster::{events::Happened, throttle::Throttle},
    event::Event,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::cancelled_with;
use crate::{
    cluster::{Clients, PodLoop, Recorder, Reports, Sinks, certificates, node, send_events},
    config::{Cluster, Config, Rate},
    effects::follow_images,
    network::Readiness,
    runtime::Containerd,
    view::View,
};

/// What they are made from.
pub(super) struct Joining {
    pub(super) config: Arc<Config>,
    pub(super) clients: Clients,
    pub(super) containerd: Containerd,
    pub(super) network: watch::Receiver<Readiness>,
    pub(super) view: View,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) cancel: CancellationToken,
}

impl Joining {
    /// Starts all of them; where the node loop tells what it does. What is told before there is a client waits.
    pub(super) fn join(self, cluster: &Cluster, tasks: &mut JoinSet<()>) -> Sinks {
        let (recorder, happened) = Recorder::new();
        let reports = Reports::default();
        let sinks = Sinks { reports, recorder };
        let (cancel, cluster) = (self.cancel.clone(), cluster.clone());
        let told = sinks.clone();
        tasks.spawn(cancelled_with(cancel, async move { self.run(cluster, told, happened).await }));
        sinks
    }

    async fn run(self, cluster: Cluster, sinks: Sinks, happened: mpsc::Receiver<Happened>) {
        let Self { config, clients, containerd, network, view, events, .. } = self;
        certificates::bootstrap(&cluster, &clients).await;
        let Sinks { reports, recorder } = sinks;
        let throttle = |Rate { per_second, burst }| Throttle::new(per_second, burst);
        let name = config.node.name.clone();
        // All of them end with this one.
        let mut tasks = JoinSet::new();
        tasks.spawn(send_events(clients.clone(), name.clone(), throttle(cluster.events), happened));
        let (images, listed) = watch::channel(None);
        tasks.spawn(follow_images(containerd.clone(), images));
        let parts = node::Parts { clients: clients.clone(), containerd, network, images: listed, recorder };
        tasks.spawn(node::run(config, cluster.node.clone(), parts));
        let requests = throttle(cluster.requests);
        tasks.spawn(certificates::keep(clients.clone(), cluster));
        tasks.spawn(PodLoop::new(&name, clients, requests, reports, view, events).run());
        while tasks.join_next().await.is_some() {}
    }
}
