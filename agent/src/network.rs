//! Networks of pods: their namespaces, CNI, its configuration as it changes, and what an earlier life of this agent left.

mod changes;
mod collect;
mod keep;
mod orphans;
mod plugins;
mod template;
mod unwired;

use std::{
    collections::BTreeSet,
    fmt,
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use berth_cni::{
    AddResult, Attachment, AttachmentError, CniError, ContainerId, LoadError, NameError, NetworkList,
    Runtime, RuntimeConfig, SetupError,
};
use berth_core::{config::Paths, id::SandboxId, paths, status::NetworkStatus};
use futures::future::BoxFuture;
use nix::fcntl::Flock;
use tokio::{sync::watch, time::Instant};
use tokio_util::task::TaskTracker;

use self::{collect::Leftovers, orphans::Orphans, plugins::Plugins, unwired::Unwired};
use crate::{
    config::{Cni, CurrentRuntime},
    lock,
    netns::{Namespaces, NetnsError},
    one_thread::OneThread,
    workers::Sort,
};

/// Longest chain of plugins.
const PLUGINS_WITHIN: Duration = Duration::from_secs(220);

/// Longest look at the configuration: milliseconds, or a file system that does not answer.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// Longest removal of one leftover, so that one that hangs does not use up the others' time, nor that of a pod which
/// needs the same sandbox.
const LEFTOVER_WITHIN: Duration = Duration::from_secs(30);

/// Longest question whether pods can be wired: the configuration is read, and each of its plugins asked for its STATUS.
pub const ANSWERS_WITHIN: Duration = READ_WITHIN.saturating_add(PLUGINS_WITHIN);

/// Whether pods can be wired, or why not; `None` before the first look.
pub type Readiness = Option<Result<(), String>>;

/// CNI and network namespaces. Clones share them.
#[derive(Debug, Clone)]
pub struct Network(Arc<Inner>);

/// Finds out, for a sandbox, whether the file systems of directories take changes. A failure in words.
pub struct Changeable(pub Box<AsksForChanges>);

type AsksForChanges =
    dyn Fn(String, Sort, Vec<PathBuf>) -> BoxFuture<'static, Result<(), String>> + Send + Sync;

impl fmt::Debug for Changeable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Changeable")
    }
}

#[derive(Debug)]
struct Inner {
    runtime: Runtime,
    /// Calls of plugins; none begins once it is closed.
    calls: TaskTracker,
    namespaces: Namespaces,
    config: Cni,
    plugins: Plugins,
    leftovers: Leftovers,
    orphans: Orphans,
    unwired: Unwired,
    reading: OneThread,
    changeable: Changeable,
    /// Whether pods can be wired, in the words of containerd's CRI; `None` before the first look.
    readiness: watch::Sender<Readiness>,
    /// Where records are.
    directories: [PathBuf; 2],
    /// That the records in the root directory are no other agent's.
    _lock: Flock<File>,
}

/// Why the network cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A directory is not fit.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A file or directory cannot be used.
    #[error("{act} {path}")]
    Io {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Another agent has the directory.
    #[error("lock {0}: another agent has this root directory; stop it, or give this one another --root-dir")]
    Taken(PathBuf),
}

/// Why a pod could not be wired or unwired.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// There is no usable configuration.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// None can be made.
    #[error(transparent)]
    Make(#[from] template::MakeError),
    /// The pod's names do not fit.
    #[error(transparent)]
    Attachment(#[from] AttachmentError),
    /// The sandbox's id does not fit.
    #[error(transparent)]
    Id(#[from] NameError),
    /// A plugin failed.
    #[error(transparent)]
    Cni(Box<CniError>),
    /// A network namespace could not be made or removed.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// A plugin of an agent that was killed still runs.
    #[error(
        "use the network of sandbox {sandbox}: a CNI plugin that an earlier agent started for it (process {process}) still \
         runs; end it if it hangs"
    )]
    Orphan {
        /// The sandbox.
        sandbox: SandboxId,
        /// The plugin, or a program that it started.
        process: String,
    },
    /// The plugins were content and gave the pod no address. In containerd's words.
    #[error("failed to find network info for sandbox {0:?}")]
    NoAddress(String),
    /// The disk of the records does not answer.
    #[error("use the network: {0}")]
    Records(String),
    /// The file system of the configuration does not answer.
    #[error("read the CNI configuration in {0}: no answer; look at its file system")]
    Unanswered(PathBuf),
    /// The agent is stopping.
    #[error("use the network: the agent is stopping")]
    Stopping,
}

