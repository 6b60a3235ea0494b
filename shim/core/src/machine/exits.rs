//! Exits of processes, and the deadlines that go with them.
//!
//! The exit of a container is recorded when its init is reaped: who kills the shim while the exit waits to be told, for execs or for
//! a disk, finds it there.

use super::{Machine, Op, UNCLAIMED_MAX, Unclaimed};
use crate::effect::{Effect, Notice};
use crate::event::{Now, Process, ReqId};
use crate::exec::{EXEC_KILL_WAIT_MS, Exec, ExecLife, Limit, Owner};
use crate::feed::FeedEvent;
use crate::id::Id;
use crate::reply::{Exit, Reply};
use crate::task::{EXECS_WAIT_MS, Init, Life, OUTPUT_WAIT_MS, Output};

/// What a killed process is said to have exited with, when it has not by the time its client is answered.
pub(super) const KILLED: u32 = 137;

impl Machine {
    pub(super) fn child_exited(&mut self, now: Now, pid: u32, code: u32) {
        if self.take_exit(now, pid, code, now.unix_ns) {
            return;
        }
        if self.ops.values().any(Op::spawns) {
            if self.unclaimed.len() == UNCLAIMED_MAX {
                self.unclaimed.pop_front();
            }
            self.unclaimed.push_back(Unclaimed { pid, code, at_ns: now.unix_ns });
        }
    }

    /// Applies the exit of a process that was reaped before it was reported.
    pub(super) fn claim(&mut self, now: Now, pid: u32) {
        if let Some(at) = self.unclaimed.iter().position(|unclaimed| unclaimed.pid == pid)
            && let Some(Unclaimed { pid, code, at_ns }) = self.unclaimed.remove(at)
        {
            self.take_exit(now, pid, code, at_ns);
        }
    }

    /// When a process was reaped that is reported only now.
    pub(super) fn reaped_at(&self, pid: u32) -> Option<i64> {
        self.unclaimed.iter().find(|unclaimed| unclaimed.pid == pid).map(|unclaimed| unclaimed.at_ns)
    }

    /// Whether the process was one of ours.
    fn take_exit(&mut self, now: Now, pid: u32, code: u32, at_ns: i64) -> bool {
        if self.sandbox_pid() == Some(pid) {
            self.sandbox_gone(now);
            return true;
        }
        let found = self.tasks.iter().find_map(|(id, task)| {
            if task.living_pid() == Some(pid) {
                return Some((Process::init(id), task.oom_kills));
            }
            let (exec, _) = task.execs.iter().find(|(_, exec)| exec.living_pid() == Some(pid))?;
            Some((Process::exec(id, exec), task.oom_kills))
        });
        let Some((process, oom_kills)) = found else { return false };
        let exit = Exit { code, at_ns, oom_kills };
        if process.exec.is_some() {
            self.exec_exited(now, &process, pid, exit);
        } else {
            self.effect(Effect::Persist { task: process.task.clone(), exit });
            self.init_exited(now, &process.task, pid, exit);
        }
        true
    }

    /// Whoever learns of an exec's exit reads next what it wrote to a file.
    fn exec_exited(&mut self, now: Now, process: &Process, pid: u32, exit: Exit) {
        self.effect(Effect::Drain(process.clone()));
        let Ok(exec) = self.exec_mut(process) else { return };
        match exec.owner {
            Owner::Client => {
                let until_ms = now.mono_ms + OUTPUT_WAIT_MS;
                exec.life = ExecLife::Leaving { pid, exit, until_ms };
            }
            Owner::Sync { .. } | Owner::Stream { .. } | Owner::Nobody => {
                self.tell_exec_exit(process, pid, exit);
            }
        }
    }

    pub(super) fn tell_exec_exit(&mut self, process: &Process, pid: u32, exit: Exit) {
        let Ok(exec) = self.exec_mut(process) else { return };
        exec.life = ExecLife::Stopped { pid, exit };
        let waiters = std::mem::take(&mut exec.waiters);
        match exec.owner {
            Owner::Client => {
                self.publish(Notice::Exited { process: process.clone(), pid, exit });
                self.effect(Effect::EndStreams { process: process.clone(), code: exit.code });
                self.tell_exit(waiters, pid, exit);
            }
            Owner::Sync { to, limit } => self.finish_sync(process, to, exit.code, limit),
            Owner::Stream { .. } | Owner::Nobody => {
                self.effect(Effect::EndStreams { process: process.clone(), code: exit.code });
                self.drop_exec(process);
            }
        }
        self.finish_leaving(&process.task, false);
    }

    fn finish_sync(&mut self, process: &Process, to: ReqId, code: u32, limit: Limit) {
        if let Some(exec) = process.exec.clone() {
            self.reply(to, Reply::ExecDone { exec, code, timed_out: limit.timed_out() });
        }
        self.drop_exec(process);
    }

