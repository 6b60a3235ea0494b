//! The world around a machine: processes, operations under way, clients.

use std::collections::{BTreeMap, BTreeSet};

use berth_shim_core::{
    Action, Code, Effect, Event, ExecPurpose, Failure, Id, Machine, Now, OpId, Origin, Process, Reply, ReqId,
    Request, Scope,
};
use proptest::sample::Index;

use crate::agent::Agent;
use crate::answers::{Answers, Tally};
use crate::due::Around;
use crate::told::Told;

const SIGKILL: i32 = 9;
const KILLED: u32 = 137;

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Create(u8, Origin),
    Start(u8),
    AddExec(u8, u8),
    StartExec(u8, u8),
    Kill(u8),
    KillExec(u8, u8),
    Wait(u8),
    WaitExec(u8, u8),
    Delete(u8),
    DeleteExec(u8, u8),
    Pause(u8),
    Resume(u8),
    Update(u8),
    Checkpoint(u8),
    State(u8, Option<u8>),
    ExecSync(u8, Option<u64>),
    ExecStream(u8),
    Shutdown(u8),
    StopSandbox,
    Disconnect(u8),
    /// containerd is killed and comes back: every request that it waits for is gone.
    Reconnect,
    /// One operation ends well.
    Succeed(Index),
    /// One operation fails.
    Fail(Index),
    /// A checkpoint that ends the container is written, and is not reported yet.
    SaveAndEnd(Index),
    /// The disk has taken what one process had written.
    Drained(Index),
    /// One process exits.
    Exit(Index),
    /// One exited process is reaped.
    Reap(Index),
    /// The init of a frozen container dies, and nothing else of it (`freezer` of cgroup v2, or a thawing from outside).
    DieFrozen(Index),
    /// The agent is killed.
    AgentDies,
    /// An agent is there again, which knows what the last one knew, or nothing.
    AgentComesBack {
        remembers: bool,
    },
    Oom(u8),
    Time(u64),
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
    /// With the codes that they have ended with.
    zombies: Vec<(u32, u32)>,
    answers: Answers,
    /// Containers whose processes neither run nor die.
    frozen: BTreeSet<Id>,
    /// Killed, and to die once they are thawed.
    doomed: BTreeSet<u32>,
    /// Containers that could not be thawed.
    stuck: BTreeSet<Id>,
    /// Containers whose last output is on its way to the disk.
    draining: Vec<Process>,
    told: Told,
    agent: Agent,
    handling: Handling,
    ended: bool,
    sandbox: Sandbox,
    /// The sandbox is being shut down.
    closing: bool,
}

/// What the machine is told at this moment.
#[derive(Debug, Default, PartialEq, Eq)]
enum Handling {
    #[default]
    Anything,
    /// That an operation has failed.
    Failure,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Sandbox {
    #[default]
    Absent,
    Ready,
    Stopped,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { last_pid: 100, ..Self::default() }
    }

    pub(crate) fn start_sandbox(&mut self) {
        self.sandbox = Sandbox::Ready;
        self.ask(Request::CreateSandbox);
        self.ask(Request::StartSandbox);
        let (op, action) = self.ops.pop_first().expect("the sandbox is being started");
        assert_eq!(action, Action::StartSandbox);
        self.handle(Event::Spawned { op, result: Ok(1) });
    }

    /// A container with an exec in it is frozen.
    pub(crate) fn start_frozen(&mut self) {
        let begun = [
            Step::Create(0, Origin::Bundle),
            Step::Start(0),
            Step::AddExec(0, 0),
            Step::StartExec(0, 0),
            Step::Pause(0),
        ];
        for step in begun {
            self.take(step);
            while let Some(op) = self.ops.keys().next().copied() {
                self.succeed(op);
            }
        }
    }

