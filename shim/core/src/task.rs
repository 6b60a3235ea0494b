//! The life of one task.
//!
//! ```text
//! Creating ─▶ Created ─▶ Starting ─▶ Running ◀──▶ Switching ◀──▶ Paused
//!                │           │          └──────────────┴───────────┐
//!                └───────────┴────────── exit ─▶ Leaving ─▶ Stopped ◀┘
//!                                        (execs first)         │
//!                Created, Stopped ── delete ─▶ Deleting ─▶ gone
//! ```

use std::collections::BTreeMap;

use crate::event::ReqId;
use crate::exec::Exec;
use crate::id::Id;
use crate::reply::{Code, Exit, Failure, ProcessView, Status, TaskView};

/// How long the exit of an init waits for the exits of its execs, which were killed with it, milliseconds.
pub(crate) const EXECS_WAIT_MS: u64 = 2_000;
/// Execs of one task at a time, counting those that have exited and are not deleted.
pub(crate) const EXECS_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) enum Life {
    /// The runtime creates it.
    Creating,
    /// Its init waits to be started.
    Created { pid: u32 },
    /// The runtime starts it; an exit that overtakes the report is kept here.
    Starting { pid: u32, exit: Option<Exit> },
    /// Its init runs.
    Running { pid: u32 },
    /// The runtime freezes or thaws it.
    Switching { pid: u32, to: Switch },
    /// Frozen.
    Paused { pid: u32 },
    /// Its init was reaped; the exits of its execs are told first.
    Leaving { pid: u32, exit: Exit, until_ms: u64 },
    /// Its exit was told.
    Stopped { pid: u32, exit: Exit },
    /// The runtime forgets it; done when it has and the exit was told.
    Deleting { pid: u32, exit: Option<Exit>, forgotten: bool, from: Option<ReqId> },
}

/// The two ways between running and frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Switch {
    Pause,
    Resume,
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) life: Life,
    pub(crate) execs: BTreeMap<Id, Exec>,
    pub(crate) waiters: Vec<ReqId>,
    pub(crate) oom_kills: u64,
    pub(crate) created_at_ns: i64,
    pub(crate) started_at_ns: Option<i64>,
}

impl Task {
    pub(crate) fn new(created_at_ns: i64) -> Self {
        Self {
            life: Life::Creating,
            execs: BTreeMap::new(),
            waiters: Vec::new(),
            oom_kills: 0,
            created_at_ns,
            started_at_ns: None,
        }
    }

    /// The init process, while it has been reported and not reaped.
    pub(crate) fn living_pid(&self) -> Option<u32> {
        match &self.life {
            Life::Created { pid }
            | Life::Starting { pid, exit: None }
            | Life::Running { pid }
            | Life::Switching { pid, .. }
            | Life::Paused { pid }
            | Life::Deleting { pid, exit: None, .. } => Some(*pid),
            Life::Creating
            | Life::Starting { exit: Some(_), .. }
            | Life::Leaving { .. }
            | Life::Stopped { .. }
            | Life::Deleting { exit: Some(_), .. } => None,
        }
    }

    /// The init's pid from creation to deletion, also after its exit; `None` while it is being created.
    ///
    /// containerd takes a task without pids for a leaked one after its own restart, and shuts its shim down
    /// (`core/runtime/v2/shim_load.go`).
    pub(crate) fn made_pid(&self) -> Option<u32> {
        match &self.life {
            Life::Creating => None,
            Life::Created { pid }
            | Life::Starting { pid, .. }
            | Life::Running { pid }
            | Life::Switching { pid, .. }
            | Life::Paused { pid }
            | Life::Leaving { pid, .. }
            | Life::Stopped { pid, .. }
            | Life::Deleting { pid, .. } => Some(*pid),
        }
    }

    pub(crate) fn view(&self) -> Option<ProcessView> {
        let view = |pid: &u32, status, exit| Some(ProcessView { pid: *pid, status, exit });
        match &self.life {
            Life::Creating => None,
            Life::Created { pid } => view(pid, Status::Created, None),
            Life::Starting { pid, .. } => view(pid, Status::Created, None),
            Life::Running { pid } | Life::Leaving { pid, .. } => view(pid, Status::Running, None),
            Life::Switching { pid, to: Switch::Pause } => view(pid, Status::Pausing, None),
            Life::Switching { pid, to: Switch::Resume } | Life::Paused { pid } => {
                view(pid, Status::Paused, None)
            }
            Life::Stopped { pid, exit } => view(pid, Status::Stopped, Some(*exit)),
            Life::Deleting { pid, exit, .. } => view(pid, Status::Stopped, *exit),
        }
    }

