//! The composition root: everything is built here from one [`Config`], and nowhere else.

mod joining;
mod reset;
mod tasks;

use std::{
    collections::BTreeSet, fs::Permissions, os::unix::fs::PermissionsExt, path::PathBuf, sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use berth_core::{
    config::{CgroupDriver, CgroupVersion},
    event::{Event, Restored},
    id::{ContainerId, PodUid, SandboxId},
    node::{Proven, prove},
    observation::{Observation, ObservedTask},
    pod::resize,
    record::PodRecord,
    spec::Pod,
};
use nix::unistd::geteuid;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use self::tasks::Parts;
use crate::{
    causes::with_causes,
    cgroup::{Systemd, Tree},
    cluster::{self, certificates},
    config::{Config, CurrentRuntime, Handler},
    document::Faults,
    effects::{
        AccountsCache, FreshLayers, HooksUnderWay, Host, KnownIds, Lanes, LeasesInUse, PullsUnderWay,
        SandboxHandlers, SandboxMembers, UnwantedPulls, changeable, end_left, end_unused,
    },
    failpoint::Failpoint,
    kernel, limits, manifest,
    metrics::{Certified, Metrics},
    network::{self, Network},
    node_loop::EVENTS_MAX,
    objects::Objects,
    one_thread::OneThread,
    registry_accounts::NodeAccounts,
    runtime::{self, GroupedTasks, ObservedNode, RuntimeFeatures, Shims, probe},
    store::{EndedPods, Store},
    threads,
    view::View,
    workers::{Sort, Workers},
};

/// Records with their pods.
type Pods = Vec<(PodRecord, Arc<Pod>)>;

/// How long tasks may take to end when the agent stops, so that all of it ends within two seconds, its log included. What they do is
/// found again at the next start.
const STOP_WITHIN: Duration = Duration::from_secs(1);

/// UIDs that are named when pods are left alone.
const SHOWN_MAX: usize = 10;

/// Between two looks at a root directory that does not answer.
const ROOT_AGAIN: Duration = Duration::from_secs(2);

/// Runs the agent until it is told to stop by SIGTERM or SIGINT. Pods go on without it. `shown` is what the server shows of the
/// configuration.
///
/// # Errors
/// What keeps the agent from running, told to the administrator.
pub fn run(config: Config, shown: &serde_json::Value) -> Result<()> {
    let configz = serde_json::json!({ "kubeletconfig": shown }).to_string();
    perform(config, configz.into(), Until::Told)
}

/// Ends and removes every pod of this agent, as if no source wanted any, and returns.
///
/// # Errors
/// As of [`run`]; another agent runs.
pub fn reset(mut config: Config) -> Result<()> {
    (config.cluster, config.static_pod_path) = (None, None);
    (config.serving, config.server) = (None, None);
    config.makes_iptables_chains = false;
    perform(config, "".into(), Until::Empty)
}

/// When the agent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// When it is told to.
    Told,
    /// When there is no pod left, or earlier when it is told to.
    Empty,
}

fn perform(config: Config, configz: Arc<str>, until: Until) -> Result<()> {
    ensure!(
        geteuid().is_root(),
        "only root may run the agent, since it makes mounts, namespaces and cgroups: try it with sudo"
    );
    kernel::prepare(&config)?;
    match limits::raise_open_files() {
        Ok(files) => tracing::debug!(files, "limit of open files"),
        Err(error) => tracing::warn!(error = with_causes(&error), "the limit of open files stays as it is"),
    }
    let runtime = threads::runtime(threads::NAME, threads::MAX).context("start the async runtime")?;
    let ended = runtime.block_on(serve(config, configz, until));
    // Dropping it would wait for threads that are stuck in a call.
    runtime.shutdown_background();
    ended
}

async fn serve(mut config: Config, configz: Arc<str>, until: Until) -> Result<()> {
    let _kept = threads::keep();
    let cancel = CancellationToken::new();
    stop_on_signal(&cancel)?;
    let store = Store::open(config.node.paths.run.as_ref())?;
    config.node.paths.run = without_links(&config.node.paths.run)?;
    let config = Arc::new(config);
    let workers = Workers::open(config.node.paths.run.as_ref()).context("make the directory of workers")?;
    make_socket_dir(&config.node.paths.run).context("make the directory of sockets")?;
    let records = store.dir().to_owned();
    let starting = start(Arc::clone(&config), configz, store, workers, cancel.clone());
    let mut tasks = tokio::select! {
        started = starting => started?,
        () = cancel.cancelled() => return Ok(()),
    };
    match until {
        Until::Told => cancel.cancelled().await,
        Until::Empty => reset::all_gone(&records, &cancel).await?,
    }
    cancel.cancel();
    tracing::info!("stopping; pods go on");
    let ended = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_WITHIN, ended).await.is_err() {
        tracing::debug!("some work was left unfinished; it is found at the next start");
    }
    Ok(())
}

