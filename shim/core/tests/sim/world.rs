//! The world around a machine: processes, operations under way, clients.

use std::collections::{BTreeMap, BTreeSet};

use berth_shim_core::{
    Action, Code, Effect, Event, ExecPurpose, Failure, Id, Machine, Notice, Now, OpId, Process, Reply, ReqId,
    Request, Scope,
};
use proptest::sample::Index;

const SIGKILL: i32 = 9;

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Create(u8),
    Start(u8),
    AddExec(u8, u8),
    StartExec(u8, u8),
    Kill(u8),
    Wait(u8),
    WaitExec(u8, u8),
    Delete(u8),
    DeleteExec(u8, u8),
    Pause(u8),
    Resume(u8),
    ExecSync(u8, Option<u64>),
    Disconnect(u8),
    /// One operation ends well.
    Succeed(Index),
    /// One operation fails.
    Fail(Index),
    /// One process exits.
    Exit(Index),
    /// One exited process is reaped.
    Reap(Index),
    Oom(u8),
    Time(u64),
}

/// What was told about one task since it was created.
#[derive(Debug, Default)]
struct Told {
    started: bool,
    exit: Exit,
    living_execs: BTreeSet<Id>,
}

/// How far the end of a task was told.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Exit {
    #[default]
    Untold,
    Persisted,
    Published,
}