impl From<CniError> for NetworkError {
    fn from(error: CniError) -> Self {
        Self::Cni(Box::new(error))
    }
}

impl Network {
    /// Takes directories.
    ///
    /// # Errors
    /// When a directory cannot be used, or another agent has it.
    pub fn open(
        config: &Cni,
        current: watch::Receiver<CurrentRuntime>,
        places: &Paths,
        changeable: Changeable,
    ) -> Result<Self, OpenError> {
        let bin_dirs = current.borrow().settings.cni_bin_dirs.clone();
        let lock = claim(paths::lasting(places).as_ref())?;
        let runtime = Runtime::new(RuntimeConfig {
            bin_dirs: bin_dirs.clone(),
            cache_dir: config.cache_dir.clone(),
            records_dir: paths::attachments(places).into(),
        })?;
        Ok(Self(Arc::new(Inner {
            runtime,
            calls: TaskTracker::new(),
            namespaces: Namespaces::marked_in(paths::netns_marks(places)),
            config: config.clone(),
            leftovers: Leftovers::default(),
            plugins: Plugins::new(current),
            orphans: Orphans::of(bin_dirs),
            unwired: Unwired::default(),
            changeable,
            directories: [paths::attachments(places).into(), config.cache_dir.clone()],
            reading: OneThread::default(),
            readiness: watch::Sender::new(None),
            _lock: lock,
        })))
    }

    /// Whether pods can be wired, as it becomes known: in the words of containerd's CRI, since the node's condition says them.
    #[must_use]
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.0.readiness.subscribe()
    }

    /// The network namespaces of this agent.
    #[must_use]
    pub fn namespaces(&self) -> &Namespaces {
        &self.0.namespaces
    }

    /// Attaches a sandbox. What an earlier ADD of it left, finished or not, is undone first.
    ///
    /// # Errors
    /// See [`NetworkError`].
    pub async fn attach(&self, attachment: Attachment) -> Result<NetworkStatus, NetworkError> {
        let list = self.load().await?;
        self.add(&list, attachment, Instant::now() + PLUGINS_WITHIN).await
    }

    async fn add(
        &self,
        list: &NetworkList,
        attachment: Attachment,
        deadline: Instant,
    ) -> Result<NetworkStatus, NetworkError> {
        let sandbox = SandboxId::from_known(attachment.container_id.as_str());
        self.0.unwired.adds(&sandbox);
        self.records_answer(sandbox.as_str(), Sort::Own).await?;
        self.0.orphans.gone(sandbox.as_str(), deadline).await?;
        let runtime = self.0.plugins.attaching(&self.0.runtime);
        let result = self.call(runtime.add(list, &attachment, deadline)).await?;
        self.0.unwired.added(&sandbox);
        status(&attachment, &result)
    }

    /// From now on plugins go on when nobody waits for them any more, and the next agent waits for them.
    pub fn let_plugins_go_on(&self) {
        self.0.runtime.let_plugins_go_on();
    }

    /// Returns when no call of plugins is under way and what they said is recorded. From now on none begins.
    pub async fn finish(&self) {
        self.0.calls.close();
        self.0.calls.wait().await;
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T, CniError>>) -> Result<T, NetworkError> {
        if self.0.calls.is_closed() {
            return Err(NetworkError::Stopping);
        }
        Ok(self.0.calls.track_future(call).await?)
    }

    /// Detaches a sandbox with the configuration that it was attached with; the one of now is read only when that is unusable.
    ///
    /// # Errors
    /// See [`NetworkError`].
    pub async fn detach(&self, sandbox: &SandboxId) -> Result<(), NetworkError> {
        self.del(sandbox, Instant::now() + PLUGINS_WITHIN).await?;
        self.0.unwired.deleted(sandbox);
        Ok(())
    }

    async fn del(&self, sandbox: &SandboxId, deadline: Instant) -> Result<(), NetworkError> {
        match self.del_by_record(sandbox, deadline).await {
            Err(NetworkError::Cni(error)) if matches!(*error, CniError::RecordedConfig { .. }) => {
                let current = self.load().await.ok();
                self.del_with(sandbox, current.as_ref(), deadline).await
            }
            result => result,
        }
    }

    /// Makes sure that a sandbox is attached to nothing, before its namespace goes. After a [`detach`](Self::detach) that has worked
    /// there is nothing to do; else its records tell what it may be attached to, with nobody else to detach it.
    ///
    /// # Errors
    /// See [`NetworkError`].
    pub async fn ensure_detached(&self, sandbox: &SandboxId) -> Result<(), NetworkError> {
        if self.0.unwired.has(sandbox) { Ok(()) } else { self.detach_by_record(sandbox).await }
    }

    /// Forgets a sandbox whose namespace is gone.
    pub fn forget(&self, sandbox: &SandboxId) {
        self.0.unwired.forget(sandbox);
    }

    /// Detaches a sandbox of which nothing is known but what its records tell. Without one there is nothing to do.
    async fn detach_by_record(&self, sandbox: &SandboxId) -> Result<(), NetworkError> {
        self.del_by_record(sandbox, Instant::now() + LEFTOVER_WITHIN).await
    }

    async fn del_by_record(&self, sandbox: &SandboxId, deadline: Instant) -> Result<(), NetworkError> {
        self.del_with(sandbox, None, deadline).await
    }

    async fn del_with(
        &self,
        sandbox: &SandboxId,
        current: Option<&NetworkList>,
        deadline: Instant,
    ) -> Result<(), NetworkError> {
        let (id, netns) = (ContainerId::new(sandbox.as_str())?, PathBuf::from(paths::netns(sandbox)));
        self.records_answer(sandbox.as_str(), Sort::Ends).await?;
        self.0.orphans.gone(sandbox.as_str(), deadline).await?;
        let runtime = self.0.plugins.detaching(&self.0.runtime);
        self.call(runtime.del_container(&id, &netns, current, deadline)).await
    }

    /// A pod needs a sandbox: from now on it is no leftover. Waits for a removal that is under way.
    pub async fn claim(&self, sandbox: &SandboxId) {
        self.0.leftovers.claim(sandbox).await;
    }

    /// Threads write the records, so it is a worker that waits for a disk that does not answer.
    async fn records_answer(&self, sandbox: &str, sort: Sort) -> Result<(), NetworkError> {
        let answered = (self.0.changeable.0)(sandbox.to_owned(), sort, self.0.directories.to_vec()).await;
        answered.map_err(NetworkError::Records)
    }

    /// The first configuration by name, as containerd takes it.
    async fn load(&self) -> Result<NetworkList, NetworkError> {
        let dir = self.0.plugins.conf_dir();
        let unanswered = NetworkError::Unanswered(dir.clone());
        let loaded = self.0.reading.run(READ_WITHIN, move || NetworkList::load(&dir)).await;
        Ok(loaded.map_err(|_elapsed| unanswered)??)
    }
}