/// The run directory by its only name: records in containerd, marks and notes of shims compare it as a text.
fn without_links(run: &str) -> Result<String> {
    let path = std::fs::canonicalize(run).with_context(|| format!("look up stateDir {run}"))?;
    path.into_os_string().into_string().map_err(|path| {
        anyhow!("stateDir {run} is {}, which is no UTF-8: name another directory", path.display())
    })
}

/// Makes the directory of the shims' sockets, for root alone, also when it was there before.
fn make_socket_dir(run: &str) -> std::io::Result<()> {
    let dir = PathBuf::from(run).join("shim");
    std::fs::create_dir_all(&dir)?;
    std::fs::set_permissions(&dir, Permissions::from_mode(0o700))
}

/// Connects, reads what there is, and starts every task.
async fn start(
    config: Arc<Config>,
    configz: Arc<str>,
    mut store: Store,
    workers: Workers,
    cancel: CancellationToken,
) -> Result<JoinSet<()>> {
    root_answers(&config, &workers).await;
    let cgroups = Arc::new(Tree::new(config.node.cgroups.version));
    let oci = probe::probe(&config, &cgroups).await?;
    let containerd = runtime::connect(&config).await?;
    tokio::spawn(runtime::tell_flaws(containerd.clone(), oci.clone()));
    let clients = clients(&config).await?;
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let shims = Shims::new(&config.node.paths.run, &config.containerd_socket, sender.clone());
    let ended = store.ended(config.node.paths.root.as_ref());
    let records = read_back(&mut store)?;
    let found = runtime::observe(&containerd, &shims, recorded(&records)).await?;
    let (changes, current) = runtime_of(&config);
    let (ended_pods, network) = kept_in_root(&config, &ended, &records, &workers, &current).await?;
    network.find_leftovers(recorded(&records), &known(&records, &found)).await;
    let recorded_pods: BTreeSet<PodUid> =
        records.iter().chain(&ended_pods).map(|(record, _)| record.uid.clone()).collect();
    let made = found.observation.containers.iter().map(|container| container.id.as_str()).collect();
    let snapshotter = current.borrow().settings.snapshotter.clone();
    runtime::remove_left(&containerd, &snapshotter, &config.node.paths.run, &recorded_pods, &made).await;
    let (found, orphans) = find_orphans(&config, &cgroups, recorded_pods.clone(), found).await?;

    let (grouped, handlers) = served_before(&found.grouped, &records, &found.observation, found.handlers);
    let view = View::default();
    let host = Arc::new(Host {
        config: Arc::clone(&config),
        containerd: containerd.clone(),
        shims: shims.clone(),
        grouped: grouped.clone(),
        network: network.clone(),
        cgroups,
        systemd: (config.node.cgroups.driver == CgroupDriver::Systemd).then(Systemd::default),
        features: RuntimeFeatures::new(&oci, config.node.cgroups.driver),
        oci,
        runtime: current.clone(),
        handlers,
        stored: found.stored,
        members: SandboxMembers::default(),
        objects: Objects::of(clients.as_ref(), &sender),
        node_object: node_object(&config, clients.as_ref()),
        fresh_layers: FreshLayers::default(),
        accounts: AccountsCache::default(),
        image_ids: KnownIds::default(),
        node_accounts: NodeAccounts::of(&config.registry_accounts),
        registries: OneThread::default(),
        leases: LeasesInUse::default(),
        pulls: PullsUnderWay::default(),
        hooks: HooksUnderWay::default(),
        unwanted: UnwantedPulls::default(),
        ended,
        lanes: Lanes::default(),
        workers: workers.clone(),
        program: std::env::current_exe().context("find where this program is")?,
        metrics: metrics(&config, &view, clients.as_ref())?,
        failpoint: Failpoint::at(config.abort_at.clone()),
    });

    host.metrics.unrecorded(&found.observation.pods() - &recorded_pods);
    host.failpoint.reach("agent.restored");
    end_left_volumes(&host, recorded_pods, &found.observation, &orphans).await;
    end_leases(Arc::clone(&host));

    // The first event, while the channel is still empty; then the shims may speak.
    let recorded = records.iter().chain(&ended_pods);
    let recorded = recorded.map(|(record, pod)| (record.uid.clone(), Arc::clone(pod))).collect();
    let restored = Restored { pods: records, ended: ended_pods, observation: found.observation, orphans };
    sender.send(Event::Restored(Box::new(restored))).await.context("start the loop")?;
    found.shims.iter().for_each(|id| shims.follow(id));

    let parts = Parts { config, configz, host, clients, recorded, view, events: sender, cancel };
    parts.spawn(store, events, changes)
}

