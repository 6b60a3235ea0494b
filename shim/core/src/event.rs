//! What can happen to a shim.

use crate::effect::Scope;
use crate::id::Id;
use crate::reply::Failure;

/// One request on one connection, until it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReqId(pub u64);

/// One effect that takes time, until its outcome is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// The time at which an event is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Nanoseconds since the Unix epoch, for people and other programs.
    pub unix_ns: i64,
    /// Milliseconds of a clock that never jumps, for deadlines.
    pub mono_ms: u64,
}

/// A process of the pod: a task's init, or an exec in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// The container.
    pub task: Id,
    /// The exec; `None` for the container's init process.
    pub exec: Option<Id>,
}

impl Process {
    /// The init process of a task.
    pub fn init(task: &Id) -> Self {
        Self { task: task.clone(), exec: None }
    }

    /// An exec of a task.
    pub fn exec(task: &Id, exec: &Id) -> Self {
        Self { task: task.clone(), exec: Some(exec.clone()) }
    }
}

/// The client of an exec that the shim names itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecPurpose {
    /// `ExecSync`: answered with exit code and output; killed after this time.
    Sync {
        /// Milliseconds from its start until the process and all it started are killed; `None` means never.
        timeout_ms: Option<u64>,
    },
    /// `Exec`: streams carried on the request itself.
    Stream,
}

/// What the processes of a new task come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The program of its bundle.
    Bundle,
    /// A checkpoint, restored when the task is started.
    Checkpoint,
}

/// What a client asks for, as far as the machine decides on it. The shell keeps the rest of the request under its
/// [`ReqId`] until it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Create a task.
    Create(Id, Origin),
    /// Start a task's init or an added exec.
    Start(Process),
    /// Add an exec under a client's name.
    AddExec(Id, Id),
    /// Send a signal.
    Kill {
        /// Receiver.
        process: Process,
        /// Signal number up to 64; 0 only asks whether there is a receiver.
        signal: i32,
        /// The process alone, or everything in the container.
        scope: Scope,
    },
    /// Answer when the process has exited.
    Wait(Process),
    /// Remove a task or exec that has exited.
    Delete(Process),
    /// Describe a process.
    State(Process),
    /// Anything the shell can answer by itself, if the process has been created and not deleted (pids, statistics,
    /// closing stdin).
    IfCreated(Process),
    /// Anything the shell can answer by itself, if the process has not exited, started or not (resize).
    IfNotExited(Process),
    /// Anything the shell can answer by itself, if the process has been created and has not exited (attach).
    IfAlive(Process),
    /// Freeze a container.
    Pause(Id),
    /// Thaw a container.
    Resume(Id),
    /// Change a container's resources.
    Update(Id),
    /// Write a checkpoint of a container.
    Checkpoint(Id),
    /// containerd's liveness probe, which must succeed for any id.
    Connect(Option<Id>),
    /// End the process, if nothing lives in it.
    Shutdown,
    /// Make the sandbox known.
    CreateSandbox,
    /// Enter the pod's namespaces.
    StartSandbox,
    /// Stop every member and the sandbox.
    StopSandbox,
    /// Answer when the sandbox has stopped.
    WaitSandbox,
    /// Describe the sandbox.
    SandboxStatus,
    /// Release everything and end the process.
    ShutdownSandbox,
    /// Everything at once.
    Truth,
    /// What happened after this sequence number.
    Events {
        /// Last sequence number that the client knows.
        since: u64,
    },
    /// Run an exec that the shim names itself.
    RunExec(Id, ExecPurpose),
}

/// Everything that can happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client asks.
    Request(ReqId, Request),
    /// The connection of a request that is not answered yet is gone.
    Gone(ReqId),
    /// The first client has connected, or the last one has gone. A shim begins without any, and is told so.
    Clients {
        /// Whether there is one now.
        any: bool,
    },
    /// A child process was reaped. Runtime commands do not come here; they end in the two outcomes below.
    ChildExited {
        /// Process id in the shim's own pid namespace.
        pid: u32,
        /// Exit status, or 128 plus the signal.
        code: u32,
    },
    /// Outcome of [`Action::Create`], [`Action::Restore`], [`Action::Exec`] and [`Action::StartSandbox`]: the pid of what
    /// was made.
    ///
    /// [`Action::Create`]: crate::Action::Create
    /// [`Action::Restore`]: crate::Action::Restore
    /// [`Action::Exec`]: crate::Action::Exec
    /// [`Action::StartSandbox`]: crate::Action::StartSandbox
    Spawned {
        /// The effect.
        op: OpId,
        /// The pid, or why there is none.
        result: Result<u32, Failure>,
    },
    /// Outcome of every other action.
    Finished {
        /// The effect.
        op: OpId,
        /// Success or why not.
        result: Result<(), Failure>,
    },
    /// Everything that a process had written when it was [drained](crate::Effect::Drain) is in its log or file.
    Drained(Process),
    /// The container's out-of-memory kill counter was read.
    OomObserved {
        /// The container.
        task: Id,
        /// Kills since the container was created.
        kills: u64,
    },
    /// The time of [`Machine::poll_timeout`](crate::Machine::poll_timeout) has come.
    Tick,
}
