//! Requests about tasks and execs. Each method answers, parks or starts an operation.

use super::{Machine, Op, SIGKILL, TASKS_MAX, no_such_exec};
use crate::effect::{Action, Effect, Notice, Scope};
use crate::event::{ExecPurpose, Now, Origin, Process, ReqId, Request};
use crate::exec::{Exec, ExecLife, Limit, Owner};
use crate::id::Id;
use crate::reply::{Code, Failure, Reply, Truth};
use crate::task::{Begin, EXECS_MAX, Life, Switch, Task};

impl Machine {
    pub(super) fn request(&mut self, now: Now, from: ReqId, request: Request) {
        let done = match request {
            Request::Create(task, origin) => self.create(now, from, task, origin),
            Request::Start(process) => self.start(from, process),
            Request::AddExec(task, exec) => self.add_exec(from, &task, exec),
            Request::Kill { process, signal, scope } => self.kill(from, process, signal, scope),
            Request::Wait(process) => self.wait(from, &process),
            Request::Delete(process) => self.delete(from, process),
            Request::State(process) => self.state(from, &process),
            Request::IfCreated(process) => self.if_created(from, process),
            Request::IfNotExited(process) => self.if_not_exited(from, process),
            Request::IfAlive(process) => self.if_alive(from, process),
            Request::Pause(task) => self.switch(from, task, Switch::Pause),
            Request::Resume(task) => self.switch(from, task, Switch::Resume),
            Request::Update(task) => self.update(from, task),
            Request::Checkpoint(task) => self.checkpoint(from, task),
            Request::Connect(task) => {
                let pid = task.and_then(|task| self.tasks.get(&task)?.created_pid()).unwrap_or(0);
                self.reply(from, Reply::Pid(pid));
                Ok(())
            }
            Request::Shutdown => {
                self.shutdown(from);
                Ok(())
            }
            Request::CreateSandbox => self.create_sandbox(now, from),
            Request::StartSandbox => self.start_sandbox(from),
            Request::StopSandbox => self.stop_sandbox(now, from),
            Request::WaitSandbox => self.wait_sandbox(from),
            Request::SandboxStatus => self.sandbox_status(from),
            Request::ShutdownSandbox => self.shutdown_sandbox(from),
            Request::Truth => {
                let truth = self.truth();
                self.reply(from, Reply::Truth(truth));
                Ok(())
            }
            Request::Events { since } => {
                if let Some(reply) = self.feed.since(from, since) {
                    self.reply(from, reply);
                }
                Ok(())
            }
            Request::RunExec(task, purpose) => self.run_exec(now, from, task, purpose),
        };
        if let Err(failure) = done {
            self.fail(from, failure);
        }
    }

    /// A client went away: what was parked for it is forgotten, and what ran only for it is killed.
    pub(super) fn gone(&mut self, from: ReqId) {
        self.feed.forget(from);
        self.sandbox.waiters.retain(|waiter| *waiter != from);
        for op in self.ops.values_mut() {
            if let Op::Create { from: asker, .. } | Op::Prepare { from: asker, .. } = op {
                asker.take_if(|asker| *asker == from);
            }
        }
        let mut orphans = Vec::new();
        for (id, task) in &mut self.tasks {
            task.abandon(from);
            task.waiters.retain(|waiter| *waiter != from);
            for (exec_id, exec) in &mut task.execs {
                exec.waiters.retain(|waiter| *waiter != from);
                if let Owner::Sync { to, .. } | Owner::Stream { to } = exec.owner
                    && to == from
                {
                    exec.owner = Owner::Nobody;
                    orphans.extend(exec.living_pid().map(|pid| (Process::exec(id, exec_id), pid)));
                }
            }
        }
        for (process, pid) in orphans {
            self.kill_tree(process, pid);
        }
    }