/// Tasks and sandboxes of shims of others that an earlier agent began.
fn served_before(
    grouped: &[(ContainerId, SandboxId)],
    records: &Pods,
    observation: &Observation,
    handlers: Vec<(SandboxId, Handler)>,
) -> (GroupedTasks, SandboxHandlers) {
    let (tasks, kept) = (GroupedTasks::default(), SandboxHandlers::default());
    let running =
        observation.containers.iter().filter(|one| matches!(one.task, ObservedTask::Running { .. }));
    // A shim that does not answer now has told before.
    let runs = records.iter().flat_map(|(record, _)| record.containers.values()).filter(|run| run.has_run);
    let begun: BTreeSet<&ContainerId> = running.map(|one| &one.id).chain(runs.map(|run| &run.id)).collect();
    for (container, sandbox) in grouped {
        if begun.contains(container) {
            tasks.begun(container, sandbox);
        } else {
            tasks.add(container, sandbox);
        }
    }
    for (sandbox, handler) in handlers {
        kept.keep(&sandbox, Arc::new(handler));
    }
    (tasks, kept)
}

/// What may change while the agent runs: as it is at first, and where a change is told.
fn runtime_of(config: &Config) -> (watch::Sender<CurrentRuntime>, watch::Receiver<CurrentRuntime>) {
    watch::channel(CurrentRuntime { settings: Arc::new(config.runtime.clone()), fault: None })
}

/// Ends what containerd keeps for volumes of pods of which nothing else is there.
async fn end_left_volumes(host: &Host, recorded: BTreeSet<PodUid>, found: &Observation, orphans: &[PodUid]) {
    let known = recorded.into_iter().chain(found.pods()).chain(orphans.iter().cloned()).collect();
    end_left(host, &known).await;
}

/// Ends leases of an earlier agent beside everything else: containerd answers when all its garbage is gone.
fn end_leases(host: Arc<Host>) {
    tokio::spawn(async move {
        end_unused(&host.containerd, &host.config.node.paths.run, &host.leases).await;
    });
}

/// Clients of the API server, where the node has a cluster.
async fn clients(config: &Config) -> Result<Option<cluster::Clients>> {
    let Some(cluster) = &config.cluster else { return Ok(None) };
    Ok(Some(certificates::clients(cluster).await?))
}

/// What is measured, requests to the API server among it.
fn metrics(config: &Config, view: &View, clients: Option<&cluster::Clients>) -> Result<Metrics> {
    let make = || -> prometheus::Result<Metrics> {
        let metrics = Metrics::new(&config.node.name, view.clone())?;
        let version = match config.node.cgroups.version {
            CgroupVersion::V1 => 1.0,
            CgroupVersion::V2 => 2.0,
        };
        metrics.ask("kubelet_cgroup_version", "Version of the node's cgroups.", move || version)?;
        metrics.gates(&config.gates)?;
        let cluster = config.cluster.as_ref().filter(|cluster| cluster.rotates);
        if let Some((_, clients)) = cluster.zip(clients) {
            let clients = clients.clone();
            metrics.ask_until(Certified::Client, move || clients.holds_until())?;
        }
        if let Some(requests) = cluster::request_families() {
            metrics.show(requests.total)?;
            metrics.show(requests.seconds)?;
        }
        Ok(metrics)
    };
    make().context("make the families of metrics")
}

/// The Node object, where the node has a cluster.
fn node_object(config: &Config, clients: Option<&cluster::Clients>) -> Option<cluster::node::NodeObject> {
    let name = config.node.name.clone();
    clients.map(|clients| cluster::node::NodeObject { clients: clients.clone(), name })
}

fn asks_for_changes(workers: &Workers) -> network::Changeable {
    let workers = workers.clone();
    network::Changeable(Box::new(move |sandbox, sort, directories| {
        let workers = workers.clone();
        Box::pin(async move { changeable(&workers, &sandbox, sort, &directories).await })
    }))
}

/// Waits for the disk of the root directory, which threads use from now on: a worker that waits can be given up, and the agent
/// be stopped meanwhile.
async fn root_answers(config: &Config, workers: &Workers) {
    let root = [PathBuf::from(&config.node.paths.root)];
    while let Err(why) = changeable(workers, "", Sort::Own, &root).await {
        tracing::error!(why, "the root directory is waited for");
        tokio::time::sleep(ROOT_AGAIN).await;
    }
}

