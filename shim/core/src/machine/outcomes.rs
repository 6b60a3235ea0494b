//! Outcomes of effects that take time.

use super::exits::KILLED;
use super::{Machine, Op};
use crate::effect::{Effect, Notice};
use crate::event::{Now, OpId, Process, ReqId};
use crate::exec::{ExecLife, Limit, Owner};
use crate::feed::FeedEvent;
use crate::id::Id;
use crate::reply::{Code, Exit, Failure, Reply};
use crate::task::{Forgotten, Init, Life, Next, Saved, Switch, Task};

impl Machine {
    pub(super) fn spawned(&mut self, now: Now, op: OpId, result: Result<u32, Failure>) {
        let Some(op) = self.ops.remove(&op) else { return };
        match op {
            Op::Create { task, from } => self.created(now, task, from, result),
            Op::Restore { task, from } => self.restored(now, &task, from, result),
            Op::Exec { task, exec, from } => {
                self.exec_started(now, &Process::exec(&task, &exec), from, result);
            }
            Op::StartSandbox => self.sandbox_started(now, result),
            Op::Prepare { .. }
            | Op::Start { .. }
            | Op::Switch { .. }
            | Op::Update { .. }
            | Op::Checkpoint { .. }
            | Op::Delete { .. }
            | Op::ReleaseSandbox => self.settle(now, op, result.map(|_| ())),
        }
        if !self.ops.values().any(Op::spawns) {
            self.unclaimed.clear();
        }
    }

    pub(super) fn finished(&mut self, now: Now, op: OpId, result: Result<(), Failure>) {
        let no_pid = |()| Err(Failure::new(Code::Internal, "no process was reported"));
        match self.ops.get(&op) {
            Some(Op::Create { .. } | Op::Restore { .. } | Op::Exec { .. } | Op::StartSandbox) => {
                self.spawned(now, op, result.and_then(no_pid));
            }
            Some(
                Op::Prepare { .. }
                | Op::Start { .. }
                | Op::Switch { .. }
                | Op::Update { .. }
                | Op::Checkpoint { .. }
                | Op::Delete { .. }
                | Op::ReleaseSandbox,
            ) => {
                if let Some(op) = self.ops.remove(&op) {
                    self.settle(now, op, result);
                }
            }
            None => {}
        }
    }

    fn settle(&mut self, now: Now, op: Op, result: Result<(), Failure>) {
        match op {
            Op::Prepare { task, from } => self.prepared(task, from, result),
            Op::Start { task, from } => self.started(now, &task, from, result),
            Op::Switch { task, pid, to, from } => {
                self.switched(&task, pid, to, &result);
                if let Some(from) = from {
                    self.answer(from, result.map(|()| Reply::Empty));
                }
            }
            Op::Update { task: _, from } => self.answer(from, result.map(|()| Reply::Empty)),
            Op::Checkpoint { task, from } => self.saved(now, &task, from, result),
            Op::Delete { task } => self.forgotten(&task, result),
            Op::ReleaseSandbox => self.released(),
            Op::Create { .. } | Op::Restore { .. } | Op::Exec { .. } | Op::StartSandbox => {}
        }
    }

    fn created(&mut self, now: Now, id: Id, from: Option<ReqId>, result: Result<u32, Failure>) {
        let next = self.next_of(&id);
        match result {
            Ok(pid) => {
                self.tell_created(&id, Life::Created { pid }, pid, from);
                self.kill_if_stopped(&id, pid);
                self.claim(now, pid);
                self.follow(&id, next);
            }
            Err(failure) => self.not_created(&id, from, next, failure),
        }
    }

    /// A container that is to be restored has no process before its start.
    fn prepared(&mut self, id: Id, from: Option<ReqId>, result: Result<(), Failure>) {
        let next = self.next_of(&id);
        match result {
            Ok(()) => {
                self.tell_created(&id, Life::Prepared, 0, from);
                self.follow(&id, next);
            }
            Err(failure) => self.not_created(&id, from, next, failure),
        }
    }