    fn create(&mut self, now: Now, from: ReqId, id: Id, origin: Origin) -> Result<(), Failure> {
        if self.closing.is_some() {
            return Err(crate::sandbox::refuse("the sandbox is being shut down"));
        }
        self.sandbox.may_create_member()?;
        if self.tasks.contains_key(&id) {
            return Err(Failure::new(Code::AlreadyExists, format!("container {id} exists already")));
        }
        if self.tasks.len() >= TASKS_MAX {
            return Err(Failure::new(
                Code::ResourceExhausted,
                format!("the shim has {TASKS_MAX} containers"),
            ));
        }
        self.tasks.insert(id.clone(), Task::new(now.unix_ns));
        let (task, waits) = (id.clone(), Some(from));
        match origin {
            Origin::Bundle => self.run(Op::Create { task, from: waits }, Action::Create { task: id, from }),
            Origin::Checkpoint => {
                self.run(Op::Prepare { task, from: waits }, Action::Prepare { task: id, from });
            }
        }
        Ok(())
    }

    fn start(&mut self, from: ReqId, process: Process) -> Result<(), Failure> {
        let Process { task: id, exec } = process;
        match exec {
            None => match self.task(&id)?.may_start()? {
                Begin::Start { pid } => {
                    self.set_life(&id, Life::Starting { pid, exit: None });
                    self.run(Op::Start { task: id.clone(), from }, Action::Start(id));
                }
                Begin::Restore => {
                    self.sandbox.may_create_member()?;
                    self.set_life(&id, Life::Restoring);
                    self.run(Op::Restore { task: id.clone(), from }, Action::Restore(id));
                }
            },
            Some(exec_id) => {
                self.task(&id)?.may_exec()?;
                let process = Process::exec(&id, &exec_id);
                let exec = self.exec_mut(&process)?;
                exec.may_start()?;
                exec.life = ExecLife::Starting;
                let op = Op::Exec { task: id, exec: exec_id, from: Some(from) };
                self.run(op, Action::Exec { process, from: None });
            }
        }
        Ok(())
    }

    fn add_exec(&mut self, from: ReqId, id: &Id, exec: Id) -> Result<(), Failure> {
        self.task(id)?.may_exec()?;
        self.room_for_exec(id)?;
        let process = Process::exec(id, &exec);
        if self.exec_mut(&process).is_ok() {
            return Err(Failure::new(
                Code::AlreadyExists,
                format!("exec {exec} exists already in container {id}"),
            ));
        }
        self.insert_exec(id, exec.clone(), Exec::new(ExecLife::Added, Owner::Client));
        self.effect(Effect::KeepExec { process, from });
        self.publish(Notice::ExecAdded { task: id.clone(), exec });
        self.reply(from, Reply::Empty);
        Ok(())
    }

    fn run_exec(&mut self, now: Now, from: ReqId, id: Id, purpose: ExecPurpose) -> Result<(), Failure> {
        self.task(&id)?.must_run()?;
        self.room_for_exec(&id)?;
        self.last_exec += 1;
        let exec = Id::internal(self.last_exec);
        let owner = match purpose {
            ExecPurpose::Sync { timeout_ms } => {
                Owner::Sync { to: from, limit: Limit::of(timeout_ms, now.mono_ms) }
            }
            ExecPurpose::Stream => Owner::Stream { to: from },
        };
        self.insert_exec(&id, exec.clone(), Exec::new(ExecLife::Starting, owner));
        let process = Process::exec(&id, &exec);
        let op = Op::Exec { task: id, exec, from: None };
        self.run(op, Action::Exec { process, from: Some(from) });
        Ok(())
    }

    fn room_for_exec(&self, id: &Id) -> Result<(), Failure> {
        let task = self.task(id)?;
        if task.execs.len() >= EXECS_MAX {
            return Err(Failure::new(
                Code::ResourceExhausted,
                format!("container {id} has {EXECS_MAX} execs"),
            ));
        }
        Ok(())
    }