#[derive(Default)]
pub(crate) struct World {
    machine: Machine,
    now: Now,
    last_request: u64,
    last_pid: u32,
    unanswered: BTreeSet<ReqId>,
    /// Requests whose client went away; at most one answer still comes for each.
    gone: BTreeSet<ReqId>,
    waits: BTreeMap<ReqId, Process>,
    ops: BTreeMap<OpId, Action>,
    /// Processes that an operation has made and not reported.
    unreported: BTreeMap<OpId, u32>,
    living: BTreeMap<u32, Process>,
    zombies: Vec<u32>,
    told: BTreeMap<Id, Told>,
    /// The end of the feed that is known, and the last pushed number.
    ended: bool,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { last_pid: 100, ..Self::default() }
    }

    pub(crate) fn start_sandbox(&mut self) {
        self.ask(Request::CreateSandbox);
        self.ask(Request::StartSandbox);
        let (op, action) = self.ops.pop_first().expect("the sandbox is being started");
        assert_eq!(action, Action::StartSandbox);
        self.handle(Event::Spawned { op, result: Ok(1) });
    }

    pub(crate) fn take(&mut self, step: Step) {
        match step {
            Step::Create(n) => self.ask(Request::Create(task(n))),
            Step::Start(n) => self.ask(Request::Start(Process::init(&task(n)))),
            Step::AddExec(n, e) => self.ask(Request::AddExec(task(n), exec(e))),
            Step::StartExec(n, e) => self.ask(Request::Start(Process::exec(&task(n), &exec(e)))),
            Step::Kill(n) => {
                self.ask(Request::Kill {
                    process: Process::init(&task(n)),
                    signal: SIGKILL,
                    scope: Scope::Process,
                });
            }
            Step::Wait(n) => self.ask_wait(Process::init(&task(n))),
            Step::WaitExec(n, e) => self.ask_wait(Process::exec(&task(n), &exec(e))),
            Step::Delete(n) => self.ask(Request::Delete(Process::init(&task(n)))),
            Step::DeleteExec(n, e) => self.ask(Request::Delete(Process::exec(&task(n), &exec(e)))),
            Step::Pause(n) => self.ask(Request::Pause(task(n))),
            Step::Resume(n) => self.ask(Request::Resume(task(n))),
            Step::ExecSync(n, timeout_ms) => {
                self.ask(Request::RunExec(task(n), ExecPurpose::Sync { timeout_ms }));
            }
            Step::Disconnect(n) => {
                if let Some(request) = self.unanswered.iter().nth(usize::from(n)).copied() {
                    self.unanswered.remove(&request);
                    self.waits.remove(&request);
                    self.gone.insert(request);
                    self.handle(Event::Gone(request));
                }
            }
            Step::Succeed(index) => self.end_op(index, true),
            Step::Fail(index) => self.end_op(index, false),
            Step::Exit(index) => {
                if !self.living.is_empty() {
                    let pid = *self.living.keys().nth(index.index(self.living.len())).expect("in range");
                    self.die(pid);
                }
            }
            Step::Reap(index) => {
                if !self.zombies.is_empty() {
                    let pid = self.zombies.remove(index.index(self.zombies.len()));
                    self.handle(Event::ChildExited { pid, code: 0 });
                }
            }
            Step::Oom(n) => self.handle(Event::OomObserved { task: task(n), kills: self.last_request }),
            Step::Time(ms) => {
                self.now.mono_ms += ms;
                self.handle(Event::Tick);
            }
        }
    }

    /// Lets everything that is under way come to its end.
    pub(crate) fn settle(&mut self) {
        for _round in 0..1000 {
            while let Some(op) = self.ops.keys().next().copied() {
                self.succeed(op);
            }
            let pids: Vec<u32> = self.living.keys().copied().collect();
            for pid in pids {
                self.die(pid);
            }
            while let Some(pid) = self.zombies.pop() {
                self.handle(Event::ChildExited { pid, code: 0 });
            }
            if let Some(at) = self.machine.poll_timeout() {
                self.now.mono_ms = self.now.mono_ms.max(at);
                self.handle(Event::Tick);
            }
            if self.ops.is_empty() && self.living.is_empty() && self.machine.poll_timeout().is_none() {
                return;
            }
        }
        panic!("the machine never comes to rest");
    }

    /// After everything has ended, only those may wait whose process was never started.
    pub(crate) fn check_everything_is_answered(&mut self) {
        for request in &self.unanswered {
            let process = self.waits.get(request).unwrap_or_else(|| panic!("{request:?} was never answered"));
            let exited = self.told.get(&process.task).is_some_and(|told| told.exit == Exit::Published);
            assert!(process.exec.is_some() || !exited, "{request:?} waits for {process:?}, which has exited");
        }
    }

    pub(crate) fn shut_down(&mut self) {
        self.ask(Request::ShutdownSandbox);
        self.settle();
        assert!(self.ended, "the shim did not end");
        assert!(self.told.is_empty(), "deleted with the sandbox: {:?}", self.told);
        assert!(self.unanswered.is_empty(), "unanswered at the end: {:?}", self.unanswered);
    }

    fn ask(&mut self, request: Request) {
        self.last_request += 1;
        let id = ReqId(self.last_request);
        self.unanswered.insert(id);
        self.handle(Event::Request(id, request));
    }

    fn ask_wait(&mut self, process: Process) {
        self.waits.insert(ReqId(self.last_request + 1), process.clone());
        self.ask(Request::Wait(process));
    }

    fn handle(&mut self, event: Event) {
        self.now.unix_ns += 1;
        self.machine.handle(self.now, event);
        while let Some(effect) = self.machine.poll_effect() {
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Reply { to, reply } => self.replied(to, &reply),
            Effect::Allow { to, .. } => assert!(self.unanswered.remove(&to), "{to:?} was answered twice"),
            Effect::Run { op, action } => self.run(op, action),
            Effect::Signal { process, pid, signal, scope } => self.signalled(&process, pid, signal, scope),
            Effect::Persist { task, .. } => self.told(&task).exit = Exit::Persisted,
            Effect::Publish(notice) => self.published(notice),
            Effect::Exit => {
                assert!(!self.ended, "ended twice");
                self.ended = true;
            }
            Effect::Cancel(op) => assert!(self.ops.contains_key(&op), "cancelled {op:?}, which has ended"),
            Effect::KeepExec { .. } | Effect::Drain(_) | Effect::EndStreams { .. } | Effect::Forget(_) => {}
        }
    }

    fn replied(&mut self, to: ReqId, reply: &Result<Reply, Failure>) {
        if let Some(process) = self.waits.remove(&to)
            && let Ok(Reply::Exited { .. }) = reply
            && process.exec.is_none()
        {
            assert!(self.told(&process.task).exit == Exit::Published, "answered before it was published");
        }
        let known = self.unanswered.remove(&to) || self.gone.remove(&to);
        assert!(known, "{to:?} was answered twice, at last with {reply:?}");
    }

    fn run(&mut self, op: OpId, action: Action) {
        match &action {
            Action::Create { task, .. } => self.spawn(op, Process::init(task)),
            Action::Exec { process, .. } => self.spawn(op, process.clone()),
            _ => {}
        }
        self.ops.insert(op, action);
    }

    /// The process is there before the operation that makes it ends.
    fn spawn(&mut self, op: OpId, process: Process) {
        self.last_pid += 1;
        self.living.insert(self.last_pid, process);
        self.unreported.insert(op, self.last_pid);
    }

    fn end_op(&mut self, index: Index, well: bool) {
        if self.ops.is_empty() {
            return;
        }
        let op = *self.ops.keys().nth(index.index(self.ops.len())).expect("in range");
        if well { self.succeed(op) } else { self.fail(op) }
    }

    fn succeed(&mut self, op: OpId) {
        let action = self.ops.remove(&op).expect("under way");
        if let Action::Delete(task) = &action {
            self.kill_container(task);
        }
        match self.unreported.remove(&op) {
            Some(pid) => self.handle(Event::Spawned { op, result: Ok(pid) }),
            None if action == Action::StartSandbox => self.handle(Event::Spawned { op, result: Ok(1) }),
            None => self.handle(Event::Finished { op, result: Ok(()) }),
        }
    }

    fn fail(&mut self, op: OpId) {
        let action = self.ops.remove(&op).expect("under way");
        // What could not be made is gone, and its pid means nothing to the machine.
        if let Some(pid) = self.unreported.remove(&op) {
            self.living.remove(&pid);
            self.zombies.retain(|zombie| *zombie != pid);
        }
        let result = Err(Failure::new(Code::Internal, format!("{action:?}")));
        self.handle(Event::Finished { op, result });
    }

    fn die(&mut self, pid: u32) {
        if self.living.remove(&pid).is_some() {
            self.zombies.push(pid);
        }
    }

    fn kill_container(&mut self, task: &Id) {
        let pids: Vec<u32> =
            self.living.iter().filter(|(_, process)| process.task == *task).map(|(pid, _)| *pid).collect();
        for pid in pids {
            self.die(pid);
        }
    }

    fn signalled(&mut self, process: &Process, pid: u32, signal: i32, scope: Scope) {
        assert_eq!(signal, SIGKILL);
        match scope {
            Scope::Container => self.kill_container(&process.task),
            Scope::Process | Scope::Tree => {
                let known = self.living.get(&pid) == Some(process) || self.zombies.contains(&pid);
                assert!(known, "signalled {pid} for {process:?}, which was reaped");
                self.die(pid);
            }
        }
    }

    fn told(&mut self, task: &Id) -> &mut Told {
        self.told.get_mut(task).unwrap_or_else(|| panic!("{task} was not created, or is deleted"))
    }

    fn published(&mut self, notice: Notice) {
        match notice {
            Notice::Created { task, .. } => {
                assert!(self.told.insert(task, Told::default()).is_none(), "created twice");
            }
            Notice::Started { task, .. } => {
                let told = self.told(&task);
                assert!(
                    told.exit == Exit::Untold && !std::mem::replace(&mut told.started, true),
                    "started twice or after its exit"
                );
            }
            Notice::ExecAdded { task, .. } => assert!(self.told(&task).exit == Exit::Untold),
            Notice::ExecStarted { task, exec, .. } => {
                assert!(self.told(&task).living_execs.insert(exec), "started twice");
            }
            Notice::Exited { process, .. } => match process.exec {
                Some(exec) => {
                    assert!(self.told(&process.task).living_execs.remove(&exec), "exited without a start");
                }
                None => {
                    let given_up = self.now.mono_ms;
                    let told = self.told(&process.task);
                    assert_eq!(told.exit, Exit::Persisted, "published twice or before it was recorded");
                    told.exit = Exit::Published;
                    assert!(told.living_execs.is_empty() || given_up > 0, "before its execs");
                }
            },
            Notice::Deleted { task, .. } => {
                assert!(self.told(&task).exit == Exit::Published, "deleted before its exit");
                self.told.remove(&task);
            }
            Notice::Oom(task) | Notice::Paused(task) | Notice::Resumed(task) | Notice::Checkpointed(task) => {
                self.told(&task);
            }
        }
    }
}

fn task(n: u8) -> Id {
    Id::parse(&format!("c{n}")).expect("an id")
}

fn exec(n: u8) -> Id {
    Id::parse(&format!("e{n}")).expect("an id")
}
