//! The life of one task.
//!
//! ```text
//! Creating ─▶ Created ──▶ Starting ──▶ Running ◀──▶ Switching ◀──▶ Paused ◀─┐
//!     │          │           │          ▲  │ ▲ └────────────┬──────────┴─┐  │
//!     │          └───────────┴──────────┼──┼─┼──── exit ─▶ Leaving ─▶ Stopped│
//!     │                                 │  │ └──────────────┐            │  │
//!     └───▶ Prepared ──▶ Restoring ─────┘  └───▶ Saving ────┴────────────┼──┘
//!                                                                        │
//!           Prepared, Created, Stopped ── delete ─▶ Deleting ─▶ gone ◀───┘
//! ```
//!
//! A container that is made from a checkpoint has no process before it is started: its start is the restore.

use std::collections::BTreeMap;

use crate::event::ReqId;
use crate::exec::Exec;
use crate::id::Id;
use crate::reply::{Code, Exit, Failure, ProcessView, Status, TaskView};

/// How long the exit of an init waits for its last output to be on disk, milliseconds: whoever learns of the exit reads
/// them next. A disk that takes longer does not keep the exit from being told.
pub(crate) const OUTPUT_WAIT_MS: u64 = 2_000;
/// How long the exit of an init waits for the exits of its execs, which were killed with it, milliseconds.
pub(crate) const EXECS_WAIT_MS: u64 = 2_000;
/// Execs of one task at a time, counting those that have exited and are not deleted.
pub(crate) const EXECS_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) enum Life {
    /// The runtime creates it.
    Creating { then: Next },
    /// Its init waits to be started.
    Created { pid: u32 },
    /// Everything but the processes of its checkpoint is there.
    Prepared,
    /// The runtime brings the processes of its checkpoint back.
    Restoring,
    /// The runtime starts it; an exit that overtakes the report is kept here.
    Starting { pid: u32, exit: Option<Exit> },
    /// Its init runs.
    Running { pid: u32 },
    /// The runtime freezes or thaws it.
    Switching { pid: u32, to: Switch },
    /// Frozen.
    Paused { pid: u32 },
    /// The runtime writes a checkpoint of it; an exit that overtakes the report, as the end that was asked for may, is
    /// kept here.
    Saving { pid: u32, from: Saved, exit: Option<Exit> },
    /// Its init was reaped, which is recorded; the exits of its execs are told first, and what it wrote is written.
    Leaving { pid: u32, exit: Exit, until_ms: u64 },
    /// Its exit was told.
    Stopped { pid: u32, exit: Exit },
    /// The runtime forgets it; done when it has and the exit was told.
    Deleting { pid: u32, init: Init, forgotten: Option<Forgotten>, from: Option<ReqId> },
}

/// What follows the creation of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing.
    Stay,
    /// Its deletion: containerd asks for it as soon as nobody wants the creation any more (`core/runtime/v2/task_manager.go`),
    /// and the runc shim makes it wait (`task/service.go`).
    Delete { from: Option<ReqId> },
}

/// The init of a container that is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Init {
    /// The checkpoint was never restored.
    Never,
    /// Killed, and not reaped yet.
    Living,
    /// Reaped; the exits of its execs are told first.
    Leaving { exit: Exit, until_ms: u64 },
    /// Its exit was told.
    Told(Exit),
}

/// What was written by an init.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// More may come.
    Open,
    /// All of it is on its way to the disk, which its exit waits for.
    Draining,
}

/// How the runtime's part of a deletion has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forgotten {
    /// It knows the container no more.
    ByRuntime,
    /// It failed, also by force, and nobody waits for it to succeed.
    ByNobody,
}

/// What a container was doing when its checkpoint was asked for, and goes on doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Saved {
    Running,
    Paused,
}

/// What the start of a container is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    Start { pid: u32 },
    Restore,
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
    /// Its init was sent a SIGKILL, which a freezing that came later must not keep from it.
    pub(crate) doomed: bool,
    pub(crate) output: Output,
    pub(crate) created_at_ns: i64,
    pub(crate) started_at_ns: Option<i64>,
}