    fn kill(&mut self, from: ReqId, process: Process, signal: i32, scope: Scope) -> Result<(), Failure> {
        let task = self.task(&process.task)?;
        let pid = match &process.exec {
            None => task.signal_target()?,
            Some(exec) => task.execs.get(exec).ok_or_else(|| no_such_exec(&process))?.signal_target()?,
        };
        let end = (signal == SIGKILL && process.exec.is_none()).then(|| process.task.clone());
        self.effect(Effect::Signal { process, pid, signal, scope });
        if let Some(id) = end {
            if let Some(task) = self.tasks.get_mut(&id) {
                task.doomed = true;
            }
            self.thaw_to_die(&id);
        }
        self.reply(from, Reply::Empty);
        Ok(())
    }

    /// A frozen process of cgroup v1 dies of a SIGKILL only once it is thawed.
    pub(super) fn thaw_to_die(&mut self, id: &Id) {
        if let Some(pid) = self.tasks.get(id).and_then(|task| task.must_be_paused().ok()) {
            self.set_life(id, Life::Switching { pid, to: Switch::Resume });
            self.thaw(id, pid, None);
        }
    }

    pub(super) fn thaw(&mut self, id: &Id, pid: u32, from: Option<ReqId>) {
        let op = Op::Switch { task: id.clone(), pid, to: Switch::Resume, from };
        self.run(op, Action::Resume(id.clone()));
    }

    fn wait(&mut self, from: ReqId, process: &Process) -> Result<(), Failure> {
        let end = match &process.exec {
            None => self.task(&process.task)?.end(),
            Some(_) => self.exec_mut(process)?.end(),
        };
        if let Some((pid, exit)) = end {
            self.reply(from, Reply::Exited { pid, exit });
        } else if process.exec.is_some() {
            self.exec_mut(process)?.waiters.push(from);
        } else if let Some(task) = self.tasks.get_mut(&process.task) {
            task.waiters.push(from);
        }
        Ok(())
    }

    fn delete(&mut self, from: ReqId, process: Process) -> Result<(), Failure> {
        if process.exec.is_some() {
            let (pid, exit) = self.exec_mut(&process)?.may_delete()?;
            self.drop_exec(&process);
            self.reply(from, Reply::Exited { pid, exit });
            return Ok(());
        }
        let task = self.task(&process.task)?;
        if let Some(adopted) = task.adopt(from) {
            self.set_life(&process.task, adopted);
            return Ok(());
        }
        let life = task.delete(Some(from))?;
        self.begin_delete(&process.task, life);
        Ok(())
    }

    /// Deletes a container that was to be deleted as soon as it was made.
    pub(super) fn delete_made(&mut self, id: &Id, from: Option<ReqId>) {
        match self.task(id).and_then(|task| task.delete(from)) {
            Ok(life) => self.begin_delete(id, life),
            Err(failure) => {
                if let Some(from) = from {
                    self.fail(from, failure);
                }
            }
        }
    }

    /// Kills what still lives in the container and has the runtime forget it.
    pub(super) fn begin_delete(&mut self, id: &Id, life: Life) {
        let Some(task) = self.tasks.get(id) else { return };
        if let Some(pid) = task.living_pid() {
            self.kill_container(id, pid);
        }
        self.set_life(id, life);
        self.run(Op::Delete { task: id.clone() }, Action::Delete(id.clone()));
    }

    /// While it is being created, a container has no state, and the refusal says so. The runc shim since 2.3 answers `NotFound`,
    /// which containerd tells its clients as "no such task" (`getProcessState` in `plugins/services/tasks/local.go`), although
    /// the creation goes on when containerd is killed in it: the task would come to life after the next containerd has denied it. For a
    /// refusal containerd lists a task of unknown status, at which clients look again, and logs an error.
    fn state(&mut self, from: ReqId, process: &Process) -> Result<(), Failure> {
        let view = self.task(&process.task)?.view();
        let init = view.ok_or_else(|| crate::task::refuse("is being created"))?;
        let view = match &process.exec {
            None => init,
            Some(_) => self.exec_mut(process)?.view().within(init.status),
        };
        self.reply(from, Reply::State(view));
        Ok(())
    }

    fn if_created(&mut self, from: ReqId, process: Process) -> Result<(), Failure> {
        let pid = match &process.exec {
            None => self
                .task(&process.task)?
                .created_pid()
                .ok_or_else(|| crate::task::refuse("is being created"))?,
            Some(_) => self.exec_mut(&process)?.view().pid,
        };
        self.effect(Effect::Allow { to: from, process, pid });
        Ok(())
    }

