//! The life of one exec.
//!
//! ```text
//! Added ──start──▶ Starting ──spawned──▶ Running ──exit──▶ Leaving ──written──▶ Stopped
//!   ▲                  │ failed
//!   └──────────────────┘            (an exit during Starting waits in the machine)
//! ```

use crate::event::ReqId;
use crate::reply::{Code, Exit, Failure, ProcessView, Status};

/// How long a killed `ExecSync` may take to go before its client is answered without it, milliseconds.
pub(crate) const EXEC_KILL_WAIT_MS: u64 = 2_000;

/// How long the runtime may take for the start of an `ExecSync` beyond the exec's own time, milliseconds: what a kubelet leaves to
/// its runtime (`ExecSync` of `staging/src/k8s.io/cri-client/pkg/remote_runtime.go`).
const EXEC_START_WITHIN_MS: u64 = 120_000;

#[derive(Debug)]
pub(crate) enum ExecLife {
    Added,
    Starting,
    Running {
        pid: u32,
    },
    /// It was reaped; its exit is told once what it wrote is where it belongs.
    Leaving {
        pid: u32,
        exit: Exit,
        until_ms: u64,
    },
    /// Its exit was told.
    Stopped {
        pid: u32,
        exit: Exit,
    },
}

/// The client that made the exec, and so learns of its end.
#[derive(Debug)]
pub(crate) enum Owner {
    /// containerd: events are published, and it deletes.
    Client,
    /// `ExecSync`: answered at the end.
    Sync { to: ReqId, limit: Limit },
    /// `Exec`: answered by its streams.
    Stream { to: ReqId },
    /// The client of a `Sync` or `Stream` is gone; the process is killed and nobody is told.
    Nobody,
}

/// Where an `ExecSync` stands with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    None,
    /// Its time begins with its start. Source: `execInContainer` of containerd's `internal/cri/server/container_execsync.go`.
    AfterStart {
        timeout_ms: u64,
        started_by_ms: u64,
    },
    KillAt(u64),
    GiveUpAt(u64),
}

impl Limit {
    /// Of an exec that is to be started now.
    pub(crate) fn of(timeout_ms: Option<u64>, now_ms: u64) -> Self {
        timeout_ms.map_or(Self::None, |timeout_ms| {
            let started_by_ms = now_ms.saturating_add(timeout_ms).saturating_add(EXEC_START_WITHIN_MS);
            Self::AfterStart { timeout_ms, started_by_ms }
        })
    }

    /// Of one that has started.
    pub(crate) fn started(self, now_ms: u64) -> Self {
        match self {
            Self::AfterStart { timeout_ms, .. } => Self::KillAt(now_ms.saturating_add(timeout_ms)),
            Self::None | Self::KillAt(_) | Self::GiveUpAt(_) => self,
        }
    }

    pub(crate) fn at(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::AfterStart { started_by_ms: at, .. } | Self::KillAt(at) | Self::GiveUpAt(at) => Some(at),
        }
    }

    pub(crate) fn timed_out(self) -> bool {
        match self {
            Self::None | Self::AfterStart { .. } | Self::KillAt(_) => false,
            Self::GiveUpAt(_) => true,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) life: ExecLife,
    pub(crate) owner: Owner,
    pub(crate) waiters: Vec<ReqId>,
}

impl Exec {
    pub(crate) fn new(life: ExecLife, owner: Owner) -> Self {
        Self { life, owner, waiters: Vec::new() }
    }

    /// The process, while it has been reported and not reaped.
    pub(crate) fn living_pid(&self) -> Option<u32> {
        match &self.life {
            ExecLife::Running { pid } => Some(*pid),
            ExecLife::Added | ExecLife::Starting | ExecLife::Leaving { .. } | ExecLife::Stopped { .. } => {
                None
            }
        }
    }

    /// Whether the init's exit must wait for this exec's.
    pub(crate) fn is_due(&self) -> bool {
        match &self.life {
            ExecLife::Starting | ExecLife::Running { .. } | ExecLife::Leaving { .. } => true,
            ExecLife::Added | ExecLife::Stopped { .. } => false,
        }
    }

    pub(crate) fn view(&self) -> ProcessView {
        match &self.life {
            ExecLife::Added | ExecLife::Starting => {
                ProcessView { pid: 0, status: Status::Created, exit: None }
            }
            ExecLife::Running { pid } | ExecLife::Leaving { pid, .. } => {
                ProcessView { pid: *pid, status: Status::Running, exit: None }
            }
            ExecLife::Stopped { pid, exit } => {
                ProcessView { pid: *pid, status: Status::Stopped, exit: Some(*exit) }
            }
        }
    }

    pub(crate) fn may_start(&self) -> Result<(), Failure> {
        match &self.life {
            ExecLife::Added => Ok(()),
            ExecLife::Starting | ExecLife::Running { .. } => Err(refuse("is started already")),
            ExecLife::Leaving { .. } | ExecLife::Stopped { .. } => Err(refuse("has exited")),
        }
    }

    /// The receiver of a signal.
    pub(crate) fn signal_target(&self) -> Result<u32, Failure> {
        match &self.life {
            ExecLife::Added | ExecLife::Starting => Err(refuse("is not started")),
            ExecLife::Running { pid } => Ok(*pid),
            ExecLife::Leaving { .. } | ExecLife::Stopped { .. } => Err(finished()),
        }
    }

    /// Its pid until it has exited, 0 before it is started.
    pub(crate) fn not_exited_pid(&self) -> Result<u32, Failure> {
        match &self.life {
            ExecLife::Added | ExecLife::Starting => Ok(0),
            ExecLife::Running { .. } | ExecLife::Leaving { .. } | ExecLife::Stopped { .. } => {
                self.signal_target()
            }
        }
    }

    /// The pid and end to answer a deletion with. An exec that was never started has neither.
    pub(crate) fn may_delete(&self) -> Result<(u32, Exit), Failure> {
        match &self.life {
            ExecLife::Added => Ok((0, Exit::default())),
            ExecLife::Starting | ExecLife::Running { .. } | ExecLife::Leaving { .. } => {
                Err(refuse("has not exited"))
            }
            ExecLife::Stopped { pid, exit } => Ok((*pid, *exit)),
        }
    }

    /// Its end, for a client that waits; `None` keeps it waiting.
    pub(crate) fn end(&self) -> Option<(u32, Exit)> {
        match &self.life {
            ExecLife::Added | ExecLife::Starting | ExecLife::Running { .. } | ExecLife::Leaving { .. } => {
                None
            }
            ExecLife::Stopped { pid, exit } => Some((*pid, *exit)),
        }
    }

    /// When something about it is due: its own time is over, or that of what it wrote.
    pub(crate) fn due_at(&self) -> Option<u64> {
        match (&self.life, &self.owner) {
            (ExecLife::Leaving { until_ms, .. }, _) => Some(*until_ms),
            (_, Owner::Sync { limit, .. }) => limit.at(),
            (_, Owner::Client | Owner::Stream { .. } | Owner::Nobody) => None,
        }
    }
}

fn refuse(why: &str) -> Failure {
    Failure::new(Code::FailedPrecondition, format!("the exec {why}"))
}

fn finished() -> Failure {
    Failure::new(Code::NotFound, "process already finished")
}
