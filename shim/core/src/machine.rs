//! One machine per shim: events in, effects out.

mod exits;
mod outcomes;
mod requests;
mod sandbox;

use std::collections::{BTreeMap, VecDeque};

use crate::effect::{Action, Effect, Notice, Scope};
use crate::event::{Event, Now, OpId, Process, ReqId};
use crate::exec::Exec;
use crate::feed::{Feed, FeedEvent};
use crate::id::Id;
use crate::reply::{Code, Failure, Reply};
use crate::sandbox::Sandbox;
use crate::task::{Switch, Task};

/// Tasks of one pod.
const TASKS_MAX: usize = 1024;
/// Exits kept for processes whose pid is not reported yet. More means that orphans of containers die by the thousand
/// during one runtime call; the oldest go, which are the orphans.
const UNCLAIMED_MAX: usize = 4096;

/// Time that a shim with nothing in it waits for a client, milliseconds. containerd connects as soon as `start` has told where, and
/// stays connected; one that was told to give up in that moment, or died in it, leaves a shim that nobody knows.
const DESERTED_MS: u64 = 10_000;

const SIGKILL: i32 = 9;

/// The shim's decisions. Feed it with [`handle`](Self::handle), then empty it with
/// [`poll_effect`](Self::poll_effect), then sleep no longer than [`poll_timeout`](Self::poll_timeout).
#[derive(Debug, Default)]
pub struct Machine {
    tasks: BTreeMap<Id, Task>,
    sandbox: Sandbox,
    feed: Feed,
    ops: BTreeMap<OpId, Op>,
    effects: VecDeque<Effect>,
    unclaimed: VecDeque<Unclaimed>,
    closing: Option<Closing>,
    /// When the last client went, milliseconds of [`Now::mono_ms`].
    deserted_ms: Option<u64>,
    last_op: u64,
    last_exec: u64,
}

/// A process that died while a runtime call may still report it as its own.
#[derive(Debug)]
struct Unclaimed {
    pid: u32,
    code: u32,
    at_ns: i64,
}

/// `ShutdownSandbox`, until everything is released.
#[derive(Debug)]
struct Closing {
    from: ReqId,
    releasing: bool,
}

/// What an outcome is about. A creation is from nobody once its client went away.
#[derive(Debug)]
enum Op {
    Create { task: Id, from: Option<ReqId> },
    Prepare { task: Id, from: Option<ReqId> },
    Restore { task: Id, from: ReqId },
    Start { task: Id, from: ReqId },
    Exec { task: Id, exec: Id, from: Option<ReqId> },
    Switch { task: Id, pid: u32, to: Switch, from: Option<ReqId> },
    Update { task: Id, from: ReqId },
    Checkpoint { task: Id, from: ReqId },
    Delete { task: Id },
    StartSandbox,
    ReleaseSandbox,
}

impl Op {
    /// Whether it may be ended early, so that the pod's end does not wait for it.
    fn may_be_cancelled(&self) -> bool {
        match self {
            Self::Create { .. }
            | Self::Prepare { .. }
            | Self::Restore { .. }
            | Self::Start { .. }
            | Self::Exec { .. }
            | Self::Switch { .. }
            | Self::Update { .. }
            | Self::Checkpoint { .. } => true,
            Self::Delete { .. } | Self::StartSandbox | Self::ReleaseSandbox => false,
        }
    }

    /// Whether its outcome names a process that may already have been reaped.
    fn spawns(&self) -> bool {
        match self {
            Self::Create { .. } | Self::Restore { .. } | Self::Exec { .. } | Self::StartSandbox => true,
            Self::Prepare { .. }
            | Self::Start { .. }
            | Self::Switch { .. }
            | Self::Update { .. }
            | Self::Checkpoint { .. }
            | Self::Delete { .. }
            | Self::ReleaseSandbox => false,
        }
    }
}

impl Machine {
    /// A shim that knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in one event. Cannot fail: whatever is wrong with it becomes an answer.
    pub fn handle(&mut self, now: Now, event: Event) {
        match event {
            Event::Request(from, request) => self.request(now, from, request),
            Event::Gone(from) => self.gone(from),
            Event::Clients { any } => self.deserted_ms = (!any).then_some(now.mono_ms),
            Event::ChildExited { pid, code } => self.child_exited(now, pid, code),
            Event::Spawned { op, result } => self.spawned(now, op, result),
            Event::Finished { op, result } => self.finished(now, op, result),
            Event::Drained(process) => self.drained(&process),
            Event::OomObserved { task, kills } => self.oom_observed(&task, kills),
            Event::Tick => {}
        }
        self.deadlines(now);
        self.advance_closing();
    }

