//! Requests about the sandbox, and its end.

use super::{Closing, Machine, Op};
use crate::effect::Action;
use crate::event::{Now, ReqId};
use crate::feed::FeedEvent;
use crate::id::Id;
use crate::reply::{Code, Failure, Reply};
use crate::sandbox::{Life, refuse};

impl Machine {
    pub(super) fn create_sandbox(&mut self, now: Now, from: ReqId) -> Result<(), Failure> {
        match self.sandbox.life {
            Life::Absent => {
                self.sandbox.life = Life::Created { at_ns: now.unix_ns };
                self.reply(from, Reply::Empty);
                Ok(())
            }
            Life::Created { .. } | Life::Starting { .. } | Life::Ready { .. } | Life::Stopped { .. } => {
                Err(Failure::new(Code::AlreadyExists, "the sandbox exists already"))
            }
        }
    }

    /// Starting a started sandbox changes nothing and is no error: a client that lost the answer asks again.
    pub(super) fn start_sandbox(&mut self, from: ReqId) -> Result<(), Failure> {
        match self.sandbox.life {
            Life::Absent => Err(refuse("the sandbox is not created")),
            Life::Created { at_ns } => {
                self.sandbox.life = Life::Starting { at_ns, from };
                self.run(Op::StartSandbox, Action::StartSandbox);
                Ok(())
            }
            Life::Starting { .. } => Err(refuse("the sandbox is being started")),
            Life::Ready { .. } => self.sandbox_status(from),
            Life::Stopped { .. } => Err(refuse("the sandbox is stopped")),
        }
    }

    pub(super) fn sandbox_started(&mut self, now: Now, result: Result<u32, Failure>) {
        let Life::Starting { at_ns, from } = self.sandbox.life else { return };
        match result {
            Ok(pid) => {
                self.sandbox.life = Life::Ready { at_ns, pid };
                if let Some(view) = self.sandbox.view() {
                    self.reply(from, Reply::Sandbox(view));
                }
                self.claim(now, pid);
            }
            Err(failure) => {
                self.sandbox.life = Life::Created { at_ns };
                self.fail(from, failure);
            }
        }
    }

    pub(super) fn stop_sandbox(&mut self, now: Now, from: ReqId) -> Result<(), Failure> {
        match self.sandbox.life {
            Life::Starting { .. } => return Err(refuse("the sandbox is being started")),
            Life::Created { .. } | Life::Ready { .. } => self.sandbox_gone(now),
            Life::Absent | Life::Stopped { .. } => {}
        }
        self.reply(from, Reply::Empty);
        Ok(())
    }

    /// The sandbox was stopped, or the process that was its PID 1 has died: no member outlives it.
    pub(super) fn sandbox_gone(&mut self, now: Now) {
        let (at_ns, pid) = match self.sandbox.life {
            Life::Ready { at_ns, pid } => (at_ns, pid),
            Life::Created { at_ns } | Life::Starting { at_ns, .. } => (at_ns, 0),
            Life::Absent | Life::Stopped { .. } => return,
        };
        self.sandbox.life = Life::Stopped { at_ns, pid, exited_at_ns: now.unix_ns };
        self.cancel_all();
        let living: Vec<(Id, u32)> =
            self.tasks.iter().filter_map(|(id, task)| Some((id.clone(), task.living_pid()?))).collect();
        for (id, pid) in living {
            self.kill_container(&id, pid);
            self.thaw_to_die(&id);
        }
        self.feed(FeedEvent::SandboxStopped);
        for to in std::mem::take(&mut self.sandbox.waiters) {
            self.reply(to, Reply::SandboxExited { at_ns: now.unix_ns });
        }
    }

    pub(super) fn wait_sandbox(&mut self, from: ReqId) -> Result<(), Failure> {
        match self.sandbox.life {
            Life::Absent => Err(no_sandbox()),
            Life::Created { .. } | Life::Starting { .. } | Life::Ready { .. } => {
                self.sandbox.waiters.push(from);
                Ok(())
            }
            Life::Stopped { exited_at_ns, .. } => {
                self.reply(from, Reply::SandboxExited { at_ns: exited_at_ns });
                Ok(())
            }
        }
    }

    pub(super) fn sandbox_status(&mut self, from: ReqId) -> Result<(), Failure> {
        let view = self.sandbox.view().ok_or_else(no_sandbox)?;
        self.reply(from, Reply::Sandbox(view));
        Ok(())
    }

    pub(super) fn shutdown_sandbox(&mut self, from: ReqId) -> Result<(), Failure> {
        if self.closing.is_some() {
            return Err(refuse("the sandbox is being shut down"));
        }
        self.closing = Some(Closing { from, releasing: false });
        self.cancel_all();
        Ok(())
    }

    /// Deletes every member as its state allows, then releases the sandbox.
    pub(super) fn advance_closing(&mut self) {
        let Some(closing) = &self.closing else { return };
        if closing.releasing {
            return;
        }
        if self.tasks.is_empty() {
            if !matches!(self.sandbox.life, Life::Starting { .. }) {
                self.closing = Some(Closing { from: closing.from, releasing: true });
                self.run(Op::ReleaseSandbox, Action::ReleaseSandbox);
            }
            return;
        }
        let ready: Vec<_> =
            self.tasks.iter().filter_map(|(id, task)| Some((id.clone(), task.release()?))).collect();
        for (id, life) in ready {
            self.thaw_to_die(&id);
            self.begin_delete(&id, life);
        }
    }

    pub(super) fn released(&mut self) {
        let waiters = std::mem::take(&mut self.sandbox.waiters);
        for to in waiters {
            self.fail(to, no_sandbox());
        }
        if let Some(closing) = self.closing.take() {
            self.reply(closing.from, Reply::Empty);
        }
        self.exit();
    }

    /// The process that is the pod's PID 1, or the shim itself, which never exits as its own child.
    pub(super) fn sandbox_pid(&self) -> Option<u32> {
        match self.sandbox.life {
            Life::Ready { pid, .. } => Some(pid),
            Life::Absent | Life::Created { .. } | Life::Starting { .. } | Life::Stopped { .. } => None,
        }
    }
}

fn no_sandbox() -> Failure {
    Failure::new(Code::NotFound, "the shim has no sandbox: not found")
}
