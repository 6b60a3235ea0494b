//! Connections to the pods' shims: one task per sandbox, which tells the core what happens in it.
//!
//! A connection begins with the shim's whole state, so nothing that happened while there was none is missed; after that
//! its events come by a call that waits. A shim that is gone is reported once, and its task ends.

mod connections;
mod process;
mod streams;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_core::{
    event::Event,
    id::{ContainerId, SandboxId},
    observation::{Exit, ObservedTask, SandboxReport},
    paths,
    pod::{
        gone::{Disconnected, Next, Presence, QUEUE_RETRY, Reconnection, Unreached},
        port::sandbox::SHIM_ANSWER,
    },
};
use berth_proto::{
    TASK_V3,
    client::{CallError, Client, ShimClient},
    shim::{StateRequest, StateResponse, Task, TaskStatus, event::What, shim_service},
    task::{DeleteRequest, DeleteResponse, KillRequest, UpdateTaskRequest, task_service},
};
use containerd_client::types::v1::{Process, Status};
use jiff::Timestamp;
use tokio::{runtime::Handle, sync::mpsc, task::AbortHandle};

use self::{connections::Connections, process::Meant};
use super::{exits, on_time::on_time};
use crate::{causes::with_causes, clock};

/// What a shim calls itself when its pod runs (containerd, `runtime.sandbox.v1`).
const READY: &str = "SANDBOX_READY";

/// Longest wait for the deletion of a task that has not been started.
const DELETE_TIMEOUT: Duration = Duration::from_secs(10);

/// Tasks that follow shims, one per sandbox. Clones share them.
#[derive(Debug, Clone)]
pub struct Shims(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    run_dir: String,
    containerd: PathBuf,
    events: mpsc::Sender<Event>,
    tasks: Mutex<BTreeMap<SandboxId, AbortHandle>>,
    connections: Connections,
}

/// What one look at a shim showed.
#[derive(Debug)]
pub(super) enum ShimLook {
    /// This.
    Answered(ShimState),
    /// It is there and does not answer, though the agent ran on time.
    Silent,
    /// It could not be asked, or not understood: nothing is known.
    NotAsked(CallError),
    /// Nobody listens. What it had written down of ends.
    Gone(Vec<(ContainerId, Exit)>),
}

/// Whether a shim answers.
#[derive(Debug)]
pub enum Answer {
    /// It does.
    Given,
    /// Nobody listens.
    Gone,
    /// None came in time.
    None,
    /// It could not be asked: the agent lacks what it takes (descriptors, memory), or does not understand it.
    NotAsked(CallError),
}

/// A shim's own account of its pod.
#[derive(Debug)]
pub(super) struct ShimState {
    pub(super) ready: bool,
    pub(super) pid: u32,
    seq: u64,
    tasks: Vec<(ContainerId, ObservedTask)>,
}

impl ShimState {
    /// The task of a container; `Absent` when there is none.
    pub(super) fn task(&self, id: &str) -> ObservedTask {
        let found = self.tasks.iter().find(|(known, _)| known.as_str() == id);
        found.map_or(ObservedTask::Absent, |(_, task)| task.clone())
    }

    fn of(state: &StateResponse) -> Self {
        Self {
            ready: state.sandbox_state == READY,
            pid: state.shim_pid,
            seq: state.seq,
            tasks: state
                .tasks
                .iter()
                .map(|task| (ContainerId::from_known(&task.id), observed_task(task)))
                .collect(),
        }
    }

    /// Asks for it, without a limit. A queue of callers that is full is waited for.
    async fn ask(socket: &Path) -> Result<Self, CallError> {
        let client = loop {
            match Client::connect(socket).await {
                Err(error) if connect_error(&error) == Some(io::ErrorKind::WouldBlock) => {
                    tokio::time::sleep(QUEUE_RETRY).await;
                }
                connected => break connected?,
            }
        };
        let state = client.call(shim_service::NAME, shim_service::STATE, &StateRequest {}, None).await?;
        Ok(Self::of(&state))
    }
}

impl Shims {
    /// Follows no shim yet. What the shims of the containerd at a socket say goes to `events`. It is to be called in the agent's main
    /// runtime, where the connections are kept that all share.
    #[must_use]
    pub fn new(run_dir: &str, containerd: &Path, events: mpsc::Sender<Event>) -> Self {
        let (run_dir, containerd) = (run_dir.to_owned(), containerd.to_owned());
        let (tasks, connections) = (Mutex::default(), Connections::in_runtime(Handle::current()));
        Self(Arc::new(Inner { run_dir, containerd, events, tasks, connections }))
    }