    fn if_not_exited(&mut self, from: ReqId, process: Process) -> Result<(), Failure> {
        let pid = match &process.exec {
            None => self.task(&process.task)?.not_exited_pid()?,
            Some(_) => self.exec_mut(&process)?.not_exited_pid()?,
        };
        self.effect(Effect::Allow { to: from, process, pid });
        Ok(())
    }

    fn if_alive(&mut self, from: ReqId, process: Process) -> Result<(), Failure> {
        let pid = match &process.exec {
            None => self.task(&process.task)?.signal_target()?,
            Some(_) => self.exec_mut(&process)?.signal_target()?,
        };
        self.effect(Effect::Allow { to: from, process, pid });
        Ok(())
    }

    fn switch(&mut self, from: ReqId, id: Id, to: Switch) -> Result<(), Failure> {
        match to {
            Switch::Pause => {
                let pid = self.task(&id)?.must_run()?;
                self.set_life(&id, Life::Switching { pid, to });
                let op = Op::Switch { task: id.clone(), pid, to, from: Some(from) };
                self.run(op, Action::Pause(id));
            }
            Switch::Resume => {
                let pid = self.task(&id)?.must_be_paused()?;
                self.set_life(&id, Life::Switching { pid, to });
                self.thaw(&id, pid, Some(from));
            }
        }
        Ok(())
    }

    /// One at a time: of two at once, either may be the last to be written.
    fn update(&mut self, from: ReqId, id: Id) -> Result<(), Failure> {
        self.task(&id)?.signal_target()?;
        if self.ops.values().any(|op| matches!(op, Op::Update { task, .. } if *task == id)) {
            let why = format!("another update of container {id} has not ended");
            return Err(Failure::new(Code::FailedPrecondition, why));
        }
        self.run(Op::Update { task: id.clone(), from }, Action::Update { task: id, from });
        Ok(())
    }

    fn checkpoint(&mut self, from: ReqId, id: Id) -> Result<(), Failure> {
        let (pid, saved) = self.task(&id)?.may_save()?;
        self.set_life(&id, Life::Saving { pid, from: saved, exit: None });
        self.run(Op::Checkpoint { task: id.clone(), from }, Action::Checkpoint { task: id, from });
        Ok(())
    }

    /// Ends the process only when nothing lives in it: containerd asks after every task, also of a pod that goes on.
    fn shutdown(&mut self, from: ReqId) {
        self.reply(from, Reply::Empty);
        if self.tasks.is_empty() && !self.sandbox.is_present() {
            self.exit();
        }
    }

    fn truth(&self) -> Truth {
        Truth {
            sandbox: self.sandbox.view(),
            seq: self.feed.last(),
            tasks: self.tasks.iter().filter_map(|(id, task)| task.task_view(id)).collect(),
        }
    }

    pub(super) fn set_life(&mut self, id: &Id, life: Life) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.life = life;
        }
    }

    pub(super) fn exec_mut(&mut self, process: &Process) -> Result<&mut Exec, Failure> {
        self.task(&process.task)?;
        let exec =
            process.exec.as_ref().and_then(|exec| self.tasks.get_mut(&process.task)?.execs.get_mut(exec));
        exec.ok_or_else(|| no_such_exec(process))
    }

    fn insert_exec(&mut self, id: &Id, exec_id: Id, exec: Exec) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.execs.insert(exec_id, exec);
        }
    }

    /// Forgets an exec; whoever still waits for it learns that it is gone.
    pub(super) fn drop_exec(&mut self, process: &Process) {
        let Some(exec) =
            process.exec.as_ref().and_then(|exec| self.tasks.get_mut(&process.task)?.execs.remove(exec))
        else {
            return;
        };
        for waiter in exec.waiters {
            self.fail(waiter, no_such_exec(process));
        }
        self.effect(Effect::Forget(process.clone()));
    }
}
