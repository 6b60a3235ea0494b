//! Whether a refusal was due: one for each request, code and state in which the contract has it, and none besides.

use std::collections::BTreeMap;

use berth_shim_core::{Action, Code, Id, OpId, Process, Request};

use crate::told::{Deletion, End, Exec, Task, Told};

/// What there is to know when an answer comes.
pub(crate) struct Around<'w> {
    pub(crate) told: &'w Told,
    pub(crate) ops: &'w BTreeMap<OpId, Action>,
    /// Members may be created and started.
    pub(crate) open: bool,
    /// The outcome of an operation that has failed is being handled.
    pub(crate) failing: bool,
    pub(crate) now_ms: u64,
}

/// An operation that what is asked for next waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Clients cannot know of it yet.
    Making,
    Starting,
    /// Freezing, thawing or saving.
    Switching,
    Updating,
}

/// What is known of one task.
struct Known<'a> {
    /// `None` when it was never told, or is deleted.
    task: Option<&'a Task>,
    reaped: bool,
    turns: Vec<Turn>,
}

impl Known<'_> {
    fn is(&self, turn: Turn) -> bool {
        self.turns.contains(&turn)
    }

    fn made(&self) -> bool {
        self.is(Turn::Making)
    }

    fn absent(&self) -> bool {
        self.task.is_none() && !self.made()
    }

    fn started(&self) -> bool {
        self.task.is_some_and(|task| task.started)
    }

    fn frozen(&self) -> bool {
        self.task.is_some_and(|task| task.frozen)
    }

    fn deleting(&self) -> bool {
        self.task.is_some_and(|task| task.deletion == Deletion::Begun)
    }

    fn has_process(&self) -> bool {
        self.task.is_some_and(|task| task.pid != 0)
    }

    fn is_published(&self) -> bool {
        self.task.is_some_and(|task| matches!(task.end, End::Published(_)))
    }

    /// Its init lives, and nothing is under way with it but its start.
    fn is_steady(&self) -> bool {
        self.has_process() && !self.reaped && !self.is(Turn::Switching) && !self.deleting()
    }

    fn takes_execs(&self) -> bool {
        self.is_steady() && !self.frozen()
    }

    fn runs(&self) -> bool {
        self.takes_execs() && self.started()
    }

    fn is_paused(&self) -> bool {
        self.is_steady() && self.frozen()
    }
}

impl Around<'_> {
    fn known(&self, id: &Id, is_reaped: &dyn Fn(u32) -> bool) -> Known<'_> {
        let task = self.told.task(id);
        let turns = self.ops.values().filter(|action| task_of(action) == Some(id)).filter_map(turn);
        let reaped = task.is_some_and(|task| task.pid != 0 && is_reaped(task.pid));
        Known { task, reaped, turns: turns.collect() }
    }

    pub(crate) fn is_of_known_task(&self, request: &Request) -> bool {
        task_asked(request).is_some_and(|task| self.told.knows(task))
    }

    /// Whether the state of things has it that this request is refused with this code. `deleted` says whether a client asks
    /// at this moment for the deletion of an exec.
    pub(crate) fn is_due(
        &self,
        request: &Request,
        code: Code,
        is_reaped: &dyn Fn(u32) -> bool,
        deleted: &dyn Fn(&Process) -> bool,
    ) -> bool {
        // What the runtime has failed was its fault.
        if code == Code::Internal {
            return self.failing;
        }
        let Some(id) = task_asked(request) else { return false };
        let known = self.known(id, is_reaped);
        match request {
            Request::Start(process)
            | Request::Kill { process, .. }
            | Request::Wait(process)
            | Request::Delete(process)
            | Request::State(process)
                if process.exec.is_some() =>
            {
                let exec = self.told.exec(process);
                let starting = |action: &Action| matches!(action, Action::Exec { process: other, .. } if other == process);
                let now = ExecNow {
                    exec,
                    starting: self.ops.values().any(starting),
                    reaped: matches!(exec, Some(Exec::Started(pid)) if is_reaped(pid)),
                };
                now.is_due(request, code, &known) || is_deletion_of_waited(request, code, deleted)
            }
            _ => self.is_due_to_task(request, code, &known),
        }
    }

    fn is_due_to_task(&self, request: &Request, code: Code, known: &Known<'_>) -> bool {
        match (request, code) {
            (Request::Create(..), Code::AlreadyExists) => !known.absent(),
            (Request::Create(..), Code::FailedPrecondition) => !self.open,
            (Request::Start(_), Code::FailedPrecondition) => {
                let begun = known.is(Turn::Starting) || known.started() || known.reaped;
                let closed = !self.open && !known.has_process();
                known.made() || begun || known.deleting() || closed
            }
            (Request::Kill { .. } | Request::Update(_), Code::NotFound) => {
                known.absent() || known.reaped || (!known.made() && !known.has_process())
            }
            // A checkpoint that nobody restored is deleted, and who waited for its end learns that it has none.
            (Request::Wait(_), Code::NotFound) => {
                known.absent() || (known.deleting() && !known.has_process())
            }
            (Request::Delete(_), Code::FailedPrecondition) => {
                let lives = known.started() || known.reaped || known.is(Turn::Starting);
                known.made() || known.deleting() || (lives && !known.is_published())
            }
            (Request::AddExec(_, exec), Code::AlreadyExists) => {
                known.task.is_some_and(|task| task.execs.contains_key(exec))
            }
            (Request::AddExec(..), Code::FailedPrecondition) => !known.takes_execs(),
            // Also of one whose container is deleted under it.
            (Request::RunExec(..), Code::NotFound) => known.absent() || known.deleting(),
            (Request::RunExec(..) | Request::Pause(_), Code::FailedPrecondition) => !known.runs(),
            (Request::Resume(_), Code::FailedPrecondition) => !known.is_paused(),
            (Request::Checkpoint(_), Code::FailedPrecondition) => !known.runs() && !known.is_paused(),
            (Request::Update(_), Code::FailedPrecondition) => known.made() || known.is(Turn::Updating),
            (Request::Kill { .. } | Request::State(_), Code::FailedPrecondition) => known.made(),
            (
                Request::Start(_)
                | Request::Delete(_)
                | Request::State(_)
                | Request::AddExec(..)
                | Request::Pause(_)
                | Request::Resume(_)
                | Request::Checkpoint(_),
                Code::NotFound,
            ) => known.absent(),
            _ => false,
        }
    }
}