    /// The init is gone. What it leaves behind in its cgroup goes too, and the exits of its execs are told first.
    pub(super) fn init_exited(&mut self, now: Now, id: &Id, pid: u32, exit: Exit) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let until_ms = now.mono_ms + EXECS_WAIT_MS;
        let frozen = task.must_be_paused().is_ok();
        match &mut task.life {
            Life::Starting { exit: kept, .. } | Life::Saving { exit: kept, .. } => {
                *kept = Some(exit);
                return;
            }
            Life::Deleting { init, .. } => *init = Init::Leaving { exit, until_ms },
            Life::Created { .. } | Life::Running { .. } | Life::Switching { .. } | Life::Paused { .. } => {
                task.life = Life::Leaving { pid, exit, until_ms };
            }
            Life::Creating { .. }
            | Life::Prepared
            | Life::Restoring
            | Life::Leaving { .. }
            | Life::Stopped { .. } => return,
        }
        self.kill_container(id, pid);
        // What is left of it dies only once it is thawed (`process/init_state.go`, `pausedState.SetExited`).
        if frozen {
            self.thaw(id, pid, None);
        }
        self.finish_leaving(id, false);
    }

    /// Tells the exit of an init whose execs are done, and whose last output is on disk, or are given up on.
    pub(super) fn finish_leaving(&mut self, id: &Id, give_up: bool) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let (Life::Leaving { pid, exit, .. } | Life::Deleting { pid, init: Init::Leaving { exit, .. }, .. }) =
            task.life
        else {
            return;
        };
        match task.output {
            Output::Open if give_up || !task.execs.values().any(Exec::is_due) => {
                task.begin_draining();
                self.effect(Effect::Drain(Process::init(id)));
            }
            Output::Draining if give_up => self.tell_init_exit(id, pid, exit),
            Output::Open | Output::Draining => {}
        }
    }

    /// Everything that a process has written is where it belongs.
    pub(super) fn drained(&mut self, process: &Process) {
        if process.exec.is_some() {
            self.finish_leaving_exec(process);
        } else if self.tasks.get(&process.task).is_some_and(|task| task.output == Output::Draining) {
            self.finish_leaving(&process.task, true);
        }
    }

    /// Tells the exit of an exec whose output is written, or is given up on.
    fn finish_leaving_exec(&mut self, process: &Process) {
        if let Ok(Exec { life: ExecLife::Leaving { pid, exit, .. }, .. }) = self.exec_mut(process) {
            let (pid, exit) = (*pid, *exit);
            self.tell_exec_exit(process, pid, exit);
        }
    }

    /// Publish, then answer. It was recorded when the init was reaped.
    fn tell_init_exit(&mut self, id: &Id, pid: u32, exit: Exit) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let deleting = if let Life::Deleting { init, .. } = &mut task.life {
            *init = Init::Told(exit);
            true
        } else {
            task.life = Life::Stopped { pid, exit };
            false
        };
        let waiters = std::mem::take(&mut task.waiters);
        let process = Process::init(id);
        self.publish(Notice::Exited { process: process.clone(), pid, exit });
        self.feed_task(id, FeedEvent::Exited);
        self.effect(Effect::EndStreams { process, code: exit.code });
        self.tell_exit(waiters, pid, exit);
        if deleting {
            self.finish_delete(id);
        }
    }

    fn tell_exit(&mut self, waiters: Vec<ReqId>, pid: u32, exit: Exit) {
        for to in waiters {
            self.reply(to, Reply::Exited { pid, exit });
        }
    }

    pub(super) fn deadlines(&mut self, now: Now) {
        let late: Vec<Id> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.leaves_at().is_some_and(|at| at <= now.mono_ms))
            .map(|(id, _)| id.clone())
            .collect();
        for id in late {
            self.finish_leaving(&id, true);
        }
        for process in self.late_execs(now) {
            self.exec_late(now, &process);
        }
        if self.ends_at().is_some_and(|at| at <= now.mono_ms) {
            self.exit();
        }
    }

    fn late_execs(&self, now: Now) -> Vec<Process> {
        let late = |exec: &Exec| exec.due_at().is_some_and(|at| at <= now.mono_ms);
        self.tasks
            .iter()
            .flat_map(|(id, task)| task.execs.iter().map(move |(exec_id, exec)| (id, exec_id, exec)))
            .filter(|(_, _, exec)| late(exec))
            .map(|(id, exec_id, _)| Process::exec(id, exec_id))
            .collect()
    }

    fn exec_late(&mut self, now: Now, process: &Process) {
        self.finish_leaving_exec(process);
        let Ok(exec) = self.exec_mut(process) else { return };
        let pid = exec.living_pid();
        let Owner::Sync { to, limit } = &mut exec.owner else { return };
        let to = *to;
        if limit.timed_out() {
            // Killed long enough ago: the process cannot die (uninterruptible), its client can still be answered.
            exec.owner = Owner::Nobody;
            if let Some(exec) = process.exec.clone() {
                self.effect(Effect::Drain(process.clone()));
                self.reply(to, Reply::ExecDone { exec, code: KILLED, timed_out: true });
            }
            return;
        }
        *limit = Limit::GiveUpAt(now.mono_ms + EXEC_KILL_WAIT_MS);
        if let Some(pid) = pid {
            self.kill_tree(process.clone(), pid);
        }
    }
}
