//! The agent: it follows the numbered events, dies and comes back. What it reads is held against what containerd was told.

use berth_shim_core::{
    Exit, FeedEvent, FeedItem, Id, Notice, Reply, ReqId, Request, Status, TaskView, Truth,
};

use crate::told::{Deletion, End, Told};

/// One event, as it must be numbered.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Owed {
    Created(Id, u32),
    Started(Id, u32),
    Exited(Id, u32, Exit),
    Paused(Id, u32),
    Resumed(Id, u32),
    Deleted(Id),
    Oom(Id, u64),
    SandboxStopped,
}

/// What the agent knows of the shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// Nothing: it is new, and asks for everything first.
    Nothing,
    /// Everything up to this event.
    UpTo(u64),
}

#[derive(Debug)]
pub(crate) struct Agent {
    /// All that has happened, in order.
    owed: Vec<Owed>,
    memory: Memory,
    lives: bool,
    asked: Option<ReqId>,
    /// What was missed while it was dead is to come at once.
    missed: u64,
}

impl Default for Agent {
    fn default() -> Self {
        Self { owed: Vec::new(), memory: Memory::Nothing, lives: true, asked: None, missed: 0 }
    }
}

impl Agent {
    /// What it asks next, unless it is dead or waits for an answer.
    pub(crate) fn next(&self) -> Option<Request> {
        let request = match self.memory {
            Memory::Nothing => Request::Truth,
            Memory::UpTo(since) => Request::Events { since },
        };
        (self.lives && self.asked.is_none()).then_some(request)
    }

    pub(crate) fn has_asked(&mut self, request: ReqId) {
        self.asked = Some(request);
    }

    pub(crate) fn waits_for(&self, request: ReqId) -> bool {
        self.asked == Some(request)
    }

    pub(crate) fn waits_for_any(&self) -> Option<ReqId> {
        self.asked
    }

    /// Its connection is lost.
    pub(crate) fn hang_up(&mut self) {
        self.asked = None;
    }

    pub(crate) fn die(&mut self) {
        self.lives = false;
    }

    /// It is back, with what it knew or as a new one.
    pub(crate) fn come_back(&mut self, remembers: bool) {
        if !self.lives && !remembers {
            self.memory = Memory::Nothing;
        }
        if let (false, Memory::UpTo(known)) = (self.lives, self.memory) {
            self.missed = self.owed.len() as u64 - known;
        }
        self.lives = true;
    }

    /// Something was published, of which the feed tells too.
    pub(crate) fn published(&mut self, notice: &Notice, told: &Told) {
        let pid = |task: &Id| told.task(task).map_or(0, |task| task.pid);
        let kills = |task: &Id| told.task(task).map_or(0, |task| task.kills);
        self.owed.extend(match notice {
            Notice::Created { task, pid } => Some(Owed::Created(task.clone(), *pid)),
            Notice::Started { task, pid } => Some(Owed::Started(task.clone(), *pid)),
            Notice::Exited { process, pid, exit } if process.exec.is_none() => {
                Some(Owed::Exited(process.task.clone(), *pid, *exit))
            }
            Notice::Paused(task) => Some(Owed::Paused(task.clone(), pid(task))),
            Notice::Resumed(task) => Some(Owed::Resumed(task.clone(), pid(task))),
            Notice::Deleted { task, .. } => Some(Owed::Deleted(task.clone())),
            Notice::Oom(task) => Some(Owed::Oom(task.clone(), kills(task))),
            Notice::Exited { .. }
            | Notice::ExecAdded { .. }
            | Notice::ExecStarted { .. }
            | Notice::Checkpointed(_) => None,
        });
    }

    pub(crate) fn sandbox_stopped(&mut self) {
        self.owed.push(Owed::SandboxStopped);
    }