    /// The directory of the agent's runtime state.
    pub(super) fn run_dir(&self) -> &str {
        &self.0.run_dir
    }

    /// The socket of a sandbox's shim.
    #[must_use]
    pub fn socket(&self, id: &SandboxId) -> PathBuf {
        PathBuf::from(paths::shim_socket(&self.0.run_dir, id))
    }

    /// What tells the processes of a sandbox's shim from all others.
    pub(crate) fn meant(&self, id: &SandboxId) -> Meant {
        Meant { sandbox: id.to_string(), containerd: self.0.containerd.clone(), socket: self.socket(id) }
    }

    /// Follows a sandbox's shim until it is gone or [`forget`](Self::forget) is called. Does nothing when it is followed
    /// already.
    pub fn follow(&self, id: &SandboxId) {
        let mut tasks = self.tasks();
        if tasks.get(id).is_some_and(|task| !task.is_finished()) {
            return;
        }
        let follower = Follower { meant: self.meant(id), id: id.clone(), events: self.0.events.clone() };
        tasks.insert(id.clone(), tokio::spawn(follower.run()).abort_handle());
    }

    /// The sandboxes whose shims are followed.
    pub(super) fn followed(&self) -> Vec<SandboxId> {
        self.tasks().keys().cloned().collect()
    }

    /// Stops following, before the sandbox is removed: its end is then no loss.
    pub fn forget(&self, id: &SandboxId) {
        self.0.connections.forget(id);
        if let Some(task) = self.tasks().remove(id) {
            task.abort();
        }
    }

    /// What the shim says of one container now. `None` when the shim has gone and left no end of it.
    pub async fn task(&self, sandbox: &SandboxId, container: &ContainerId) -> Option<ObservedTask> {
        let look = self.look(sandbox).await;
        let task = look.task(container.as_str());
        let is_gone = matches!(look, ShimLook::Gone(_)) && task == ObservedTask::Absent;
        (!is_gone).then_some(task)
    }

    /// Tells what the shim of a sandbox that is lost wrote down of ends. Whoever follows the shim may find its loss later.
    pub async fn tell_ends(&self, id: &SandboxId) {
        for (container, exit) in recorded_exits(&self.socket(id)).await {
            let report = SandboxReport::Exited { id: container, exit };
            // Fails only when the loop has ended, and with it everybody who would want to know.
            drop(self.0.events.send(Event::Sandbox { id: id.clone(), report }).await);
        }
    }

    /// Whether a shim answers.
    pub async fn ask(&self, sandbox: &SandboxId) -> Answer {
        match self.look(sandbox).await {
            ShimLook::Answered(_) => Answer::Given,
            ShimLook::Gone(_) => Answer::Gone,
            ShimLook::Silent => Answer::None,
            ShimLook::NotAsked(error) => Answer::NotAsked(error),
        }
    }

