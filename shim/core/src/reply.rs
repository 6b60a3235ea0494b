//! What a shim says to its clients.

use thiserror::Error;

use crate::feed::FeedItem;
use crate::id::Id;

/// Why a request failed, in gRPC's terms, which containerd maps to its own errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The request itself is wrong.
    InvalidArgument,
    /// There is no such thing, or no longer.
    NotFound,
    /// There is such a thing already.
    AlreadyExists,
    /// Not in this state.
    FailedPrecondition,
    /// Not offered.
    Unimplemented,
    /// A bound of the shim is reached.
    ResourceExhausted,
    /// The effect failed.
    Internal,
}

/// An error answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Failure {
    /// Kind, for programs.
    pub code: Code,
    /// Text, for people.
    pub message: String,
}

impl Failure {
    /// An error answer.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// How and when a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exit {
    /// Exit status, or 128 plus the signal.
    pub code: u32,
    /// Nanoseconds since the Unix epoch.
    pub at_ns: i64,
    /// Out-of-memory kills counted in the container's cgroup by then.
    pub oom_kills: u64,
}

/// Status of a process, in the words of `containerd.v1.types.Status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Made but not running its program yet.
    Created,
    /// The runtime is asked to run its program, and has not answered. Containerd has no word for it: to it, it is created.
    Starting,
    /// Running.
    Running,
    /// Has exited.
    Stopped,
    /// Frozen.
    Paused,
    /// On its way to being frozen.
    Pausing,
}

/// One process as `State` describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessView {
    /// Pid, 0 when there is none yet.
    pub pid: u32,
    /// Status.
    pub status: Status,
    /// Its end, once it has exited.
    pub exit: Option<Exit>,
}

impl ProcessView {
    /// The view of an exec in a container of this status: what is frozen is frozen with everything in it
    /// (`process/exec.go`, `Status`).
    pub(crate) fn within(self, container: Status) -> Self {
        match container {
            Status::Paused | Status::Pausing => Self { status: container, ..self },
            Status::Created | Status::Starting | Status::Running | Status::Stopped => self,
        }
    }
}

/// One task with its times, for the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskView {
    /// The container.
    pub id: Id,
    /// Its init.
    pub init: ProcessView,
    /// When it was created, nanoseconds since the Unix epoch.
    pub created_at_ns: i64,
    /// When it was started, if it was.
    pub started_at_ns: Option<i64>,
}

/// State of a sandbox, with the two strings that containerd knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxState {
    /// Started and not stopped.
    Ready,
    /// Anything else.
    NotReady,
}

impl SandboxState {
    /// The string that containerd and CRI compare with.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "SANDBOX_READY",
            Self::NotReady => "SANDBOX_NOTREADY",
        }
    }
}

/// The sandbox as `SandboxStatus` describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SandboxView {
    /// The process whose namespaces are the pod's, 0 before the start.
    pub pid: u32,
    /// State.
    pub state: SandboxState,
    /// Nanoseconds since the Unix epoch.
    pub created_at_ns: i64,
    /// When it stopped, if it has.
    pub exited_at_ns: Option<i64>,
}

/// Everything at once, as of event number `seq`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truth {
    /// The sandbox, if there is one.
    pub sandbox: Option<SandboxView>,
    /// Number of the last event that is in here.
    pub seq: u64,
    /// Every task that has been made and not deleted.
    pub tasks: Vec<TaskView>,
}

/// A good answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Done.
    Empty,
    /// The pid of a process; 0 when there is none.
    Pid(u32),
    /// The end of a process (wait, delete).
    Exited {
        /// Its pid.
        pid: u32,
        /// Its end.
        exit: Exit,
    },
    /// A process.
    State(ProcessView),
    /// The sandbox (start, status).
    Sandbox(SandboxView),
    /// When the sandbox stopped.
    SandboxExited {
        /// Nanoseconds since the Unix epoch.
        at_ns: i64,
    },
    /// Everything.
    Truth(Truth),
    /// What happened, in order.
    Events(Vec<FeedItem>),
    /// The client's number is not in the ring: read everything again.
    Resync,
    /// An `ExecSync` has ended; the shell adds the output.
    ExecDone {
        /// The exec that the shim named.
        exec: Id,
        /// Exit code.
        code: u32,
        /// Ended by its timeout.
        timed_out: bool,
    },
    /// A streamed exec runs under this name; the request stays open until `EndStreams`.
    ExecStreams {
        /// The exec that the shim named.
        exec: Id,
    },
}
