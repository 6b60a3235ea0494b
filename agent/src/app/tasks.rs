//! The tasks of the agent.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use anyhow::{Context, Result};
use berth_core::{
    event::Event,
    id::PodUid,
    node::Node,
    spec::{Pod, Source},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;

use super::{cancelled_with, joining::Joining};
use crate::{
    cluster::{
        self, Sinks,
        certificates::{self, Asking},
    },
    config::{Config, CurrentRuntime, ServingCertificate},
    control,
    effects::{Host, manifests},
    healthz, iptables,
    metrics::{Certified, Metrics},
    network::Network,
    node_loop::NodeLoop,
    reread::Follower,
    runtime::{self, Watch},
    server::{self, Lanes, NodeLogs, Requests, Served, Streaming},
    source,
    stats::Stats,
    store::Store,
    view::View,
    workers::Workers,
};

/// What tasks share.
pub(super) struct Parts {
    pub(super) config: Arc<Config>,
    /// What `/configz` says.
    pub(super) configz: Arc<str>,
    pub(super) host: Arc<Host>,
    pub(super) clients: Option<cluster::Clients>,
    /// Pods that an earlier agent had.
    pub(super) recorded: BTreeMap<PodUid, Arc<Pod>>,
    pub(super) view: View,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) cancel: CancellationToken,
}

impl Parts {
    /// Starts every task.
    pub(super) fn spawn(
        self,
        store: Store,
        events: mpsc::Receiver<Event>,
        changes: watch::Sender<CurrentRuntime>,
    ) -> Result<JoinSet<()>> {
        let mut tasks = JoinSet::new();
        let (pod_cidrs, given_cidrs) = watch::channel(Vec::new());
        let (sources, sinks, asking) = self.join_cluster(&mut tasks, pod_cidrs);
        let Self { config, configz, host, clients, view, events: sender, cancel, recorded: _ } = self;
        let socket = &config.control_socket;
        let listener = control::listen(socket).with_context(|| format!("listen on {}", socket.display()))?;
        let service = service(&config, &view, &host);
        tasks.spawn(control::serve(listener, Arc::new(service), cancel.clone()));
        let node = Node::new(config.node.clone(), sources);
        let node_loop = NodeLoop::new(node, Arc::clone(&host), store, view.clone(), sinks, sender.clone());
        let turns = node_loop.turns();
        host.metrics.watch_turns(move || turns.busy_since()).context("show the node loop's turns")?;
        let requests = requests(&host.metrics).context("make the families of requests")?;
        let stats = Stats::new(view.clone(), Arc::clone(&host));
        let sizes = stats.log_sizes().and_then(|sizes| host.metrics.show(sizes));
        drop(sizes.context("show how large logs are")?);
        let lanes = Lanes::default();
        let served = Served {
            view: view.clone(),
            host: Arc::clone(&host),
            clients,
            turns: node_loop.turns(),
            configz,
            requests,
            stats: stats.clone(),
            streaming: Streaming::of(&host, &view, &lanes),
            node_logs: NodeLogs::of(config.log_requests.of_node, &lanes),
            lanes,
        };
        tasks.spawn(cancelled_with(cancel.clone(), stats.walk()));
        serve(served, asking, &cancel, &mut tasks)?;
        if let Some(address) = config.healthz {
            tasks.spawn(cancelled_with(cancel.clone(), healthz::serve(address, host.metrics.clone())));
        }
        tasks.spawn(node_loop.run(events, cancel.clone()));
        let watch = Watch {
            containerd: host.containerd.clone(),
            shims: host.shims.clone(),
            grouped: host.grouped.clone(),
            events: sender.clone(),
        };
        tasks.spawn(cancelled_with(cancel.clone(), watch.run()));
        if config.makes_iptables_chains {
            tasks.spawn(cancelled_with(cancel.clone(), iptables::keep()));
        }
        let follower = Follower {
            source: Arc::new(config.runtime_source.clone()),
            driver: config.node.cgroups.driver,
            current: changes,
            view: view.clone(),
            told: None,
        };
        tasks.spawn(cancelled_with(cancel.clone(), follower.run()));
        let keeping = host.network.clone().keep(sender.clone(), given_cidrs);
        tasks.spawn(until_stopped(host.network.clone(), cancel.clone(), keeping));
        let read = reads_manifests(&host.workers);
        tasks.spawn(async move { source::file::run(&config, read, view, sender, cancel).await });
        Ok(tasks)
    }