    /// Removes what a shim wrote down of the end of a container.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn forget_exit(&self, sandbox: &SandboxId, container: &ContainerId) -> io::Result<()> {
        exits::remove(&exits::dir(&self.socket(sandbox)), container)
    }

    /// Removes the files of a shim that has gone: its socket, which one that was killed leaves, and ends of containers.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn remove_files(&self, sandbox: &SandboxId) -> io::Result<()> {
        let socket = self.socket(sandbox);
        exits::remove_all(&exits::dir(&socket))?;
        match std::fs::remove_file(&socket) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Sends a signal to a container without containerd. Waits for the answer as long as the shim takes.
    ///
    /// # Errors
    /// See [`CallError`]; the status `NotFound` when the container has ended.
    pub async fn signal(&self, sandbox: &SandboxId, kill: &KillRequest) -> Result<(), CallError> {
        let client = Client::connect(&self.socket(sandbox)).await?;
        client.call(TASK_V3, task_service::KILL, kill, None).await
    }

    /// Gives a container other resources without containerd. Waits for the answer as long as the shim takes.
    ///
    /// # Errors
    /// See [`CallError`]; the status `NotFound` when the container has ended, `FailedPrecondition` when an earlier change has not.
    pub async fn update(&self, sandbox: &SandboxId, update: &UpdateTaskRequest) -> Result<(), CallError> {
        let client = Client::connect(&self.socket(sandbox)).await?;
        client.call(TASK_V3, task_service::UPDATE, update, None).await
    }

    /// Deletes a container's task without containerd. One that runs is left alone.
    ///
    /// # Errors
    /// See [`CallError`]; the status `NotFound` when there is none.
    pub async fn delete(&self, sandbox: &SandboxId, container: &ContainerId) -> Result<(), CallError> {
        let client = Client::connect(&self.socket(sandbox)).await?;
        let delete = DeleteRequest { id: container.to_string(), exec_id: String::new() };
        client
            .call(TASK_V3, task_service::DELETE, &delete, Some(DELETE_TIMEOUT))
            .await
            .map(|_: DeleteResponse| ())
    }

    pub(super) async fn look(&self, id: &SandboxId) -> ShimLook {
        let socket = self.socket(id);
        match on_time(SHIM_ANSWER, ShimState::ask(&socket)).await {
            Some(Ok(state)) => ShimLook::Answered(state),
            Some(Err(error)) => match unreached(&error, &self.meant(id)).await.presence() {
                Presence::Gone => ShimLook::Gone(recorded_exits(&socket).await),
                Presence::There => ShimLook::Silent,
                Presence::Unknown => ShimLook::NotAsked(error),
            },
            None => ShimLook::Silent,
        }
    }

    fn tasks(&self) -> MutexGuard<'_, BTreeMap<SandboxId, AbortHandle>> {
        self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Follower {
    id: SandboxId,
    meant: Meant,
    events: mpsc::Sender<Event>,
}

/// How a connection ended.
enum SessionEnd {
    /// The sandbox was stopped, and not by us: its containers have ended.
    Stopped,
    /// The connection was lost after it had worked.
    Lost(CallError),
    /// It was made, and lost before the first answer.
    Unanswered(CallError),
    /// There was none.
    Unreached(CallError),
}

impl Follower {
    async fn run(self) {
        let mut reconnection = Reconnection::default();
        loop {
            let (error, failure) = match self.session().await {
                SessionEnd::Stopped => break,
                SessionEnd::Lost(error) => (error, Disconnected::Lost),
                SessionEnd::Unanswered(error) => (error, Disconnected::Unanswered),
                SessionEnd::Unreached(error) => {
                    let why = unreached(&error, &self.meant).await;
                    (error, Disconnected::Unreached(why))
                }
            };
            tracing::debug!(sandbox = %self.id, ?failure, error = with_causes(&error), "connection to the shim ended");
            match reconnection.after(failure) {
                Next::Retry(delay) => tokio::time::sleep(delay).await,
                Next::GiveUp => break,
            }
        }
        tracing::info!(sandbox = %self.id, "the shim is gone");
        for (id, exit) in recorded_exits(&self.meant.socket).await {
            self.report(SandboxReport::Exited { id, exit }).await;
        }
        self.report(SandboxReport::Lost { at: Timestamp::now() }).await;
    }

    async fn session(&self) -> SessionEnd {
        let client = match ShimClient::connect(&self.meant.socket).await {
            Ok(client) => client,
            Err(error) => return SessionEnd::Unreached(error),
        };
        let mut has_answered = false;
        loop {
            let asked_at = clock::mono();
            let state = match client.state().await {
                Ok(state) => ShimState::of(&state),
                Err(error) if has_answered => return SessionEnd::Lost(error),
                Err(error) => return SessionEnd::Unanswered(error),
            };
            has_answered = true;
            if !state.ready {
                return SessionEnd::Stopped;
            }
            let mut since = state.seq;
            self.report(SandboxReport::Resync { asked_at, tasks: state.tasks }).await;
            loop {
                match client.events(since).await {
                    Ok(Some(events)) => {
                        for event in events {
                            since = event.seq;
                            match event.what {
                                Some(What::Exited(task)) => self.exited(&task).await,
                                Some(What::SandboxStopped(_)) => return SessionEnd::Stopped,
                                Some(
                                    What::Created(_)
                                    | What::Started(_)
                                    | What::Deleted(_)
                                    | What::Oom(_)
                                    | What::Paused(_)
                                    | What::Resumed(_),
                                )
                                | None => {}
                            }
                        }
                    }
                    Ok(None) => break,
                    Err(error) => return SessionEnd::Lost(error),
                }
            }
        }
    }

