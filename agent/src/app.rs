//! The composition root: everything is built here from one [`Config`], and nowhere else.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use berth_core::{
    config::CgroupDriver,
    event::{Event, Restored},
    id::{PodUid, SandboxId},
    node::Node,
    paths,
    record::PodRecord,
    spec::{Pod, Source},
};
use nix::unistd::geteuid;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    cgroup::{Systemd, Tree},
    chain::chain,
    config::Config,
    control,
    effects::{AccountsCache, Grouped, Host, Lanes},
    failpoint::Failpoint,
    manifest, netns,
    network::Network,
    node_loop::{EVENTS_MAX, NodeLoop},
    runtime::{self, Found, Shims, Watch, probe},
    source,
    store::Store,
    view::View,
};

/// How long tasks may take to end when the agent stops. What they do is found again at the next start.
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// Threads for blocking calls at most; each lives ten seconds beyond its last call.
const BLOCKING_THREADS_MAX: usize = 64;

/// Runs the agent until it is told to stop by SIGTERM or SIGINT. Pods go on without it.
///
/// # Errors
/// What keeps the agent from running, in words for the administrator.
pub fn run(config: Config) -> Result<()> {
    ensure!(
        geteuid().is_root(),
        "only root may run the agent, since it makes mounts, namespaces and cgroups: try it with sudo"
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
        .context("start the async runtime")?;
    runtime.block_on(serve(Arc::new(config)))
}

async fn serve(config: Arc<Config>) -> Result<()> {
    let cancel = CancellationToken::new();
    stop_on_signal(&cancel)?;
    let store = Store::open(config.node.paths.run.as_ref())?;
    make_socket_dir(&config.node.paths.run).context("make the directory of sockets")?;
    let starting = start(Arc::clone(&config), store, cancel.clone());
    let mut tasks = tokio::select! {
        started = starting => started?,
        () = cancel.cancelled() => return Ok(()),
    };
    cancel.cancelled().await;
    tracing::info!("stopping; pods go on");
    let ended = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_WITHIN, ended).await.is_err() {
        tracing::debug!("some work was left unfinished; it is found at the next start");
    }
    Ok(())
}

/// Makes the directory of the shims' sockets, for root alone, also when it was there before.
fn make_socket_dir(run: &str) -> std::io::Result<()> {
    let dir = PathBuf::from(run).join("shim");
    std::fs::create_dir_all(&dir)?;
    std::fs::set_permissions(&dir, Permissions::from_mode(0o700))
}

/// Connects, reads what there is, and starts every task.
async fn start(config: Arc<Config>, store: Store, cancel: CancellationToken) -> Result<JoinSet<()>> {
    let oci = probe::probe(&config).await?;
    let containerd = runtime::connect(&config).await?;
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let shims = Shims::new(&config.node.paths.run, sender.clone());
    let records = read_back(&store)?;
    let found = runtime::observe(&containerd, &shims).await?;
    let network =
        Network::new(&config.cni, sandboxes(&records, &found)).context("use the CNI directories")?;
    let cgroups = Tree::new(config.node.cgroups.version);
    let strays = strays(&config, &cgroups, &records, &found);
    remove_unneeded_netns(&sandboxes(&records, &found));

    let grouped = Grouped::default();
    for (container, sandbox) in &found.grouped {
        grouped.add(container, sandbox);
    }
    let view = View::default();
    for (record, _) in &records {
        view.set_sandbox(&record.uid, SandboxId::of(&record.uid, record.sandbox));
    }
    let host = Arc::new(Host {
        config: Arc::clone(&config),
        containerd: containerd.clone(),
        shims: shims.clone(),
        grouped: grouped.clone(),
        network: network.clone(),
        cgroups,
        systemd: (config.node.cgroups.driver == CgroupDriver::Systemd).then(Systemd::default),
        oci,
        accounts: AccountsCache::default(),
        lanes: Lanes::default(),
        failpoint: Failpoint::at(config.abort_at.clone()),
    });

    // The first event, while the channel is still empty; then the shims may speak.
    let restored = Restored { pods: records, observation: found.observation, strays };
    sender.send(Event::Restored(Box::new(restored))).await.context("start the loop")?;
    found.shims.iter().for_each(|id| shims.follow(id));

    let node = Node::new(config.node.clone(), BTreeSet::from([Source::File]));
    let node_loop = NodeLoop::new(node, host, store, view.clone(), sender.clone());
    let socket = &config.control_socket;
    let listener = control::listen(socket).with_context(|| format!("listen on {}", socket.display()))?;
    let paths = config.node.paths.clone();
    let service = control::Service { view: view.clone(), paths, runtime: containerd.clone() };
    let mut tasks = JoinSet::new();
    tasks.spawn(control::serve(listener, Arc::new(service), cancel.clone()));
    tasks.spawn(node_loop.run(events, cancel.clone()));
    let watch = Watch { containerd, shims, grouped, events: sender.clone() };
    tasks.spawn(cancelled_with(cancel.clone(), watch.run()));
    tasks.spawn(cancelled_with(cancel.clone(), network.keep(sender.clone())));
    tasks.spawn(async move { source::file::run(&config, view, sender, cancel).await });
    Ok(tasks)
}

/// The records, with their pods read back from the manifests in them. A record whose manifest cannot be read any more
/// is dropped: what it described is cleaned up as left over.
fn read_back(store: &Store) -> Result<Vec<(PodRecord, Arc<Pod>)>> {
    let mut records = Vec::new();
    for record in store.load()? {
        match manifest::pod_from_json(&record.manifest, record.source) {
            Ok(pod) => records.push((record, pod)),
            Err(faults) => {
                tracing::warn!(pod = %record.name, error = chain(&faults), "the manifest in a record is unusable");
            }
        }
    }
    Ok(records)
}

fn sandboxes(records: &[(PodRecord, Arc<Pod>)], found: &Found) -> BTreeSet<SandboxId> {
    let recorded = records.iter().map(|(record, _)| SandboxId::of(&record.uid, record.sandbox));
    let observed = found.observation.sandboxes.iter().map(|sandbox| sandbox.id.clone());
    recorded.chain(observed).collect()
}

fn strays(config: &Config, tree: &Tree, records: &[(PodRecord, Arc<Pod>)], found: &Found) -> Vec<PodUid> {
    let recorded = records.iter().map(|(record, _)| record.uid.clone());
    let known = recorded.chain(found.foreign.iter().cloned()).collect();
    runtime::strays(&config.node, tree, &known)
}

/// Network namespaces whose sandbox nobody knows. Their wiring is collected by CNI.
fn remove_unneeded_netns(needed: &BTreeSet<SandboxId>) {
    let needed: BTreeMap<PathBuf, &SandboxId> =
        needed.iter().map(|sandbox| (PathBuf::from(paths::netns(sandbox)), sandbox)).collect();
    for path in netns::unneeded(&needed.into_keys().collect()) {
        match netns::remove(&path) {
            Ok(()) => tracing::info!(netns = %path.display(), "a network namespace of no pod was removed"),
            Err(error) => tracing::warn!(error = chain(&error), "a network namespace of no pod is left"),
        }
    }
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