/// What an ADD made for the pod. Without an address its sandbox is none (containerd, `setupPodNetwork` of
/// `internal/cri/server/sandbox_run.go`); the next try undoes this one first.
fn status(attachment: &Attachment, result: &AddResult) -> Result<NetworkStatus, NetworkError> {
    let ips = result.pod_ips(&attachment.ifname);
    if ips.is_empty() {
        return Err(NetworkError::NoAddress(attachment.container_id.as_str().to_owned()));
    }
    Ok(NetworkStatus { ips })
}

/// The right to the records below a directory, which is made when it is missing.
fn claim(dir: &Path) -> Result<Flock<File>, OpenError> {
    let path = dir.join("agent.lock");
    let failed = |act| {
        let path = path.clone();
        move |source| OpenError::Io { act, path, source }
    };
    let make = |dir: &Path, mode| fs::DirBuilder::new().recursive(true).mode(mode).create(dir);
    // The root directory is the kubelet's, with its mode (`pkg/kubelet/kubelet.go` `setupDataDirs`); ours is root's alone.
    let made = dir.parent().map_or(Ok(()), |root| make(root, 0o750)).and_then(|()| make(dir, 0o700));
    made.map_err(failed("make the directory of"))?;
    let mut open = fs::OpenOptions::new();
    let file =
        open.write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(failed("open"))?;
    lock::exclusive(file).map_err(|(_file, errno)| match errno {
        nix::Error::EWOULDBLOCK => OpenError::Taken(path.clone()),
        errno => failed("lock")(errno.into()),
    })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NetworkError> + Send + 'static,
) -> Result<T, NetworkError> {
    tokio::task::spawn_blocking(work).await.map_err(|_cancelled| NetworkError::Stopping)?
}

/// The sandboxes of own records.
fn sandboxes(records: Vec<berth_cni::Record>) -> BTreeSet<SandboxId> {
    records.into_iter().map(|record| SandboxId::from_known(record.key.container_id.as_str())).collect()
}

#[cfg(test)]
mod tests;