    async fn exited(&self, task: &Task) {
        if let ObservedTask::Exited(exit) = observed_task(task) {
            self.report(SandboxReport::Exited { id: ContainerId::from_known(&task.id), exit }).await;
        }
    }

    async fn report(&self, report: SandboxReport) {
        // Fails only when the loop has ended, and with it everybody who would want to know.
        drop(self.events.send(Event::Sandbox { id: self.id.clone(), report }).await);
    }
}

/// Why no connection was made, where none was.
fn connect_error(error: &CallError) -> Option<io::ErrorKind> {
    if let CallError::Connect { source, .. } = error { Some(source.kind()) } else { None }
}

/// Why a shim was not reached. Its process is looked for only where its socket is missing.
async fn unreached(error: &CallError, meant: &Meant) -> Unreached {
    match connect_error(error) {
        Some(io::ErrorKind::ConnectionRefused) => Unreached::Refused,
        Some(io::ErrorKind::NotFound) => {
            let meant = meant.clone();
            // Fails only when the agent is stopping.
            let lives = tokio::task::spawn_blocking(move || meant.lives()).await.unwrap_or(true);
            Unreached::NoSocket { is_process_there: lives }
        }
        Some(io::ErrorKind::WouldBlock) => Unreached::QueueFull,
        Some(_) | None => Unreached::NotAsked,
    }
}

impl ShimLook {
    /// Whether nothing is known of what is in the sandbox, though its shim may be there.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self, Self::Silent | Self::NotAsked(_))
    }

    /// What became of a container.
    pub(super) fn task(&self, id: &str) -> ObservedTask {
        match self {
            Self::Answered(state) => state.task(id),
            Self::Silent | Self::NotAsked(_) => ObservedTask::Unknown,
            Self::Gone(exits) => {
                let exit = exits.iter().find(|(known, _)| known.as_str() == id);
                exit.map_or(ObservedTask::Absent, |(_, exit)| ObservedTask::Exited(*exit))
            }
        }
    }
}

/// What a shim that has gone wrote down of ends.
async fn recorded_exits(socket: &Path) -> Vec<(ContainerId, Exit)> {
    let dir = exits::dir(socket);
    // Fails only when the agent is stopping.
    tokio::task::spawn_blocking(move || exits::read_all(&dir)).await.unwrap_or_default()
}

/// How a task ended, as a shim tells of it or wrote it down. What is on disk does not tell when it started.
pub(super) fn exit(task: &Task) -> Option<Exit> {
    let exit = task.exit.as_ref().filter(|_| task.status() == TaskStatus::Stopped)?;
    Some(Exit {
        code: exit.code,
        started_at: clock::wall(task.started_at),
        finished_at: clock::wall(exit.exited_at).unwrap_or_else(Timestamp::now),
        oom_killed: exit.oom_kills > 0,
    })
}

/// A task as the shim tells of it.
pub(super) fn observed_task(task: &Task) -> ObservedTask {
    match task.status() {
        TaskStatus::Created => ObservedTask::Created,
        TaskStatus::Starting => ObservedTask::Starting,
        TaskStatus::Running | TaskStatus::Paused => ObservedTask::Running {
            pid: task.pid,
            started_at: clock::wall(task.started_at).unwrap_or_else(Timestamp::now),
        },
        TaskStatus::Stopped => match exit(task) {
            Some(exit) if exit.started_at.is_some() => ObservedTask::Exited(exit),
            Some(_) => ObservedTask::Created,
            None => ObservedTask::Unknown,
        },
        TaskStatus::Unknown => ObservedTask::Unknown,
    }
}

/// A task as containerd tells of it, which is all there is of tasks under other shims. It does not tell when they
/// started: `created_at`, of the container's record, comes close.
pub(super) fn observed_process(process: &Process, created_at: Option<Timestamp>) -> ObservedTask {
    match process.status() {
        Status::Created => ObservedTask::Created,
        Status::Running | Status::Paused | Status::Pausing => {
            ObservedTask::Running { pid: process.pid, started_at: created_at.unwrap_or_else(Timestamp::now) }
        }
        Status::Stopped => ObservedTask::Exited(Exit {
            code: process.exit_status,
            started_at: created_at,
            finished_at: process.exited_at.as_ref().and_then(clock::of_proto).unwrap_or_else(Timestamp::now),
            oom_killed: false,
        }),
        Status::Unknown => ObservedTask::Unknown,
    }
}

#[cfg(test)]
mod tests;