    /// An answer has come; returns what it was, for the tally.
    pub(crate) fn answered(&mut self, reply: &Reply, told: &Told) -> &'static str {
        self.asked = None;
        match (self.memory, reply) {
            (Memory::Nothing, Reply::Truth(truth)) => {
                check_truth(truth, told);
                assert_eq!(truth.seq, self.owed.len() as u64, "the number that everything is known up to");
                self.memory = Memory::UpTo(truth.seq);
                "truth"
            }
            (Memory::UpTo(known), Reply::Events(items)) => {
                assert!(!items.is_empty(), "no event ends the wait for one");
                for (item, seq) in items.iter().zip(known + 1..) {
                    self.check_item(item, seq);
                }
                let missed = std::mem::take(&mut self.missed);
                assert!(items.len() as u64 >= missed, "{missed} were missed, and {} come", items.len());
                self.memory = Memory::UpTo(known + items.len() as u64);
                if missed > 0 { "what was missed" } else { "events" }
            }
            (memory, reply) => panic!("{memory:?} is answered with {reply:?}"),
        }
    }

    fn check_item(&self, item: &FeedItem, seq: u64) {
        assert_eq!(item.seq, seq, "events have no gaps");
        let owed = usize::try_from(seq - 1).ok().and_then(|at| self.owed.get(at));
        assert_eq!(Some(&of(&item.event)), owed, "event {seq}");
    }

    /// Everything was read.
    pub(crate) fn check_read(&self) {
        assert_eq!(self.memory, Memory::UpTo(self.owed.len() as u64), "read of {:?}", self.owed);
    }
}

/// An event as it must be, if its view fits it.
fn of(event: &FeedEvent) -> Owed {
    let fits = |view: &TaskView, status: Status, started: bool| {
        assert_eq!((view.init.status, view.started_at_ns.is_some()), (status, started), "of {event:?}");
        assert_eq!(view.init.exit.is_some(), status == Status::Stopped, "of {event:?}");
        (view.id.clone(), view.init.pid)
    };
    match event {
        FeedEvent::Created(view) => {
            let (id, pid) = fits(view, Status::Created, false);
            Owed::Created(id, pid)
        }
        FeedEvent::Started(view) => {
            let (id, pid) = fits(view, Status::Running, true);
            Owed::Started(id, pid)
        }
        FeedEvent::Exited(view) => {
            let (id, pid) = fits(view, Status::Stopped, view.started_at_ns.is_some());
            Owed::Exited(id, pid, view.init.exit.unwrap_or_default())
        }
        FeedEvent::Paused(view) => {
            let (id, pid) = fits(view, Status::Paused, true);
            Owed::Paused(id, pid)
        }
        FeedEvent::Resumed(view) => {
            let (id, pid) = fits(view, Status::Running, true);
            Owed::Resumed(id, pid)
        }
        FeedEvent::Deleted(id) => Owed::Deleted(id.clone()),
        FeedEvent::Oom { task, kills } => Owed::Oom(task.clone(), *kills),
        FeedEvent::SandboxStopped => Owed::SandboxStopped,
    }
}

/// A new agent reads what containerd was told.
fn check_truth(truth: &Truth, told: &Told) {
    let ids: Vec<&Id> = truth.tasks.iter().map(|view| &view.id).collect();
    assert_eq!(ids, told.tasks().map(|(id, _)| id).collect::<Vec<_>>(), "the tasks that there are");
    for view in &truth.tasks {
        let Some(task) = told.task(&view.id) else { continue };
        let TaskView { init, started_at_ns, .. } = view;
        let exit = if let End::Published(exit) = task.end { Some(exit) } else { None };
        assert_eq!(
            (init.pid, init.exit, started_at_ns.is_some()),
            (task.pid, exit, task.started),
            "{view:?}"
        );
        assert!(init.status != Status::Paused || task.frozen, "{view:?} is {task:?}");
        let over = exit.is_some() || task.deletion == Deletion::Begun;
        assert_eq!(init.status == Status::Stopped, over, "{view:?} is {task:?}");
    }
}
