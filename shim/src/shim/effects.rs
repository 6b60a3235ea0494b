//! Performs the machine's effects that take no time.

use berth_proto::ttrpc::{Code, Status};
use berth_shim_core::{Effect, Exit, Failure, Id, Notice, Process, Reply, ReqId};

use super::clients::Pending;
use super::{LINGER_MS, Phase, Shim};
use crate::answer::{self, Facts};
use crate::call::Call;
use crate::container::{Container, ExecPlan};
use crate::io::{Client, Role};
use crate::{bundle, notice};

impl Shim {
    pub(super) fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Reply { to, reply } => self.reply(to, reply),
            Effect::Allow { to, process, pid } => self.allow(to, &process, pid),
            Effect::Run { op, action } => self.act(op, action),
            Effect::KeepExec { process, from } => self.keep_exec(process, from),
            Effect::Signal { process, pid, signal, scope } => {
                self.processes.signal(&process, pid, signal, scope);
            }
            Effect::Cancel(op) => self.cancel(op),
            Effect::Drain(process) => {
                self.drain(&process);
                self.begin_draining(process);
            }
            Effect::Persist { task, exit } => self.persist(&task, exit),
            Effect::Publish(notice) => self.publish(notice),
            Effect::EndStreams { process, code } => self.end_streams(&process, code),
            Effect::Forget(process) => self.forget(&process),
            Effect::Abandon(task) => {
                self.let_go(&Process::init(&task));
            }
            Effect::Exit => self.end(),
        }
    }

    /// Lets nobody come any more, neither clients nor `delete`; what was said is still sent.
    fn end(&mut self) {
        self.unlink_sockets();
        bundle::remove_own_pid(&self.home.bundle);
        let now_ms = self.now().mono_ms;
        self.calls.dismiss_loggers(now_ms);
        self.phase = Phase::Ending { until_ms: now_ms + LINGER_MS, reader: self.clients.answered() };
    }

    fn reply(&mut self, to: ReqId, reply: Result<Reply, Failure>) {
        // The request stays: it is the stream of the exec that runs now.
        if let Ok(Reply::ExecStreams { .. }) = reply {
            return;
        }
        let Some(Pending { conn, stream, call }) = self.clients.take_request(to) else { return };
        let result = match reply {
            Ok(reply) => {
                let mut facts = self.facts(&call);
                if let Reply::ExecDone { exec, .. } = &reply {
                    facts.capture = self.streams.take_capture(exec);
                }
                let facts = Facts {
                    sandbox_id: self.pod.as_ref().map(|pod| pod.id.as_str()).unwrap_or_default(),
                    netns_path: self.pod.as_ref().map(|pod| pod.netns_path.as_str()).unwrap_or_default(),
                    ..facts
                };
                answer::encode(&call, reply, facts)
            }
            Err(failure) => Err(answer::status(failure)),
        };
        let _ended = self.clients.take_route(conn, stream);
        self.clients.respond(conn, stream, result);
    }

    /// What the answer to a call carries besides the machine's reply.
    fn facts(&self, call: &Call) -> Facts<'static> {
        let mut facts = Facts::default();
        match call {
            Call::State(process) => {
                facts.streams = self.processes.streams(process).cloned().unwrap_or_default();
            }
            Call::Truth => {
                facts.logs = self.streams.log_facts();
            }
            _ => {}
        }
        facts
    }

    /// Answers a request that the machine has allowed.
    fn allow(&mut self, to: ReqId, process: &Process, pid: u32) {
        let Some(Pending { conn, stream, call }) = self.clients.take_request(to) else { return };
        let result = match call {
            Call::Pids => Ok(self.processes.pids(&process.task, pid)),
            Call::TaskStats => self.processes.task_stats(&process.task),
            Call::Resize { columns, rows } => {
                self.streams.resize(process, columns, rows).map(|()| Vec::new())
            }
            Call::CloseIo => {
                self.close_input(process);
                Ok(Vec::new())
            }
            Call::ReopenLog => match self.streams.reopen_log(conn, stream, process) {
                Ok(()) => return,
                Err(status) => Err(status),
            },
            Call::Attach(start) => match self.attach(conn, stream, process, &start) {
                Ok(()) => {
                    self.clients.keep_request(to, Pending { conn, stream, call: Call::Attach(start) });
                    return;
                }
                Err(status) => Err(status),
            },
            call => {
                Err(Status::new(Code::Internal, format!("the shim has no answer of its own to {call:?}")))
            }
        };
        self.clients.respond(conn, stream, result);
    }

    fn attach(
        &mut self,
        conn: u64,
        stream: u32,
        process: &Process,
        start: &berth_proto::shim::AttachStart,
    ) -> Result<(), Status> {
        let role = Role::Guest { stdout: start.stdout, stderr: start.stderr };
        self.streams.attach(process, Client { conn, stream, role })?;
        self.lead(process, conn, stream, start.stdin);
        Ok(())
    }

    fn keep_exec(&mut self, process: Process, from: ReqId) {
        let Some(Pending { call: Call::Exec(plan), .. }) = self.clients.request(from) else { return };
        let mut plan = ExecPlan::clone(plan);
        if let Some(container) = self.processes.container(&process.task) {
            plan.streams.bundle = container.bundle.display().to_string();
        }
        self.processes.add_exec(process, plan);
    }

    fn persist(&mut self, task: &Id, exit: Exit) {
        let Some(container) = self.processes.container(task) else { return };
        if let Err(error) = bundle::write_exit(&container.bundle, container.pid, exit) {
            crate::log::warning!("failed to record the exit of {task}: {}", crate::with_causes(&error));
        }
        let Some(socket) = self.clients.agent_socket() else { return };
        if let Err(error) = bundle::write_exit_for_agent(socket, &answer::ended(task, container.pid, exit)) {
            crate::log::warning!(
                "failed to record the exit of {task} for the agent: {}",
                crate::with_causes(&error)
            );
        }
    }

    fn publish(&mut self, notice: Notice) {
        let task = match &notice {
            Notice::Created { task, .. } => Some(task),
            _ => None,
        };
        let container = task.and_then(|task| self.processes.container(task));
        let event = notice::forward(notice, container, &self.home.namespace, self.now().unix_ns);
        self.publisher.push(event);
    }

    /// Tells clients the end, and lets go of what was kept open for a living process.
    fn end_streams(&mut self, process: &Process, code: u32) {
        for client in self.streams.take_clients(process) {
            self.clients.end_with_process(client.conn, client.stream, code);
        }
        self.streams.release_ends(process, &mut self.watches);
    }

    fn forget(&mut self, process: &Process) {
        if let Some(container) = self.let_go(process) {
            bundle::remove_record(&container.bundle);
            bundle::remove_member(&self.home.bundle, &process.task);
        }
    }

    /// Drops everything that is held for a process, and returns the container if it was its init.
    fn let_go(&mut self, process: &Process) -> Option<Container> {
        self.drop_io(process);
        self.processes.let_go(process, &mut self.watches)
    }
}
