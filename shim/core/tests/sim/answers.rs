//! Answers against what the world knows: whose process it is, how it has ended, and whether a refusal was due.

use std::collections::BTreeMap;

use berth_shim_core::{
    Action, Code, ExecPurpose, Exit, Failure, Id, Notice, OpId, Origin, Process, Reply, ReqId, Request,
};

use crate::told::Told;

/// What a process ends with that nobody has reaped.
const KILLED: u32 = 137;

/// How often something has happened.
pub(crate) type Tally = BTreeMap<&'static str, u32>;

/// What was asked and is not answered, how processes have ended, and what was seen.
#[derive(Default)]
pub(crate) struct Answers {
    asked: BTreeMap<ReqId, (Request, u64)>,
    /// Whose process each pid was.
    pids: BTreeMap<u32, Process>,
    /// The codes that were reported.
    codes: BTreeMap<u32, u32>,
    pub(crate) tally: Tally,
}

/// What else there is to know when an answer comes.
pub(crate) struct Around<'w> {
    pub(crate) told: &'w Told,
    pub(crate) ops: &'w BTreeMap<OpId, Action>,
    /// Members may be created and started.
    pub(crate) open: bool,
    pub(crate) now_ms: u64,
}

impl Answers {
    pub(crate) fn asked(&mut self, id: ReqId, request: Request, now_ms: u64) {
        self.asked.insert(id, (request, now_ms));
    }

    pub(crate) fn spawned(&mut self, pid: u32, process: Process) {
        self.pids.insert(pid, process);
    }

    pub(crate) fn process(&self, pid: u32) -> Option<&Process> {
        self.pids.get(&pid)
    }

