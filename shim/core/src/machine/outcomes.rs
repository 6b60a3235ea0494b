//! Outcomes of effects that take time.

use super::{Machine, Op};
use crate::effect::{Effect, Notice};
use crate::event::{Now, OpId, Process, ReqId};
use crate::exec::{ExecLife, Limit, Owner};
use crate::feed::FeedEvent;
use crate::id::Id;
use crate::reply::{Code, Exit, Failure, Reply};
use crate::task::{Life, Switch};

impl Machine {
    pub(super) fn spawned(&mut self, now: Now, op: OpId, result: Result<u32, Failure>) {
        let Some(op) = self.ops.remove(&op) else { return };
        match op {
            Op::Create { task, from } => self.created(now, task, from, result),
            Op::Exec { task, exec, from } => {
                self.exec_started(now, &Process::exec(&task, &exec), from, result);
            }
            Op::StartSandbox => self.sandbox_started(now, result),
            Op::Start { .. }
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
            Some(Op::Create { .. } | Op::Exec { .. } | Op::StartSandbox) => {
                self.spawned(now, op, result.and_then(no_pid));
            }
            Some(
                Op::Start { .. }
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
            Op::Start { task, from } => self.started(now, &task, from, result),
            Op::Switch { task, to, from } => self.switched(&task, to, from, result),
            Op::Update { from } => self.answer(from, result.map(|()| Reply::Empty)),
            Op::Checkpoint { task, from } => {
                if result.is_ok() {
                    self.publish(Notice::Checkpointed(task));
                }
                self.answer(from, result.map(|()| Reply::Empty));
            }
            Op::Delete { task } => self.forgotten(&task, result),
            Op::ReleaseSandbox => self.released(),
            Op::Create { .. } | Op::Exec { .. } | Op::StartSandbox => {}
        }
    }

    fn created(&mut self, now: Now, id: Id, from: ReqId, result: Result<u32, Failure>) {
        match result {
            Ok(pid) => {
                self.set_life(&id, Life::Created { pid });
                self.publish(Notice::Created { task: id.clone(), pid });
                self.feed_task(&id, FeedEvent::Created);
                self.reply(from, Reply::Pid(pid));
                self.claim(now, pid);
            }
            Err(failure) => {
                let waiters = self.tasks.remove(&id).map(|task| task.waiters).unwrap_or_default();
                for to in waiters {
                    self.fail(to, failure.clone());
                }
                self.fail(from, failure);
            }
        }
    }

    fn started(&mut self, now: Now, id: &Id, from: ReqId, result: Result<(), Failure>) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let Life::Starting { pid, exit } = task.life else { return };
        match result {
            Ok(()) => {
                task.life = Life::Running { pid };
                // A process that was reaped before its start was reported cannot have started after its end.
                task.started_at_ns = Some(exit.map_or(now.unix_ns, |exit| exit.at_ns.min(now.unix_ns)));
                self.publish(Notice::Started { task: id.clone(), pid });
                self.feed_task(id, FeedEvent::Started);
                self.reply(from, Reply::Pid(pid));
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
            Owner::Sync { limit: Limit::None | Limit::KillAt(_), .. }
            | Owner::Client
            | Owner::Stream { .. } => false,
        };
        if let Some(pid) = exec.living_pid().filter(|_| doomed) {
            self.kill_tree(process.clone(), pid);
        }
    }

    fn exec_failed(&mut self, process: &Process, from: Option<ReqId>, failure: Failure) {
        if let Some(from) = from {
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

    fn switched(&mut self, id: &Id, to: Switch, from: Option<ReqId>, result: Result<(), Failure>) {
        let Some(task) = self.tasks.get_mut(id) else {
            if let Some(from) = from {
                self.fail(
                    from,
                    Failure::new(Code::NotFound, format!("container {id} is deleted: not found")),
                );
            }
            return;
        };
        if let Life::Switching { pid, .. } = task.life {
            let frozen = match (to, &result) {
                (Switch::Pause, Ok(())) | (Switch::Resume, Err(_)) => true,
                (Switch::Resume, Ok(())) | (Switch::Pause, Err(_)) => false,
            };
            task.life = if frozen { Life::Paused { pid } } else { Life::Running { pid } };
            if result.is_ok() {
                self.tell_switched(id, to);
            }
        }
        if let Some(from) = from {
            self.answer(from, result.map(|()| Reply::Empty));
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
        let Life::Deleting { pid, exit, from, .. } = task.life else { return };
        match (result, from) {
            (Ok(()), _) | (Err(_), None) => {
                task.life = Life::Deleting { pid, exit, forgotten: true, from };
                self.finish_delete(id);
            }
            (Err(failure), Some(from)) => {
                task.life = match exit {
                    Some(exit) => Life::Stopped { pid, exit },
                    None => Life::Created { pid },
                };
                self.fail(from, failure);
            }
        }
    }

    /// Completes a deletion once the runtime has forgotten the container and its exit was told.
    pub(super) fn finish_delete(&mut self, id: &Id) {
        let Some(task) = self.tasks.get(id) else { return };
        let Life::Deleting { pid, exit: Some(exit), forgotten: true, from } = task.life else { return };
        self.drop_task(id, pid, exit);
        if let Some(from) = from {
            self.reply(from, Reply::Exited { pid, exit });
        }
    }

    fn drop_task(&mut self, id: &Id, pid: u32, exit: Exit) {
        let execs: Vec<Process> = self
            .tasks
            .get(id)
            .map(|task| task.execs.keys().map(|exec| Process::exec(id, exec)).collect())
            .unwrap_or_default();
        for process in execs {
            self.give_up_exec(&process);
        }
        self.tasks.remove(id);
        self.effect(Effect::Forget(Process::init(id)));
        self.publish(Notice::Deleted { task: id.clone(), pid, exit });
        self.feed(FeedEvent::Deleted(id.clone()));
    }

    fn give_up_exec(&mut self, process: &Process) {
        if let Ok(exec) = self.exec_mut(process)
            && let Owner::Sync { to, .. } | Owner::Stream { to } =
                std::mem::replace(&mut exec.owner, Owner::Nobody)
        {
            self.fail(
                to,
                Failure::new(Code::NotFound, format!("container {} is deleted: not found", process.task)),
            );
        }
        self.drop_exec(process);
    }
}
