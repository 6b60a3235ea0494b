//! Calls: of the OCI runtime, and copies of the shim, that are under way, by pid; and the logging programs that some wait for.

use std::collections::BTreeMap;
use std::process::Command;

use berth_shim_core::{Code, Failure, OpId};
use nix::libc::SIGKILL;

use super::children::RuntimeCall;
use super::loggers::Loggers;
use super::watches::{Source, Watches};
use crate::cgroup;
use crate::io::{Answer, ChildStreams, Logger, READY_MS_MAX};
use crate::pod::Pod;
use crate::poll::{Interest, Token};
use crate::runtime;

#[derive(Default)]
pub(super) struct Calls {
    under_way: BTreeMap<u32, RuntimeCall>,
    /// Those that wait for a logging program.
    parked: BTreeMap<Token, Parked>,
    loggers: Loggers,
}

/// A runtime call that waits for a logging program.
pub(super) struct Parked {
    pub(super) command: Command,
    pub(super) streams: ChildStreams,
    pub(super) call: RuntimeCall,
    pub(super) logger: Logger,
    deadline_ms: u64,
}

impl Calls {
    /// Starts a call of the runtime on the node, which ends with the shim.
    pub(super) fn spawn(
        &mut self,
        pod: Option<&Pod>,
        command: &mut Command,
        streams: Option<ChildStreams>,
        call: RuntimeCall,
    ) -> Result<(), Failure> {
        let pid = launch(pod, command, streams)?;
        self.began(pid, call);
        Ok(())
    }

    /// Starts a call that waited for its logging program; gives it back when that fails.
    pub(super) fn spawn_parked(
        &mut self,
        pod: Option<&Pod>,
        Parked { mut command, streams, call, .. }: Parked,
    ) -> Result<(), Box<(RuntimeCall, Failure)>> {
        match launch(pod, &mut command, Some(streams)) {
            Ok(pid) => {
                self.began(pid, call);
                Ok(())
            }
            Err(failure) => Err(Box::new((call, failure))),
        }
    }

    pub(super) fn began(&mut self, pid: u32, call: RuntimeCall) {
        self.under_way.insert(pid, call);
    }

    /// A child was reaped; returns the call that it was.
    pub(super) fn ended(&mut self, pid: u32) -> Option<RuntimeCall> {
        self.under_way.remove(&pid)
    }

    /// Kills calls that take too long; they end as failures.
    pub(super) fn kill_late(&mut self, now_ms: u64) {
        for (pid, call) in self.under_way.iter_mut().filter(|(_, call)| call.deadline_ms <= now_ms) {
            crate::log::warning!(
                "killing runtime {} of {}, which takes too long",
                call.verb,
                call.process.task
            );
            cgroup::signal_process(*pid, SIGKILL);
            call.deadline_ms = now_ms + runtime::CALL_MS_MAX;
        }
    }

    /// Kills the call of an action that is no longer wanted.
    pub(super) fn kill(&self, op: OpId) {
        for pid in self.under_way.iter().filter(|(_, call)| call.op == op).map(|(pid, _)| *pid) {
            cgroup::signal_process(pid, SIGKILL);
        }
    }

    pub(super) fn deadline_ms(&self) -> Option<u64> {
        let calls = self.under_way.values().map(|call| call.deadline_ms);
        let parked = self.parked.values().map(|parked| parked.deadline_ms);
        calls.chain(parked).chain(self.loggers.deadline_ms()).min()
    }
}

/// Logging programs.
impl Calls {
    /// Has a call wait until its logging program is ready.
    pub(super) fn park(
        &mut self,
        (command, streams): (Command, ChildStreams),
        call: RuntimeCall,
        logger: Logger,
        now_ms: u64,
        watches: &mut Watches,
    ) -> Result<(), Failure> {
        self.loggers.started(logger.pid);
        let watched = watches.add(&logger.ready, Interest::Read, Source::Logger).map_err(|error| {
            Failure::new(Code::Internal, format!("failed to watch a logging program: {error}"))
        });
        let token = watched.inspect_err(|_| {
            self.kill_logger(logger.pid);
        })?;
        let deadline_ms = now_ms + READY_MS_MAX;
        self.parked.insert(token, Parked { command, streams, call, logger, deadline_ms });
        Ok(())
    }

    /// What a logging program has said.
    pub(super) fn answer(&mut self, token: Token) -> Option<Answer> {
        self.parked.get_mut(&token).map(|parked| parked.logger.answer())
    }

    pub(super) fn unpark(&mut self, token: Token, watches: &mut Watches) -> Option<Parked> {
        let parked = self.parked.remove(&token)?;
        watches.end(&parked.logger.ready, token);
        Some(parked)
    }

    /// Those that have waited for too long.
    pub(super) fn late_parked(&self, now_ms: u64) -> Vec<Token> {
        let late = self.parked.iter().filter(|(_, parked)| parked.deadline_ms <= now_ms);
        late.map(|(token, _)| *token).collect()
    }

    /// The one of an action.
    pub(super) fn parked_of(&self, op: OpId) -> Option<Token> {
        self.parked.iter().find(|(_, parked)| parked.call.op == op).map(|(token, _)| *token)
    }

    /// Tells programs to end that outlive their processes.
    pub(super) fn end_late_loggers(&mut self, now_ms: u64) {
        for (pid, signal) in self.loggers.due(now_ms) {
            cgroup::signal_process(pid, signal);
        }
    }

    /// Ends a program that nothing was logged with.
    pub(super) fn kill_logger(&mut self, pid: u32) {
        if self.loggers.has(pid) {
            cgroup::signal_process(pid, SIGKILL);
            self.loggers.reaped(pid);
        }
    }

    /// Forgets a program that was reaped.
    pub(super) fn logger_reaped(&mut self, pid: u32) {
        self.loggers.reaped(pid);
    }

    /// Lets a program end whose process is gone.
    pub(super) fn dismiss_logger(&mut self, pid: u32, now_ms: u64) {
        self.loggers.dismiss(pid, now_ms);
    }

    pub(super) fn dismiss_loggers(&mut self, now_ms: u64) {
        self.loggers.dismiss_all(now_ms);
    }

    pub(super) fn has_loggers(&self) -> bool {
        !self.loggers.is_empty()
    }
}

/// Starts a call of the runtime on the node; returns its pid.
fn launch(pod: Option<&Pod>, command: &mut Command, streams: Option<ChildStreams>) -> Result<u32, Failure> {
    if let Some(pod) = pod {
        pod.on_node(command);
    }
    runtime::end_with_shim(command);
    let program = command.get_program().to_string_lossy().into_owned();
    runtime::spawn(command, streams)
        .map_err(|error| Failure::new(Code::Internal, format!("failed to start {program}: {error}")))
}