    pub(crate) fn task_view(&self, id: &Id) -> Option<TaskView> {
        self.view().map(|init| TaskView {
            id: id.clone(),
            init,
            created_at_ns: self.created_at_ns,
            started_at_ns: self.started_at_ns,
        })
    }

    pub(crate) fn may_start(&self) -> Result<u32, Failure> {
        match &self.life {
            Life::Created { pid } => Ok(*pid),
            Life::Creating => Err(refuse("is being created")),
            Life::Starting { .. } | Life::Running { .. } | Life::Switching { .. } | Life::Paused { .. } => {
                Err(refuse("is started already"))
            }
            Life::Leaving { .. } | Life::Stopped { .. } => Err(refuse("has exited")),
            Life::Deleting { .. } => Err(refuse("is being deleted")),
        }
    }

    /// Whether an exec may be started in it, or a process of it attached to.
    pub(crate) fn must_run(&self) -> Result<u32, Failure> {
        match &self.life {
            Life::Running { pid } => Ok(*pid),
            Life::Creating | Life::Created { .. } | Life::Starting { .. } => {
                Err(refuse("is not running yet"))
            }
            Life::Switching { .. } | Life::Paused { .. } => Err(refuse("is paused")),
            Life::Leaving { .. } | Life::Stopped { .. } | Life::Deleting { .. } => Err(refuse("has exited")),
        }
    }

    /// The receiver of a signal.
    pub(crate) fn signal_target(&self) -> Result<u32, Failure> {
        match (&self.life, self.living_pid()) {
            (_, Some(pid)) => Ok(pid),
            (Life::Creating, None) => Err(refuse("is being created")),
            (
                Life::Created { .. }
                | Life::Starting { .. }
                | Life::Running { .. }
                | Life::Switching { .. }
                | Life::Paused { .. }
                | Life::Leaving { .. }
                | Life::Stopped { .. }
                | Life::Deleting { .. },
                None,
            ) => Err(Failure::new(Code::NotFound, "process already finished")),
        }
    }

    pub(crate) fn must_be_paused(&self) -> Result<u32, Failure> {
        match &self.life {
            Life::Paused { pid } => Ok(*pid),
            Life::Creating
            | Life::Created { .. }
            | Life::Starting { .. }
            | Life::Running { .. }
            | Life::Switching { .. }
            | Life::Leaving { .. }
            | Life::Stopped { .. }
            | Life::Deleting { .. } => Err(refuse("is not paused")),
        }
    }

    /// The next life when the task is deleted, with the pid and, for a client, the request to answer.
    pub(crate) fn delete(&self, from: ReqId) -> Result<Life, Failure> {
        match &self.life {
            Life::Created { pid } => Ok(self.deleting(*pid, None, Some(from))),
            Life::Stopped { pid, exit } => Ok(self.deleting(*pid, Some(*exit), Some(from))),
            Life::Creating => Err(refuse("is being created")),
            Life::Starting { .. }
            | Life::Running { .. }
            | Life::Switching { .. }
            | Life::Paused { .. }
            | Life::Leaving { .. } => Err(refuse("has not exited")),
            Life::Deleting { .. } => Err(refuse("is being deleted")),
        }
    }

    /// The next life when everything is released; `None` while an outcome or the exits of execs are awaited.
    pub(crate) fn release(&self) -> Option<Life> {
        match &self.life {
            Life::Created { pid } | Life::Running { pid } | Life::Paused { pid } => {
                Some(self.deleting(*pid, None, None))
            }
            Life::Stopped { pid, exit } => Some(self.deleting(*pid, Some(*exit), None)),
            Life::Creating
            | Life::Starting { .. }
            | Life::Switching { .. }
            | Life::Leaving { .. }
            | Life::Deleting { .. } => None,
        }
    }

    /// Its end, for a client that waits; `None` keeps it waiting.
    pub(crate) fn end(&self) -> Option<(u32, Exit)> {
        match &self.life {
            Life::Stopped { pid, exit } | Life::Deleting { pid, exit: Some(exit), .. } => Some((*pid, *exit)),
            Life::Creating
            | Life::Created { .. }
            | Life::Starting { .. }
            | Life::Running { .. }
            | Life::Switching { .. }
            | Life::Paused { .. }
            | Life::Leaving { .. }
            | Life::Deleting { exit: None, .. } => None,
        }
    }

    fn deleting(&self, pid: u32, exit: Option<Exit>, from: Option<ReqId>) -> Life {
        Life::Deleting { pid, exit, forgotten: false, from }
    }
}

pub(crate) fn refuse(why: &str) -> Failure {
    Failure::new(Code::FailedPrecondition, format!("the container {why}"))
}