    pub(crate) fn take(&mut self, step: Step) {
        match step {
            Step::Shutdown(n) => {
                // A shim that serves nothing more would end here.
                if self.told.knows(&task(n)) {
                    self.ask(Request::Shutdown);
                }
            }
            Step::StopSandbox => {
                if self.sandbox == Sandbox::Ready {
                    self.sandbox = Sandbox::Stopped;
                    self.agent.sandbox_stopped();
                }
                self.ask(Request::StopSandbox);
            }
            Step::Disconnect(n) => {
                if let Some(request) = self.unanswered.iter().nth(usize::from(n)).copied() {
                    self.hang_up(request);
                }
            }
            Step::Reconnect => {
                // The agent asks again at once.
                for request in self.unanswered.clone() {
                    self.hang_up(request);
                }
            }
            Step::Succeed(index) => self.end_op(index, true),
            Step::Fail(index) => self.end_op(index, false),
            Step::SaveAndEnd(index) => self.save_and_end(index),
            Step::Drained(index) => self.drained(index),
            Step::Exit(index) => {
                if !self.living.is_empty() {
                    let (pid, process) =
                        self.living.iter().nth(index.index(self.living.len())).expect("in range");
                    if !self.frozen.contains(&process.task) {
                        self.die(*pid, own_code(*pid));
                    }
                }
            }
            Step::Reap(index) => {
                if !self.zombies.is_empty() {
                    let at = index.index(self.zombies.len());
                    self.reap(at);
                }
            }
            Step::DieFrozen(index) => self.die_frozen(index),
            Step::AgentDies => {
                self.agent.die();
                if let Some(request) = self.agent.waits_for_any() {
                    self.hang_up(request);
                }
            }
            Step::AgentComesBack { remembers } => {
                self.agent.come_back(remembers);
                self.agent_asks();
            }
            Step::Oom(n) => {
                self.told.oom_seen(&task(n), self.last_request);
                self.handle(Event::OomObserved { task: task(n), kills: self.last_request });
            }
            Step::Time(ms) => {
                self.now.mono_ms += ms;
                self.handle(Event::Tick);
            }
            step => self.ask(request(step)),
        }
    }

    fn die_frozen(&mut self, index: Index) {
        let frozen = |process: &Process| self.frozen.contains(&process.task);
        let inits = self.living.iter().filter(|(_, process)| process.exec.is_none() && frozen(process));
        let inits: Vec<(u32, Id)> = inits.map(|(pid, process)| (*pid, process.task.clone())).collect();
        if let Some((pid, task)) = inits.get(index.index(inits.len().max(1))) {
            self.die(*pid, KILLED);
            let left = self.living.values().any(|process| process.task == *task);
            self.answers.count(if left { "died frozen with an exec" } else { "died frozen" });
        }
    }