    fn next_of(&self, id: &Id) -> Next {
        self.tasks.get(id).map_or(Next::Stay, Task::next)
    }

    fn tell_created(&mut self, id: &Id, life: Life, pid: u32, from: Option<ReqId>) {
        self.set_life(id, life);
        self.publish(Notice::Created { task: id.clone(), pid });
        self.feed_task(id, FeedEvent::Created);
        if let Some(from) = from {
            self.reply(from, Reply::Pid(pid));
        }
    }

    /// Does what was asked for while the container was being created.
    fn follow(&mut self, id: &Id, next: Next) {
        if let Next::Delete { from } = next {
            self.delete_made(id, from);
        }
    }

    /// The runtime was done when the sandbox was stopped.
    fn kill_if_stopped(&mut self, id: &Id, pid: u32) {
        if self.sandbox.is_stopped() {
            self.kill_container(id, pid);
        }
    }

    fn not_created(&mut self, id: &Id, from: Option<ReqId>, next: Next, failure: Failure) {
        let waiters = self.tasks.remove(id).map(|task| task.waiters).unwrap_or_default();
        if let Next::Delete { from: Some(from) } = next {
            self.fail(from, deleted(id));
        }
        for to in waiters {
            self.fail(to, failure.clone());
        }
        match from {
            Some(from) => self.fail(from, failure),
            None => self.end_when_deserted(),
        }
    }

    fn restored(&mut self, now: Now, id: &Id, from: ReqId, result: Result<u32, Failure>) {
        let reaped_at = result.as_ref().ok().and_then(|pid| self.reaped_at(*pid));
        let Some(task) = self.tasks.get_mut(id) else { return };
        match result {
            Ok(pid) => {
                task.life = Life::Running { pid };
                task.started_at_ns = Some(reaped_at.unwrap_or(now.unix_ns));
                self.tell_started(id, pid, from);
                self.kill_if_stopped(id, pid);
                self.claim(now, pid);
            }
            Err(failure) => {
                task.life = Life::Prepared;
                self.fail(from, failure);
            }
        }
    }

    fn tell_started(&mut self, id: &Id, pid: u32, from: ReqId) {
        self.publish(Notice::Started { task: id.clone(), pid });
        self.feed_task(id, FeedEvent::Started);
        self.reply(from, Reply::Pid(pid));
    }

