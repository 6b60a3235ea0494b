//! The tasks that a node has in its cluster.

use std::sync::Arc;

use berth_core::{cluster::throttle::Throttle, event::Event};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::cancelled_with;
use crate::{
    cluster::{Clients, PodLoop, Recorder, Reports, Sinks, node, send_events},
    config::{Cluster, Config, Rate},
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
    /// Starts all of them; where the node loop tells what it does.
    pub(super) fn join(self, cluster: &Cluster, tasks: &mut JoinSet<()>) -> Sinks {
        let Self { config, clients, containerd, network, view, events, cancel } = self;
        let throttle = |Rate { per_second, burst }| Throttle::new(per_second, burst);
        let name = config.node.name.clone();
        let (recorder, happened) = Recorder::new();
        let sends = send_events(clients.clone(), name.clone(), throttle(cluster.events), happened);
        tasks.spawn(cancelled_with(cancel.clone(), sends));
        let parts = node::Parts { clients: clients.clone(), containerd, network, recorder: recorder.clone() };
        tasks.spawn(cancelled_with(cancel.clone(), node::run(config, cluster.node.clone(), parts)));
        let reports = Reports::default();
        let pods = PodLoop::new(&name, clients, throttle(cluster.requests), reports.clone(), view, events);
        tasks.spawn(cancelled_with(cancel, pods.run()));
        Sinks { reports, recorder }
    }
}