    fn drained(&mut self, index: Index) {
        if !self.draining.is_empty() {
            let process = self.draining.remove(index.index(self.draining.len()));
            self.handle(Event::Drained(process));
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
                self.die(pid, own_code(pid));
            }
            self.rest();
            if self.ops.is_empty() && self.living.is_empty() && self.machine.poll_timeout().is_none() {
                return;
            }
        }
        panic!("the machine never comes to rest");
    }

    /// What has happened, and how often.
    pub(crate) fn tally(&self) -> &Tally {
        &self.answers.tally
    }

    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Lets everything that is under way come to its end, but for processes that nobody kills.
    pub(crate) fn come_to_rest(&mut self) {
        for _round in 0..1000 {
            while let Some(op) = self.ops.keys().next().copied() {
                self.succeed(op);
            }
            self.rest();
            if self.ops.is_empty() && self.zombies.is_empty() && self.machine.poll_timeout().is_none() {
                return;
            }
        }
        panic!("the machine never comes to rest");
    }

    fn rest(&mut self) {
        while !self.zombies.is_empty() {
            self.reap(self.zombies.len() - 1);
        }
        while let Some(process) = self.draining.pop() {
            self.handle(Event::Drained(process));
        }
        if let Some(at) = self.machine.poll_timeout() {
            self.now.mono_ms = self.now.mono_ms.max(at);
            self.handle(Event::Tick);
        }
    }

    /// No member outlives its sandbox.
    pub(crate) fn check_a_stopped_sandbox_is_empty(&self) {
        if self.sandbox == Sandbox::Stopped {
            let left = |process: &&Process| !self.stuck.contains(&process.task);
            let left: Vec<&Process> = self.living.values().filter(left).collect();
            assert!(left.is_empty(), "outlived the sandbox: {left:?}");
        }
    }

    /// What an init leaves behind ends with it, also when it was frozen.
    pub(crate) fn check_nothing_outlives_its_init(&self) {
        let over = |process: &&Process| self.told.exit_is_published(&process.task);
        let left: Vec<&Process> =
            self.living.values().filter(over).filter(|process| !self.stuck.contains(&process.task)).collect();
        assert!(left.is_empty(), "outlived their container's init: {left:?}");
    }

    /// An agent that asks to the end has read everything.
    pub(crate) fn check_the_agent_knows(&mut self) {
        self.agent.come_back(true);
        self.agent_asks();
        self.agent.check_read();
    }

    /// After everything has ended, only those may wait whose process was never started.
    pub(crate) fn check_everything_is_answered(&mut self) {
        for request in self.unanswered.iter().filter(|request| !self.agent.waits_for(**request)) {
            let process = self.waits.get(request).unwrap_or_else(|| panic!("{request:?} was never answered"));
            let exited = self.told.exit_is_published(&process.task);
            assert!(process.exec.is_some() || !exited, "{request:?} waits for {process:?}, which has exited");
        }
    }

    pub(crate) fn shut_down(&mut self) {
        self.closing = true;
        self.ask(Request::ShutdownSandbox);
        self.settle();
        assert!(self.ended, "the shim did not end");
        assert!(self.told.is_empty(), "deleted with the sandbox: {:?}", self.told);
        self.agent.check_read();
        if let Some(request) = self.agent.waits_for_any() {
            self.unanswered.remove(&request);
        }
        assert!(self.unanswered.is_empty(), "unanswered at the end: {:?}", self.unanswered);
    }

    fn ask(&mut self, request: Request) {
        self.last_request += 1;
        let id = ReqId(self.last_request);
        self.unanswered.insert(id);
        if let Request::Wait(process) = &request {
            self.waits.insert(id, process.clone());
        }
        self.answers.asked(id, request.clone(), self.now.mono_ms);
        self.handle(Event::Request(id, request));
    }

    /// The agent asks for what comes next as long as it is answered.
    fn agent_asks(&mut self) {
        while let Some(request) = self.agent.next().filter(|_| !self.ended) {
            self.last_request += 1;
            let id = ReqId(self.last_request);
            self.agent.has_asked(id);
            self.unanswered.insert(id);
            self.handle(Event::Request(id, request));
        }
    }

    fn hang_up(&mut self, request: ReqId) {
        self.unanswered.remove(&request);
        self.waits.remove(&request);
        // What the agent waited for comes no more: it would be held for nobody until the next event.
        if self.agent.waits_for(request) {
            self.agent.hang_up();
        } else {
            self.gone.insert(request);
        }
        self.handle(Event::Gone(request));
    }

    fn handle(&mut self, event: Event) {
        self.now.unix_ns += 1;
        self.machine.handle(self.now, event);
        while let Some(effect) = self.machine.poll_effect() {
            self.perform(effect);
        }
        self.told.check_recorded(|pid| self.answers.is_reaped(pid));
        self.agent_asks();
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Reply { to, reply } => self.replied(to, &reply),
            Effect::Allow { to, .. } => assert!(self.unanswered.remove(&to), "{to:?} was answered twice"),
            Effect::Run { op, action } => self.run(op, action),
            Effect::Signal { process, pid, signal, scope } => self.signalled(&process, pid, signal, scope),
            Effect::Persist { task, exit } => {
                self.answers.persisted(&task, exit);
                self.told.recorded(&task, exit);
            }
            Effect::Publish(notice) => {
                self.answers.published(&notice);
                self.agent.published(&notice, &self.told);
                self.told.published(notice, self.now.mono_ms);
            }
            Effect::Exit => {
                assert!(!self.ended, "ended twice");
                assert!(self.told.is_empty(), "ended with {:?}", self.told);
                self.ended = true;
            }
            Effect::Cancel(op) => assert!(self.ops.contains_key(&op), "cancelled {op:?}, which has ended"),
            Effect::Drain(process) => {
                self.told.of_known(&process.task);
                self.draining.push(process);
            }
            Effect::KeepExec { process, .. }
            | Effect::EndStreams { process, .. }
            | Effect::Forget(process) => self.told.of_known(&process.task),
            Effect::Abandon(task) => self.told.of_known(&task),
        }
    }

    fn replied(&mut self, to: ReqId, reply: &Result<Reply, Failure>) {
        if self.agent.waits_for(to) {
            let reply = reply.as_ref().expect("the agent is always answered");
            let what = self.agent.answered(reply, &self.told);
            self.answers.count(what);
        }
        if let Some(process) = self.waits.remove(&to)
            && let Ok(Reply::Exited { .. }) = reply
            && process.exec.is_none()
        {
            assert!(self.told.exit_is_published(&process.task), "answered before it was published");
        }
        let open = self.sandbox != Sandbox::Stopped && !self.closing;
        let Self { told, ops, handling, now, .. } = self;
        let failing = *handling == Handling::Failure;
        let around = Around { told, ops, open, failing, now_ms: now.mono_ms };
        match (self.answers.answered(to, reply, &around), reply) {
            (Some(Request::Delete(process)), Ok(_)) if process.exec.is_some() => {
                self.told.exec_deleted(&process);
            }
            (Some(Request::Delete(process)), Err(failure)) if failure.code == Code::Internal => {
                self.told.not_deleted(&process.task);
            }
            _ => {}
        }
        let known = self.unanswered.remove(&to) || self.gone.remove(&to);
        assert!(known, "{to:?} was answered twice, at last with {reply:?}");
    }

    fn run(&mut self, op: OpId, action: Action) {
        self.check_may_run(&action);
        match &action {
            Action::Create { task, .. } | Action::Restore(task) => self.spawn(op, Process::init(task)),
            Action::Exec { process, .. } => self.spawn(op, process.clone()),
            Action::Prepare { .. }
            | Action::Start(_)
            | Action::Pause(_)
            | Action::Resume(_)
            | Action::Update { .. }
            | Action::Checkpoint { .. }
            | Action::StartSandbox
            | Action::ReleaseSandbox => {}
            Action::Delete(task) => self.told.deleting(task),
        }
        self.ops.insert(op, action);
    }

    /// Nothing is done with a container that there is not, and no two things at once that one must come after the other.
    fn check_may_run(&mut self, action: &Action) {
        let task = match action {
            Action::Create { task, .. } | Action::Prepare { task, .. } => {
                assert!(!self.told.knows(task), "{task} is made twice");
                return;
            }
            Action::StartSandbox => return,
            Action::ReleaseSandbox => {
                assert!(self.told.is_empty(), "released under its members: {:?}", self.told);
                return;
            }
            Action::Exec { process, .. } => {
                assert!(self.told.takes_processes(&process.task), "{process:?} among {:?}", self.told);
                &process.task
            }
            Action::Start(task)
            | Action::Restore(task)
            | Action::Pause(task)
            | Action::Resume(task)
            | Action::Update { task, .. }
            | Action::Checkpoint { task, .. }
            | Action::Delete(task) => task,
        };
        self.told.of_known(task);
        let exclusive = |other: &&Action| match other {
            Action::Start(other)
            | Action::Restore(other)
            | Action::Delete(other)
            | Action::Checkpoint { task: other, .. } => other == task,
            Action::Create { .. }
            | Action::Prepare { .. }
            | Action::Exec { .. }
            | Action::Pause(_)
            | Action::Resume(_)
            | Action::Update { .. }
            | Action::StartSandbox
            | Action::ReleaseSandbox => false,
        };
        let updates = |other: &Action| matches!(other, Action::Update { task: other, .. } if other == task);
        assert!(!updates(action) || !self.ops.values().any(updates), "{task} is updated twice at once");
        if matches!(
            action,
            Action::Start(_) | Action::Restore(_) | Action::Delete(_) | Action::Checkpoint { .. }
        ) {
            let other = self.ops.values().find(exclusive);
            assert_eq!(other, None, "while {action:?}");
        }
    }

    /// The runtime has written a checkpoint and ended the container with it, as it was asked to.
    fn save_and_end(&mut self, index: Index) {
        let saving = self.ops.values().filter_map(|action| match action {
            Action::Checkpoint { task, .. } => Some(task.clone()),
            _ => None,
        });
        let saving: Vec<Id> = saving.collect();
        if !saving.is_empty() {
            let task = &saving[index.index(saving.len())];
            self.frozen.remove(task);
            self.kill_container(task);
        }
    }

    /// The process is there before the operation that makes it ends.
    fn spawn(&mut self, op: OpId, process: Process) {
        self.last_pid += 1;
        self.living.insert(self.last_pid, process.clone());
        self.answers.spawned(self.last_pid, process);
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
        match &action {
            Action::Pause(task) => {
                self.frozen.insert(task.clone());
            }
            Action::Resume(task) => self.thaw(task),
            Action::Delete(task) => {
                self.thaw(task);
                self.kill_container(task);
            }
            _ => {}
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
            self.zombies.retain(|(zombie, _)| *zombie != pid);
        }
        if let Action::Resume(task) = &action {
            self.stuck.insert(task.clone());
        }
        let result = Err(Failure::new(Code::Internal, format!("{action:?}")));
        self.handling = Handling::Failure;
        self.handle(Event::Finished { op, result });
        self.handling = Handling::Anything;
    }

    fn die(&mut self, pid: u32, code: u32) {
        if self.living.remove(&pid).is_some() {
            self.zombies.push((pid, code));
        }
    }

    fn reap(&mut self, at: usize) {
        let (pid, code) = self.zombies.remove(at);
        if let Some(Process { task, exec: None }) = self.answers.process(pid) {
            self.told.init_reaped(task, self.now.mono_ms);
        }
        self.answers.reaped(pid, code);
        self.handle(Event::ChildExited { pid, code });
    }

    /// A frozen process dies once it is thawed.
    fn kill(&mut self, pid: u32) {
        let frozen = self.living.get(&pid).is_some_and(|process| self.frozen.contains(&process.task));
        if frozen {
            self.doomed.insert(pid);
        } else {
            self.die(pid, 128 + SIGKILL.unsigned_abs());
        }
    }

    fn thaw(&mut self, task: &Id) {
        self.frozen.remove(task);
        for pid in std::mem::take(&mut self.doomed) {
            self.kill(pid);
        }
    }

    fn kill_container(&mut self, task: &Id) {
        let pids: Vec<u32> =
            self.living.iter().filter(|(_, process)| process.task == *task).map(|(pid, _)| *pid).collect();
        for pid in pids {
            self.kill(pid);
        }
    }

    fn signalled(&mut self, process: &Process, pid: u32, signal: i32, scope: Scope) {
        assert_eq!(signal, SIGKILL);
        match scope {
            Scope::Container => {
                self.told.of_known(&process.task);
                self.kill_container(&process.task);
            }
            Scope::Process | Scope::Tree => {
                let known = self.living.get(&pid) == Some(process)
                    || self.zombies.iter().any(|(zombie, _)| *zombie == pid);
                assert!(known, "signalled {pid} for {process:?}, which was reaped");
                assert_eq!(self.answers.process(pid), Some(process), "signalled another's process");
                self.kill(pid);
            }
        }
    }
}