/// Pods that had ended before a reboot, and the networks, whose records are beside them.
async fn kept_in_root(
    config: &Arc<Config>,
    ended: &EndedPods,
    records: &Pods,
    workers: &Workers,
    current: &watch::Receiver<CurrentRuntime>,
) -> Result<(Pods, Network)> {
    let (config, ended, changeable) = (Arc::clone(config), ended.clone(), asks_for_changes(workers));
    let current = current.clone();
    let known = records.iter().map(|(record, _)| record.uid.clone()).collect();
    of_root(move || {
        let network = Network::open(&config.cni, current, &config.node.paths, changeable);
        Ok((ended_before(&ended, &known)?, network.context("use the CNI directories")?))
    })
    .await
}

async fn find_orphans(
    config: &Arc<Config>,
    tree: &Arc<Tree>,
    recorded: BTreeSet<PodUid>,
    found: ObservedNode,
) -> Result<(ObservedNode, Vec<PodUid>)> {
    let (config, tree) = (Arc::clone(config), Arc::clone(tree));
    of_root(move || {
        let orphans = orphans(&config, &tree, recorded, &found);
        Ok((found, orphans))
    })
    .await
}

/// Works on the root directory in a thread, so that the agent can be stopped while its disk hangs.
async fn of_root<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context("work on the root directory")?
}

/// The records, with their pods read back from the manifests in them. A record whose manifest cannot be read any more
/// is moved aside: what runs of its pod is found by observation.
fn read_back(store: &mut Store) -> Result<Pods> {
    let mut records = Vec::new();
    for record in store.load()? {
        match recorded_pod(&record) {
            Ok(pod) => records.push((record, pod)),
            Err(faults) => {
                store.set_aside(
                    &record.uid,
                    &format!("its manifest cannot be used: {}", with_causes(&faults)),
                );
            }
        }
    }
    Ok(records)
}

/// The pod of a record, with the resources that it has.
fn recorded_pod(record: &PodRecord) -> Result<Arc<Pod>, Faults> {
    let pod = manifest::pod_from_json(&record.manifest, record.source)?;
    let Some(resize) = record.resize.clone() else { return Ok(pod) };
    let allocated = manifest::pod_from_json(&resize.allocated, record.source)?;
    Ok(resize::read_back(&allocated, &pod, resize))
}

/// Pods that had ended before the machine was switched off: what is kept of those that have no record.
fn ended_before(ended: &EndedPods, known: &BTreeSet<PodUid>) -> Result<Pods> {
    let mut pods = Vec::new();
    for record in ended.load()?.into_iter().filter(|record| !known.contains(&record.uid)) {
        match manifest::pod_from_json(&record.manifest, record.source) {
            Ok(pod) => pods.push((record, pod)),
            Err(faults) => {
                tracing::warn!(pod = %record.name, error = with_causes(&faults), "the manifest of an ended pod is unusable");
                ended.drop(&record.uid)?;
            }
        }
    }
    Ok(pods)
}

/// Sandboxes of the pods' records.
fn recorded(records: &[(PodRecord, Arc<Pod>)]) -> BTreeSet<SandboxId> {
    records.iter().map(|(record, _)| record.sandbox_id.clone()).collect()
}

/// These and the runtime's.
fn known(records: &[(PodRecord, Arc<Pod>)], found: &ObservedNode) -> BTreeSet<SandboxId> {
    &recorded(records) | &found.observation.sandbox_ids()
}

/// Pods of which nothing but their directories and cgroups is left, where the mark in the directory proves that they are ours.
fn orphans(config: &Config, tree: &Tree, recorded: BTreeSet<PodUid>, found: &ObservedNode) -> Vec<PodUid> {
    let known = &recorded | &found.foreign;
    let seen = runtime::seen(&config.node, tree);
    let Proven { ours, others } = prove(&seen, &config.node.paths.run, &known, &found.observation.pods());
    if !others.is_empty() {
        let shown: Vec<&str> = others.iter().take(SHOWN_MAX).map(PodUid::as_str).collect();
        tracing::warn!(
            pods = others.len(),
            uids = shown.join(" "),
            root = config.node.paths.root,
            "directories or cgroups of pods that nothing proves to be ours are left alone"
        );
    }
    ours.into_iter().collect()
}

fn stop_on_signal(cancel: &CancellationToken) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let cancel = cancel.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        cancel.cancel();
    });
    Ok(())
}

async fn cancelled_with(cancel: CancellationToken, work: impl Future<Output = ()>) {
    tokio::select! {
        () = cancel.cancelled() => {}
        () = work => {}
    }
}

#[cfg(test)]
mod tests;