impl Task {
    pub(crate) fn new(created_at_ns: i64) -> Self {
        Self {
            life: Life::Creating { then: Next::Stay },
            execs: BTreeMap::new(),
            waiters: Vec::new(),
            oom_kills: 0,
            doomed: false,
            output: Output::Open,
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
            | Life::Saving { pid, exit: None, .. }
            | Life::Deleting { pid, init: Init::Living, .. } => Some(*pid),
            Life::Creating { .. }
            | Life::Prepared
            | Life::Restoring
            | Life::Starting { exit: Some(_), .. }
            | Life::Saving { exit: Some(_), .. }
            | Life::Leaving { .. }
            | Life::Stopped { .. }
            | Life::Deleting { init: Init::Never | Init::Leaving { .. } | Init::Told(_), .. } => None,
        }
    }

    /// The init's pid from creation to deletion, also after its exit; `None` while it is being created, 0 before a
    /// checkpoint is restored.
    ///
    /// containerd takes a task without pids for a leaked one after its own restart, and shuts its shim down
    /// (`core/runtime/v2/shim_load.go`).
    pub(crate) fn created_pid(&self) -> Option<u32> {
        match &self.life {
            Life::Creating { .. } => None,
            Life::Prepared | Life::Restoring => Some(0),
            Life::Created { pid }
            | Life::Starting { pid, .. }
            | Life::Running { pid }
            | Life::Switching { pid, .. }
            | Life::Paused { pid }
            | Life::Saving { pid, .. }
            | Life::Leaving { pid, .. }
            | Life::Stopped { pid, .. }
            | Life::Deleting { pid, .. } => Some(*pid),
        }
    }