    fn started(&mut self, now: Now, id: &Id, from: ReqId, result: Result<(), Failure>) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let Life::Starting { pid, exit } = task.life else { return };
        match result {
            Ok(()) => {
                task.life = Life::Running { pid };
                // A process that was reaped before its start was reported cannot have started after its end.
                task.started_at_ns = Some(exit.map_or(now.unix_ns, |exit| exit.at_ns.min(now.unix_ns)));
                self.tell_started(id, pid, from);
            }
            Err(failure) => {
                task.life = Life::Created { pid };
                self.fail(from, failure);
            }
        }
        if let Some(exit) = exit {
            self.init_exited(now, id, pid, exit);
        }
    }

    fn exec_started(
        &mut self,
        now: Now,
        process: &Process,
        from: Option<ReqId>,
        result: Result<u32, Failure>,
    ) {
        let Ok(exec) = self.exec_mut(process) else {
            // The container was given up on and deleted meanwhile.
            if let Some(from) = from {
                self.fail(from, super::no_such_exec(process));
            }
            return;
        };
        if !matches!(exec.life, ExecLife::Starting) {
            // One of the same name, in a container of the same name.
            if let Some(from) = from {
                self.fail(from, super::no_such_exec(process));
            }
            return;
        }
        let pid = match result {
            Ok(pid) => pid,
            Err(failure) => {
                exec.life = ExecLife::Added;
                self.exec_failed(process, from, failure);
                self.finish_leaving(&process.task, false);
                return;
            }
        };
        exec.life = ExecLife::Running { pid };
        if let Owner::Sync { limit, .. } = &mut exec.owner {
            *limit = limit.started(now.mono_ms);
        }
        if let Owner::Stream { to } = exec.owner
            && let Some(exec) = process.exec.clone()
        {
            self.reply(to, Reply::ExecStreams { exec });
        }
        if let Some(from) = from {
            if let Some(exec) = process.exec.clone() {
                self.publish(Notice::ExecStarted { task: process.task.clone(), exec, pid });
            }
            self.reply(from, Reply::Pid(pid));
        }
        self.claim(now, pid);
        self.kill_doomed(process);
    }

    /// Kills an exec whose end was decided while the runtime was still at its start: its time has passed, or nobody
    /// wants it any more.
    fn kill_doomed(&mut self, process: &Process) {
        let Ok(exec) = self.exec_mut(process) else { return };
        let doomed = match exec.owner {
            Owner::Sync { limit: Limit::GiveUpAt(_), .. } | Owner::Nobody => true,
            Owner::Sync { limit: Limit::None | Limit::AfterStart { .. } | Limit::KillAt(_), .. }
            | Owner::Client
            | Owner::Stream { .. } => false,
        };
        if let Some(pid) = exec.living_pid().filter(|_| doomed) {
            self.kill_tree(process.clone(), pid);
        }
    }

    /// Whoever waits for an exec that could not be started learns why; a client may start it again.
    fn exec_failed(&mut self, process: &Process, from: Option<ReqId>, failure: Failure) {
        if let Some(from) = from {
            let waiters = self.exec_mut(process).map(|exec| std::mem::take(&mut exec.waiters));
            for to in waiters.unwrap_or_default() {
                self.fail(to, failure.clone());
            }
            self.fail(from, failure);
            return;
        }
        let owner = self.exec_mut(process).ok().map(|exec| std::mem::replace(&mut exec.owner, Owner::Nobody));
        match owner {
            Some(Owner::Sync { to, .. } | Owner::Stream { to }) => self.fail(to, failure),
            Some(Owner::Client | Owner::Nobody) | None => {}
        }
        self.drop_exec(process);
    }

    fn switched(&mut self, id: &Id, pid: u32, to: Switch, result: &Result<(), Failure>) {
        // A container of this name that was made since is another one.
        let Some(task) = self.tasks.get_mut(id).filter(|task| task.created_pid() == Some(pid)) else {
            return;
        };
        if !matches!(task.life, Life::Switching { .. }) {
            // Its init was reaped meanwhile: what is left of it must not stay frozen.
            if to == Switch::Pause && result.is_ok() {
                self.thaw(id, pid, None);
            }
            return;
        }
        let frozen = match (to, result) {
            (Switch::Pause, Ok(())) | (Switch::Resume, Err(_)) => true,
            (Switch::Resume, Ok(())) | (Switch::Pause, Err(_)) => false,
        };
        task.life = if frozen { Life::Paused { pid } } else { Life::Running { pid } };
        if result.is_ok() {
            self.tell_switched(id, to);
        }
        // A failed thawing is not tried for ever.
        if to == Switch::Pause {
            self.thaw_doomed(id);
        }
    }

    fn saved(&mut self, now: Now, id: &Id, from: ReqId, result: Result<(), Failure>) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let Life::Saving { pid, from: saved, exit } = task.life else { return };
        task.life = match saved {
            Saved::Running => Life::Running { pid },
            Saved::Paused => Life::Paused { pid },
        };
        if result.is_ok() {
            self.publish(Notice::Checkpointed(id.clone()));
        }
        self.answer(from, result.map(|()| Reply::Empty));
        match exit {
            Some(exit) => self.init_exited(now, id, pid, exit),
            None => self.thaw_doomed(id),
        }
    }

    /// Lets a container die that was killed while it was on its way to being frozen.
    fn thaw_doomed(&mut self, id: &Id) {
        if self.tasks.get(id).is_some_and(|task| task.doomed) {
            self.thaw_to_die(id);
        }
    }

    fn tell_switched(&mut self, id: &Id, to: Switch) {
        match to {
            Switch::Pause => {
                self.publish(Notice::Paused(id.clone()));
                self.feed_task(id, FeedEvent::Paused);
            }
            Switch::Resume => {
                self.publish(Notice::Resumed(id.clone()));
                self.feed_task(id, FeedEvent::Resumed);
            }
        }
    }

    fn forgotten(&mut self, id: &Id, result: Result<(), Failure>) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let Life::Deleting { pid, init, from, .. } = task.life else { return };
        match (result, from) {
            (Ok(()), _) => {
                task.life = Life::Deleting { pid, init, forgotten: Some(Forgotten::ByRuntime), from };
                self.finish_delete(id);
            }
            // The pod ends all the same; the runtime was asked twice, the second time to use force.
            (Err(_), None) => {
                task.life = Life::Deleting { pid, init, forgotten: Some(Forgotten::ByNobody), from };
                self.finish_delete(id);
            }
            (Err(failure), Some(from)) => {
                task.life = match init {
                    Init::Never => Life::Prepared,
                    Init::Living => Life::Created { pid },
                    Init::Leaving { exit, until_ms } => Life::Leaving { pid, exit, until_ms },
                    Init::Told(exit) => Life::Stopped { pid, exit },
                };
                self.fail(from, failure);
            }
        }
    }

    /// Completes a deletion once the runtime has forgotten the container and its exit was told.
    pub(super) fn finish_delete(&mut self, id: &Id) {
        let Some(task) = self.tasks.get(id) else { return };
        let Life::Deleting { pid, init, forgotten: Some(forgotten), from } = task.life else { return };
        let exit = match init {
            Init::Never => Exit::default(),
            Init::Told(exit) => exit,
            Init::Living | Init::Leaving { .. } => return,
        };
        self.drop_task(id, pid, exit, forgotten);
        match from {
            Some(from) => self.reply(from, Reply::Exited { pid, exit }),
            None => self.end_when_deserted(),
        }
    }

    fn drop_task(&mut self, id: &Id, pid: u32, exit: Exit, forgotten: Forgotten) {
        let execs: Vec<Process> = self
            .tasks
            .get(id)
            .map(|task| task.execs.keys().map(|exec| Process::exec(id, exec)).collect())
            .unwrap_or_default();
        for process in execs {
            self.give_up_exec(&process, exit);
        }
        let waiters = self.tasks.remove(id).map(|task| task.waiters).unwrap_or_default();
        for to in waiters {
            self.fail(to, deleted(id));
        }
        self.effect(match forgotten {
            Forgotten::ByRuntime => Effect::Forget(Process::init(id)),
            Forgotten::ByNobody => Effect::Abandon(id.clone()),
        });
        self.publish(Notice::Deleted { task: id.clone(), pid, exit });
        self.feed(FeedEvent::Deleted(id.clone()));
    }

    /// The exec goes with its container. One that still runs was killed and cannot die: its end is told all the same.
    fn give_up_exec(&mut self, process: &Process, init: Exit) {
        let Ok(exec) = self.exec_mut(process) else { return };
        if let ExecLife::Leaving { pid, exit, .. } = exec.life {
            self.tell_exec_exit(process, pid, exit);
            self.drop_exec(process);
            return;
        }
        match (&exec.owner, exec.living_pid()) {
            (Owner::Client | Owner::Stream { .. }, Some(pid)) => {
                self.effect(Effect::Drain(process.clone()));
                self.tell_exec_exit(process, pid, Exit { code: KILLED, ..init });
            }
            (Owner::Sync { to, .. } | Owner::Stream { to }, _) => {
                let to = *to;
                exec.owner = Owner::Nobody;
                self.fail(to, deleted(&process.task));
            }
            (Owner::Client | Owner::Nobody, _) => {}
        }
        self.drop_exec(process);
    }
}

fn deleted(id: &Id) -> Failure {
    Failure::new(Code::NotFound, format!("container {id} is deleted: not found"))
}