    pub(crate) fn reaped(&mut self, pid: u32, code: u32) {
        self.codes.insert(pid, code);
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// An answer has come.
    pub(crate) fn answered(&mut self, to: ReqId, reply: &Result<Reply, Failure>, around: &Around<'_>) {
        let Some((request, since_ms)) = self.asked.remove(&to) else { return };
        match reply {
            Ok(reply) => self.granted(&request, reply, around.now_ms - since_ms),
            Err(failure) => self.refused(&request, failure, around),
        }
    }

    fn granted(&mut self, request: &Request, reply: &Reply, waited_ms: u64) {
        match (request, reply) {
            (Request::Create(task, Origin::Bundle), Reply::Pid(pid)) => {
                self.is_its(*pid, &Process::init(task));
                self.count("created");
            }
            (Request::Create(_, Origin::Checkpoint), Reply::Pid(0)) => self.count("prepared"),
            (Request::Start(process), Reply::Pid(pid)) => {
                self.is_its(*pid, process);
                self.count(if process.exec.is_some() { "exec started" } else { "started" });
            }
            (Request::Wait(process), Reply::Exited { pid, exit }) => {
                self.is_its(*pid, process);
                self.ended(*pid, *exit);
                self.count("waited for");
            }
            (Request::Delete(process), Reply::Exited { pid, exit }) => {
                if *pid != 0 {
                    self.is_its(*pid, process);
                    self.ended(*pid, *exit);
                }
                self.count(if process.exec.is_some() { "exec deleted" } else { "deleted" });
            }
            (Request::State(process), Reply::State(view)) => {
                if view.pid != 0 {
                    self.is_its(view.pid, process);
                }
                if let Some(exit) = view.exit {
                    self.ended(view.pid, exit);
                }
                self.count("state told");
            }
            (
                Request::RunExec(task, ExecPurpose::Sync { timeout_ms }),
                Reply::ExecDone { exec, code, timed_out },
            ) => {
                self.exec_ended(&Process::exec(task, exec), *code);
                let late = timeout_ms.is_some_and(|timeout| waited_ms >= timeout);
                assert!(late || !timed_out, "timed out after {waited_ms} of {timeout_ms:?} ms");
                self.count(if *timed_out { "timed out" } else { "exec in sync" });
            }
            (Request::RunExec(_, ExecPurpose::Stream), Reply::ExecStreams { .. } | Reply::Empty) => {
                self.count("streamed");
            }
            (Request::Kill { .. }, Reply::Empty) => self.count("killed"),
            (Request::Pause(_), Reply::Empty) => self.count("paused"),
            (Request::Resume(_), Reply::Empty) => self.count("resumed"),
            (Request::Update(_), Reply::Empty) => self.count("updated"),
            (Request::Checkpoint(_), Reply::Empty) => self.count("saved"),
            (Request::AddExec(..) | Request::Shutdown, Reply::Empty)
            | (
                Request::CreateSandbox
                | Request::StartSandbox
                | Request::StopSandbox
                | Request::ShutdownSandbox,
                _,
            ) => {}
            (request, reply) => panic!("{request:?} is answered with {reply:?}"),
        }
    }

    /// What containerd and the agent are told has to be right too.
    pub(crate) fn published(&mut self, notice: &Notice) {
        match notice {
            Notice::Exited { process, pid, exit } => {
                self.is_its(*pid, process);
                self.ended(*pid, *exit);
            }
            Notice::Deleted { task, pid, exit } if *pid != 0 => {
                self.is_its(*pid, &Process::init(task));
                self.ended(*pid, *exit);
            }
            Notice::Oom(_) => self.count("out of memory"),
            _ => {}
        }
    }

    pub(crate) fn persisted(&self, task: &Id, exit: Exit) {
        self.ended(self.newest_init(task).expect("it had a process"), exit);
    }

    fn newest_init(&self, task: &Id) -> Option<u32> {
        let inits = self.pids.iter().filter(|(_, process)| **process == Process::init(task));
        inits.map(|(pid, _)| *pid).next_back()
    }

    /// A refusal has to be due. What the runtime has failed is Internal, and was its fault.
    fn refused(&self, request: &Request, failure: &Failure, around: &Around<'_>) {
        let Around { told, ops, open, .. } = around;
        let reaped = |task: &Id| self.newest_init(task).is_some_and(|pid| self.codes.contains_key(&pid));
        let busy = |task: &Id| ops.values().any(|action| task_of(action) == Some(task));
        let due = match (request, failure.code) {
            (_, Code::Internal) => true,
            (Request::Create(task, _), Code::AlreadyExists) => told.knows(task) || busy(task),
            (Request::Create(..), code) => code == Code::FailedPrecondition && !open,
            (Request::State(process), Code::NotFound) if process.exec.is_none() => !told.knows(&process.task),
            (Request::Wait(process), Code::NotFound) if process.exec.is_none() => {
                !told.has_process(&process.task)
            }
            (Request::Start(process), Code::FailedPrecondition) if process.exec.is_none() => {
                !told.is_fresh(&process.task) || reaped(&process.task) || busy(&process.task) || !open
            }
            (Request::Delete(process), Code::FailedPrecondition) if process.exec.is_none() => {
                !told.exit_is_published(&process.task) || busy(&process.task)
            }
            (Request::Kill { process, .. }, Code::FailedPrecondition) if process.exec.is_none() => {
                busy(&process.task)
            }
            (Request::Kill { process, .. }, Code::NotFound) if process.exec.is_none() => {
                !told.lives(&process.task) || reaped(&process.task) || !told.has_process(&process.task)
            }
            (Request::Pause(task), Code::FailedPrecondition) => {
                !told.runs(task) || reaped(task) || busy(task)
            }
            (_, Code::NotFound | Code::FailedPrecondition | Code::AlreadyExists) => true,
            (_, Code::InvalidArgument | Code::Unimplemented | Code::ResourceExhausted) => false,
        };
        assert!(due, "{request:?} is refused: {failure:?}, among {told:?}, {ops:?}");
    }

    fn is_its(&self, pid: u32, process: &Process) {
        assert_eq!(self.pids.get(&pid), Some(process), "{pid} was told");
    }

    fn ended(&self, pid: u32, exit: Exit) {
        let code = self.codes.get(&pid).copied().unwrap_or(KILLED);
        assert_eq!(exit.code, code, "of {pid}, {:?}", self.pids.get(&pid));
    }

    fn exec_ended(&self, process: &Process, code: u32) {
        let pid = self.pids.iter().find(|(_, of)| *of == process).map(|(pid, _)| *pid);
        let expected = pid.and_then(|pid| self.codes.get(&pid).copied()).unwrap_or(KILLED);
        assert_eq!(code, expected, "of {process:?}");
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