    pub(crate) fn view(&self) -> Option<ProcessView> {
        let view = |pid: &u32, status, exit| Some(ProcessView { pid: *pid, status, exit });
        match &self.life {
            Life::Creating { .. } => None,
            Life::Prepared => view(&0, Status::Created, None),
            Life::Restoring => view(&0, Status::Starting, None),
            Life::Created { pid } => view(pid, Status::Created, None),
            Life::Starting { pid, .. } => view(pid, Status::Starting, None),
            Life::Running { pid }
            | Life::Leaving { pid, .. }
            | Life::Saving { pid, from: Saved::Running, .. } => view(pid, Status::Running, None),
            Life::Switching { pid, to: Switch::Pause } => view(pid, Status::Pausing, None),
            Life::Switching { pid, to: Switch::Resume }
            | Life::Paused { pid }
            | Life::Saving { pid, from: Saved::Paused, .. } => view(pid, Status::Paused, None),
            Life::Stopped { pid, exit } | Life::Deleting { pid, init: Init::Told(exit), .. } => {
                view(pid, Status::Stopped, Some(*exit))
            }
            Life::Deleting { pid, init: Init::Never | Init::Living | Init::Leaving { .. }, .. } => {
                view(pid, Status::Stopped, None)
            }
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

    pub(crate) fn may_start(&self) -> Result<Begin, Failure> {
        match &self.life {
            Life::Created { pid } => Ok(Begin::Start { pid: *pid }),
            Life::Prepared => Ok(Begin::Restore),
            Life::Creating { .. } => Err(refuse("is being created")),
            Life::Starting { .. }
            | Life::Restoring
            | Life::Running { .. }
            | Life::Switching { .. }
            | Life::Paused { .. }
            | Life::Saving { .. } => Err(refuse("is started already")),
            Life::Leaving { .. } | Life::Stopped { .. } => Err(refuse("has exited")),
            Life::Deleting { .. } => Err(refuse("is being deleted")),
        }
    }

    /// Whether execs of the shim's own service may be started in it.
    pub(crate) fn must_run(&self) -> Result<u32, Failure> {
        match &self.life {
            Life::Running { pid } => Ok(*pid),
            Life::Creating { .. }
            | Life::Created { .. }
            | Life::Prepared
            | Life::Restoring
            | Life::Starting { .. } => Err(refuse("is not running yet")),
            Life::Switching { .. } | Life::Paused { .. } => Err(refuse("is paused")),
            Life::Saving { .. } => Err(refuse("is being checkpointed")),
            Life::Leaving { .. } | Life::Stopped { .. } | Life::Deleting { .. } => Err(refuse("has exited")),
        }
    }

    /// Whether containerd's clients may add and start execs in it. As in the runc shim they may before its own start
    /// (`process/init_state.go`, `createdState.Exec`).
    pub(crate) fn may_exec(&self) -> Result<(), Failure> {
        match &self.life {
            Life::Created { .. } | Life::Starting { exit: None, .. } => Ok(()),
            Life::Starting { exit: Some(_), .. } => Err(refuse("has exited")),
            Life::Creating { .. }
            | Life::Prepared
            | Life::Restoring
            | Life::Running { .. }
            | Life::Switching { .. }
            | Life::Paused { .. }
            | Life::Saving { .. }
            | Life::Leaving { .. }
            | Life::Stopped { .. }
            | Life::Deleting { .. } => self.must_run().map(|_| ()),
        }
    }

    /// What goes on once its checkpoint is written. A frozen container may be saved too (`pausedState.Checkpoint`).
    pub(crate) fn may_save(&self) -> Result<(u32, Saved), Failure> {
        if let Life::Paused { pid } = self.life {
            return Ok((pid, Saved::Paused));
        }
        Ok((self.must_run()?, Saved::Running))
    }

    /// The receiver of a signal.
    pub(crate) fn signal_target(&self) -> Result<u32, Failure> {
        match (&self.life, self.living_pid()) {
            (_, Some(pid)) => Ok(pid),
            (Life::Creating { .. }, None) => Err(refuse("is being created")),
            (Life::Prepared | Life::Restoring, None) => {
                Err(Failure::new(Code::NotFound, "the checkpoint is not restored yet: process not found"))
            }
            (
                Life::Created { .. }
                | Life::Starting { .. }
                | Life::Running { .. }
                | Life::Switching { .. }
                | Life::Paused { .. }
                | Life::Saving { .. }
                | Life::Leaving { .. }
                | Life::Stopped { .. }
                | Life::Deleting { .. },
                None,
            ) => Err(Failure::new(Code::NotFound, "process already finished")),
        }
    }

    /// Its pid until it has exited, 0 before a checkpoint is restored.
    pub(crate) fn not_exited_pid(&self) -> Result<u32, Failure> {
        if matches!(self.life, Life::Prepared | Life::Restoring) { Ok(0) } else { self.signal_target() }
    }

    pub(crate) fn must_be_paused(&self) -> Result<u32, Failure> {
        if let Life::Paused { pid } = self.life { Ok(pid) } else { Err(refuse("is not paused")) }
    }

    /// The next life when the task is deleted, with the request to answer.
    pub(crate) fn delete(&self, from: Option<ReqId>) -> Result<Life, Failure> {
        match &self.life {
            Life::Prepared => Ok(deleting(0, Init::Never, from)),
            Life::Created { pid } => Ok(deleting(*pid, Init::Living, from)),
            Life::Stopped { pid, exit } => Ok(deleting(*pid, Init::Told(*exit), from)),
            Life::Restoring => Err(refuse("is being restored")),
            Life::Starting { .. }
            | Life::Running { .. }
            | Life::Switching { .. }
            | Life::Paused { .. }
            | Life::Saving { .. }
            | Life::Leaving { .. } => Err(refuse("has not exited")),
            Life::Creating { .. } | Life::Deleting { .. } => Err(refuse("is being deleted")),
        }
    }

    /// The life in which a deletion is under way or will be, which has nobody to tell its end but this client.
    pub(crate) fn adopt(&self, from: ReqId) -> Option<Life> {
        let from = Some(from);
        if let Life::Creating { then: Next::Stay | Next::Delete { from: None } } = self.life {
            return Some(Life::Creating { then: Next::Delete { from } });
        }
        let Life::Deleting { pid, init, forgotten, from: None } = self.life else { return None };
        Some(Life::Deleting { pid, init, forgotten, from })
    }

    /// What follows its creation.
    pub(crate) fn next(&self) -> Next {
        if let Life::Creating { then } = self.life { then } else { Next::Stay }
    }

    /// Nobody waits for a deletion any more that this client asked for.
    pub(crate) fn abandon(&mut self, gone: ReqId) {
        if let Life::Deleting { from, .. } | Life::Creating { then: Next::Delete { from } } = &mut self.life {
            from.take_if(|from| *from == gone);
        }
    }

    /// The next life when everything is released; `None` while an outcome or the exits of execs are awaited.
    pub(crate) fn release(&self) -> Option<Life> {
        match &self.life {
            Life::Prepared => Some(deleting(0, Init::Never, None)),
            Life::Created { pid } | Life::Running { pid } | Life::Paused { pid } => {
                Some(deleting(*pid, Init::Living, None))
            }
            Life::Stopped { pid, exit } => Some(deleting(*pid, Init::Told(*exit), None)),
            Life::Creating { .. }
            | Life::Restoring
            | Life::Starting { .. }
            | Life::Switching { .. }
            | Life::Saving { .. }
            | Life::Leaving { .. }
            | Life::Deleting { .. } => None,
        }
    }

    /// The exit of its init waits for the disk now, and so long at most.
    pub(crate) fn begin_draining(&mut self) {
        self.output = Output::Draining;
        if let Life::Leaving { until_ms, .. } | Life::Deleting { init: Init::Leaving { until_ms, .. }, .. } =
            &mut self.life
        {
            *until_ms += OUTPUT_WAIT_MS;
        }
    }

    /// When the exit of its init, which waits for those of its execs and for the disk, is told without them.
    pub(crate) fn leaves_at(&self) -> Option<u64> {
        match &self.life {
            Life::Leaving { until_ms, .. } | Life::Deleting { init: Init::Leaving { until_ms, .. }, .. } => {
                Some(*until_ms)
            }
            Life::Creating { .. }
            | Life::Created { .. }
            | Life::Prepared
            | Life::Restoring
            | Life::Starting { .. }
            | Life::Running { .. }
            | Life::Switching { .. }
            | Life::Paused { .. }
            | Life::Saving { .. }
            | Life::Stopped { .. }
            | Life::Deleting { init: Init::Never | Init::Living | Init::Told(_), .. } => None,
        }
    }

    /// How its init has ended, from its reaping until that is told.
    pub(crate) fn untold_exit(&mut self) -> Option<&mut Exit> {
        match &mut self.life {
            Life::Starting { exit, .. } | Life::Saving { exit, .. } => exit.as_mut(),
            Life::Leaving { exit, .. } | Life::Deleting { init: Init::Leaving { exit, .. }, .. } => {
                Some(exit)
            }
            Life::Creating { .. }
            | Life::Created { .. }
            | Life::Prepared
            | Life::Restoring
            | Life::Running { .. }
            | Life::Switching { .. }
            | Life::Paused { .. }
            | Life::Stopped { .. }
            | Life::Deleting { init: Init::Never | Init::Living | Init::Told(_), .. } => None,
        }
    }

    /// Its end, for a client that waits; `None` keeps it waiting.
    pub(crate) fn end(&self) -> Option<(u32, Exit)> {
        match &self.life {
            Life::Stopped { pid, exit } | Life::Deleting { pid, init: Init::Told(exit), .. } => {
                Some((*pid, *exit))
            }
            Life::Creating { .. }
            | Life::Created { .. }
            | Life::Prepared
            | Life::Restoring
            | Life::Starting { .. }
            | Life::Running { .. }
            | Life::Switching { .. }
            | Life::Paused { .. }
            | Life::Saving { .. }
            | Life::Leaving { .. }
            | Life::Deleting { init: Init::Never | Init::Living | Init::Leaving { .. }, .. } => None,
        }
    }
}

fn deleting(pid: u32, init: Init, from: Option<ReqId>) -> Life {
    Life::Deleting { pid, init, forgotten: None, from }
}

pub(crate) fn refuse(why: &str) -> Failure {
    Failure::new(Code::FailedPrecondition, format!("the container {why}"))
}