    /// The next thing to do, in order; `None` when everything is done.
    #[must_use]
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// The time, on the clock of [`Now::mono_ms`], at which a [`Event::Tick`] is due. May change with every event.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let leaving = self.tasks.values().filter_map(Task::leaves_at);
        let execs = self.tasks.values().flat_map(|task| task.execs.values()).filter_map(Exec::due_at);
        leaving.chain(execs).chain(self.ends_at()).min()
    }

    fn effect(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    fn reply(&mut self, to: ReqId, reply: Reply) {
        self.effect(Effect::Reply { to, reply: Ok(reply) });
    }

    fn fail(&mut self, to: ReqId, failure: Failure) {
        self.effect(Effect::Reply { to, reply: Err(failure) });
    }

    fn answer(&mut self, to: ReqId, reply: Result<Reply, Failure>) {
        self.effect(Effect::Reply { to, reply });
    }

    fn publish(&mut self, notice: Notice) {
        self.effect(Effect::Publish(notice));
    }

    fn run(&mut self, op: Op, action: Action) {
        self.last_op += 1;
        let id = OpId(self.last_op);
        self.ops.insert(id, op);
        self.effect(Effect::Run { op: id, action });
    }

    /// Ends a shim in which nothing is left and which nobody will end: the client went away before it had its answer, and
    /// what comes next of it takes the task for one that goes on. The end of the process tells it.
    fn end_when_deserted(&mut self) {
        if self.is_empty() {
            self.exit();
        }
    }

    fn is_empty(&self) -> bool {
        self.tasks.is_empty() && !self.sandbox.is_present() && self.closing.is_none()
    }

    /// When a shim that nobody knows ends.
    fn ends_at(&self) -> Option<u64> {
        let is_idle = self.is_empty() && self.ops.is_empty();
        self.deserted_ms.filter(|_| is_idle).map(|since| since.saturating_add(DESERTED_MS))
    }

    fn exit(&mut self) {
        self.deserted_ms = None;
        self.effect(Effect::Exit);
    }

    /// Ends everything in a container.
    fn kill_container(&mut self, id: &Id, pid: u32) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.doomed = true;
        }
        let process = Process::init(id);
        self.effect(Effect::Signal { process, pid, signal: SIGKILL, scope: Scope::Container });
    }

    /// Ends an exec and everything that it started.
    fn kill_tree(&mut self, process: Process, pid: u32) {
        self.effect(Effect::Signal { process, pid, signal: SIGKILL, scope: Scope::Tree });
    }

    /// The pod ends: a runtime call that hangs must not hold it up.
    fn cancel_all(&mut self) {
        let ops = self.ops.iter().filter(|(_, op)| op.may_be_cancelled()).map(|(id, _)| *id);
        self.effects.extend(ops.map(Effect::Cancel));
    }

    /// Tells the agent, with the task as it is now.
    fn feed_task(&mut self, id: &Id, event: fn(crate::reply::TaskView) -> FeedEvent) {
        if let Some(view) = self.tasks.get(id).and_then(|task| task.task_view(id)) {
            self.feed(event(view));
        }
    }

    fn feed(&mut self, event: FeedEvent) {
        let (waiting, reply) = self.feed.push(event);
        for to in waiting {
            self.reply(to, reply.clone());
        }
    }

    fn oom_observed(&mut self, id: &Id, kills: u64) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        // Nothing is told about a task before its creation is.
        if task.created_pid().is_some() && kills > task.oom_kills {
            task.oom_kills = kills;
            let untold = task.untold_exit().map(|exit| {
                exit.oom_kills = kills;
                *exit
            });
            if let Some(exit) = untold {
                self.effect(Effect::Persist { task: id.clone(), exit });
            }
            self.publish(Notice::Oom(id.clone()));
            self.feed(FeedEvent::Oom { task: id.clone(), kills });
        }
    }

    /// A task that clients may know of.
    fn task(&self, id: &Id) -> Result<&Task, Failure> {
        self.tasks.get(id).ok_or_else(|| {
            Failure::new(Code::NotFound, format!("container {id} is not in this shim: not found"))
        })
    }
}

fn no_such_exec(process: &Process) -> Failure {
    let exec = process.exec.as_ref().map_or("", Id::as_str);
    Failure::new(Code::NotFound, format!("exec {exec} is not in container {}: not found", process.task))
}
