//! Answers against what the world knows: whose process it is, how it has ended, and whether a refusal was due.

use std::collections::BTreeMap;

use berth_shim_core::{ExecPurpose, Exit, Failure, Id, Notice, Origin, Process, Reply, ReqId, Request};

use crate::due::Around;

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

    pub(crate) fn is_reaped(&self, pid: u32) -> bool {
        self.codes.contains_key(&pid)
    }

    /// An answer has come; returns what was asked.
    pub(crate) fn answered(
        &mut self,
        to: ReqId,
        reply: &Result<Reply, Failure>,
        around: &Around<'_>,
    ) -> Option<Request> {
        let (request, since_ms) = self.asked.remove(&to)?;
        match reply {
            Ok(reply) => self.granted(&request, reply, around.now_ms - since_ms),
            Err(failure) => self.refused(&request, failure, around),
        }
        Some(request)
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

    /// A refusal has to be due.
    fn refused(&mut self, request: &Request, failure: &Failure, around: &Around<'_>) {
        let is_reaped = |pid| self.is_reaped(pid);
        let deleted = |process: &Process| {
            self.asked.values().any(|(asked, _)| *asked == Request::Delete(process.clone()))
        };
        let due = around.is_due(request, failure.code, &is_reaped, &deleted);
        assert!(due, "{request:?} is refused: {failure:?}, among {:?}, {:?}", around.told, around.ops);
        if around.is_of_known_task(request) {
            self.count(if is_of_exec(request) { "exec refused" } else { "refused" });
        }
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

fn is_of_exec(request: &Request) -> bool {
    match request {
        Request::AddExec(..) | Request::RunExec(..) => true,
        Request::Start(process) | Request::Wait(process) | Request::Delete(process) => process.exec.is_some(),
        _ => false,
    }
}