/// What a client asks in a step that is nothing else.
fn request(step: Step) -> Request {
    let kill = |process| Request::Kill { process, signal: SIGKILL, scope: Scope::Process };
    let init = |n| Process::init(&task(n));
    let exec = |n, e| Process::exec(&task(n), &exec(e));
    match step {
        Step::Create(n, origin) => Request::Create(task(n), origin),
        Step::Start(n) => Request::Start(init(n)),
        Step::AddExec(n, e) => Request::AddExec(task(n), self::exec(e)),
        Step::StartExec(n, e) => Request::Start(exec(n, e)),
        Step::Kill(n) => kill(init(n)),
        Step::KillExec(n, e) => kill(exec(n, e)),
        Step::Wait(n) => Request::Wait(init(n)),
        Step::WaitExec(n, e) => Request::Wait(exec(n, e)),
        Step::Delete(n) => Request::Delete(init(n)),
        Step::DeleteExec(n, e) => Request::Delete(exec(n, e)),
        Step::Pause(n) => Request::Pause(task(n)),
        Step::Resume(n) => Request::Resume(task(n)),
        Step::Update(n) => Request::Update(task(n)),
        Step::Checkpoint(n) => Request::Checkpoint(task(n)),
        Step::State(n, None) => Request::State(init(n)),
        Step::State(n, Some(e)) => Request::State(exec(n, e)),
        Step::ExecStream(n) => Request::RunExec(task(n), ExecPurpose::Stream),
        Step::ExecSync(n, timeout_ms) => Request::RunExec(task(n), ExecPurpose::Sync { timeout_ms }),
        step => panic!("{step:?} asks nothing"),
    }
}

/// What a process ends with by itself: no two of them alike for long, and never as one that was killed.
fn own_code(pid: u32) -> u32 {
    pid % 127
}

fn task(n: u8) -> Id {
    Id::parse(&format!("c{n}")).expect("an id")
}

fn exec(n: u8) -> Id {
    Id::parse(&format!("e{n}")).expect("an id")
}