/// What is known of one exec of containerd's.
struct ExecNow {
    /// `None` when it was never added, or is deleted.
    exec: Option<Exec>,
    starting: bool,
    reaped: bool,
}

impl ExecNow {
    fn is_due(&self, request: &Request, code: Code, known: &Known<'_>) -> bool {
        match (request, code) {
            (Request::Start(_), Code::FailedPrecondition) => {
                let begun = self.starting || matches!(self.exec, Some(Exec::Started(_) | Exec::Exited));
                begun || !known.takes_execs()
            }
            (Request::Kill { .. }, Code::FailedPrecondition) => self.exec == Some(Exec::Added),
            (Request::Kill { .. }, Code::NotFound) => {
                self.reaped || matches!(self.exec, None | Some(Exec::Exited))
            }
            (Request::Wait(_), Code::NotFound) => self.exec.is_none() || known.deleting(),
            (Request::Delete(_), Code::FailedPrecondition) => {
                self.starting || matches!(self.exec, Some(Exec::Started(_)))
            }
            (Request::State(_), Code::FailedPrecondition) => known.made(),
            (Request::Start(_) | Request::Delete(_) | Request::State(_), Code::NotFound) => {
                self.exec.is_none()
            }
            _ => false,
        }
    }
}

/// Who waited for an exec that a client deletes at this moment learns that it is gone.
fn is_deletion_of_waited(request: &Request, code: Code, deleted: &dyn Fn(&Process) -> bool) -> bool {
    matches!((request, code), (Request::Wait(process), Code::NotFound) if deleted(process))
}

/// The task that a request is about.
fn task_asked(request: &Request) -> Option<&Id> {
    match request {
        Request::Create(task, _)
        | Request::AddExec(task, _)
        | Request::Pause(task)
        | Request::Resume(task)
        | Request::Update(task)
        | Request::Checkpoint(task)
        | Request::RunExec(task, _) => Some(task),
        Request::Start(process)
        | Request::Kill { process, .. }
        | Request::Wait(process)
        | Request::Delete(process)
        | Request::State(process)
        | Request::IfCreated(process)
        | Request::IfNotExited(process)
        | Request::IfAlive(process) => Some(&process.task),
        Request::Connect(_)
        | Request::Shutdown
        | Request::CreateSandbox
        | Request::StartSandbox
        | Request::StopSandbox
        | Request::WaitSandbox
        | Request::SandboxStatus
        | Request::ShutdownSandbox
        | Request::Truth
        | Request::Events { .. } => None,
    }
}

fn turn(action: &Action) -> Option<Turn> {
    match action {
        Action::Create { .. } | Action::Prepare { .. } => Some(Turn::Making),
        Action::Start(_) | Action::Restore(_) => Some(Turn::Starting),
        Action::Pause(_) | Action::Resume(_) | Action::Checkpoint { .. } => Some(Turn::Switching),
        Action::Update { .. } => Some(Turn::Updating),
        Action::Exec { .. } | Action::Delete(_) | Action::StartSandbox | Action::ReleaseSandbox => None,
    }
}

fn task_of(action: &Action) -> Option<&Id> {
    match action {
        Action::Create { task, .. }
        | Action::Prepare { task, .. }
        | Action::Start(task)
        | Action::Restore(task)
        | Action::Pause(task)
        | Action::Resume(task)
        | Action::Update { task, .. }
        | Action::Checkpoint { task, .. }
        | Action::Delete(task) => Some(task),
        Action::Exec { process, .. } => Some(&process.task),
        Action::StartSandbox | Action::ReleaseSandbox => None,
    }
}