    /// Starts what speaks with the API server, where the node has one: sources of pods, where they are told, and who asks for certificates.
    fn join_cluster(
        &self,
        tasks: &mut JoinSet<()>,
        pod_cidrs: watch::Sender<Vec<String>>,
    ) -> (BTreeSet<Source>, Option<Sinks>, Option<Asking>) {
        let Some((cluster, clients)) = self.config.cluster.as_ref().zip(self.clients.clone()) else {
            return (BTreeSet::from([Source::File]), None, None);
        };
        let joining = Joining {
            config: Arc::clone(&self.config),
            clients,
            containerd: self.host.containerd.clone(),
            pulls: self.host.pulls.clone(),
            network: self.host.network.readiness(),
            runtime: self.host.runtime.clone(),
            features: self.host.features.clone(),
            pod_cidrs,
            recorded: self.recorded.clone(),
            view: self.view.clone(),
            events: self.events.clone(),
            failpoint: self.host.failpoint.clone(),
            measured: self.host.metrics.in_cluster(),
            cancel: self.cancel.clone(),
        };
        let (sinks, asking) = joining.join(cluster, tasks);
        (BTreeSet::from([Source::File, Source::Api]), sinks, asking)
    }
}

/// What is counted of requests to the node's server.
fn requests(metrics: &Metrics) -> prometheus::Result<Requests> {
    let requests = Requests::new()?;
    metrics.show(requests.total.clone())?;
    metrics.show(requests.under_way.clone())?;
    metrics.show(requests.seconds.clone())?;
    Ok(requests)
}

/// Keeps networks until the agent stops. Plugins are let go before who waits for them is dropped.
async fn until_stopped(network: Network, cancel: CancellationToken, keeping: impl Future<Output = ()>) {
    let stopped = async {
        cancel.cancelled().await;
        network.let_plugins_go_on();
    };
    tokio::select! {
        () = stopped => network.finish().await,
        () = keeping => {}
    }
}

/// Starts the node's server, where it has one, and what keeps its certificate.
fn serve(
    served: Served,
    asking: Option<Asking>,
    cancel: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> Result<()> {
    let config = Arc::clone(&served.host.config);
    let Some((source, settings)) = config.serving.clone().zip(config.server.clone()) else {
        return Ok(());
    };
    let (presented, presenting) = watch::channel(None::<Arc<CertifiedKey>>);
    if let ServingCertificate::OfCluster { .. } = source {
        let now = presenting.clone();
        let until = move || Some(certificates::validity(now.borrow().as_ref()?)?.not_after);
        served
            .host
            .metrics
            .ask_until(Certified::Server, until)
            .context("show how long the certificate holds")?;
    }
    let keeping = async move { certificates::serve(source, &config.node.name, asking, presented).await };
    tasks.spawn(cancelled_with(cancel.clone(), keeping));
    tasks.spawn(server::run(served, settings, presenting, cancel.clone()));
    Ok(())
}

fn service(config: &Config, view: &View, host: &Host) -> control::Service<runtime::Containerd> {
    let (view, paths, shims) = (view.clone(), config.node.paths.clone(), host.shims.clone());
    control::Service { view, paths, shims, runtime: host.containerd.clone(), workers: host.workers.clone() }
}

fn reads_manifests(workers: &Workers) -> source::file::Read {
    let workers = workers.clone();
    Box::new(move |path| {
        let workers = workers.clone();
        Box::pin(async move { manifests(&workers, &path).await })
    })
}
