//! Logging programs: processes that wait for theirs to be ready, and the programs' own ends.
//!
//! A program ends by itself when its streams do. One that does not within [`END_MS`] is asked to by SIGTERM, and killed
//! when it does not listen: the runc shim's times, but after the program has had the time to read what is left.

use std::collections::BTreeMap;
use std::process::Command;

use berth_shim_core::{Code, Failure, OpId};
use nix::libc::{SIGKILL, SIGTERM};

use super::Shim;
use super::children::{RuntimeCall, Then};
use super::watches::Source;
use crate::cgroup;
use crate::io::{Answer, ChildStreams, Logger, READY_MS_MAX};
use crate::poll::{Interest, Token};

/// Time from the end of a process to the SIGTERM for a program that still runs, milliseconds.
const END_MS: u64 = 10_000;
/// Time from there to SIGKILL, milliseconds.
const TERM_MS: u64 = 2_000;

/// A runtime call that waits for a logging program.
pub(super) struct Parked {
    command: Command,
    streams: ChildStreams,
    call: RuntimeCall,
    logger: Logger,
    deadline_ms: u64,
}

/// Logging programs that run, by pid. Whoever reaps one removes it, so that no signal meets another process.
#[derive(Debug, Default)]
pub(super) struct Loggers(BTreeMap<u32, Life>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Serving,
    /// Its process is gone.
    Ending {
        term_at_ms: u64,
    },
    Terminated {
        kill_at_ms: u64,
    },
}

impl Loggers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn started(&mut self, pid: u32) {
        self.0.insert(pid, Life::Serving);
    }

    /// Forgets a program that was reaped.
    pub(super) fn reaped(&mut self, pid: u32) {
        self.0.remove(&pid);
    }

    /// Lets a program end whose process is gone.
    pub(super) fn dismiss(&mut self, pid: u32, now_ms: u64) {
        if let Some(life @ Life::Serving) = self.0.get_mut(&pid) {
            *life = Life::Ending { term_at_ms: now_ms + END_MS };
        }
    }

    pub(super) fn dismiss_all(&mut self, now_ms: u64) {
        let pids: Vec<u32> = self.0.keys().copied().collect();
        for pid in pids {
            self.dismiss(pid, now_ms);
        }
    }

    pub(super) fn deadline_ms(&self) -> Option<u64> {
        let at = |life: &Life| match life {
            Life::Serving => None,
            Life::Ending { term_at_ms: at } | Life::Terminated { kill_at_ms: at } => Some(*at),
        };
        self.0.values().filter_map(at).min()
    }

    /// The signals that are due now. A program that is killed is not waited for.
    fn due(&mut self, now_ms: u64) -> Vec<(u32, i32)> {
        let mut signals = Vec::new();
        self.0.retain(|pid, life| match *life {
            Life::Ending { term_at_ms } if term_at_ms <= now_ms => {
                signals.push((*pid, SIGTERM));
                *life = Life::Terminated { kill_at_ms: now_ms + TERM_MS };
                true
            }
            Life::Terminated { kill_at_ms } if kill_at_ms <= now_ms => {
                signals.push((*pid, SIGKILL));
                false
            }
            Life::Serving | Life::Ending { .. } | Life::Terminated { .. } => true,
        });
        signals
    }
}

impl Shim {
    /// Makes a runtime call that starts a process, as soon as its logging program is ready.
    pub(super) fn spawn_logged(
        &mut self,
        mut command: Command,
        streams: ChildStreams,
        call: RuntimeCall,
        logger: Option<Logger>,
    ) -> Result<(), Failure> {
        let Some(logger) = logger else { return self.spawn(&mut command, Some(streams), call) };
        self.loggers.started(logger.pid);
        let watched = self.watches.add(&logger.ready, Interest::Read, Source::Logger).map_err(|error| {
            Failure::new(Code::Internal, format!("failed to watch a logging program: {error}"))
        });
        let token = watched.inspect_err(|_| {
            self.kill_logger(logger.pid);
        })?;
        let deadline_ms = self.now().mono_ms + READY_MS_MAX;
        self.parked.insert(token, Parked { command, streams, call, logger, deadline_ms });
        Ok(())
    }

    pub(super) fn logger_ready(&mut self, token: Token) {
        let answer = self.parked.get_mut(&token).map(|parked| parked.logger.answer());
        match answer {
            Some(Answer::Ready) => {
                let Some(Parked { mut command, streams, call, .. }) = self.unpark(token) else { return };
                match self.launch(&mut command, Some(streams)) {
                    Ok(pid) => {
                        self.calls.insert(pid, call);
                    }
                    Err(failure) => self.call_failed(call, failure),
                }
            }
            Some(Answer::NotReady) => self.give_up(
                token,
                "the logging program did not say that it is ready: it may have crashed or ended too soon",
            ),
            Some(Answer::Nothing) | None => {}
        }
    }

    /// Ends waiting that takes too long, and programs that outlive their processes.
    pub(super) fn tend_loggers(&mut self, now_ms: u64) {
        let late: Vec<Token> = self
            .parked
            .iter()
            .filter(|(_, parked)| parked.deadline_ms <= now_ms)
            .map(|(token, _)| *token)
            .collect();
        for token in late {
            let text = format!("the logging program did not say within {READY_MS_MAX} ms that it is ready");
            self.give_up(token, &text);
        }
        for (pid, signal) in self.loggers.due(now_ms) {
            cgroup::signal_process(pid, signal);
        }
    }

    pub(super) fn loggers_deadline_ms(&self) -> Option<u64> {
        let parked = self.parked.values().map(|parked| parked.deadline_ms);
        parked.chain(self.loggers.deadline_ms()).min()
    }

    /// Ends the waiting of an action that is no longer wanted.
    pub(super) fn cancel_parked(&mut self, op: OpId) {
        let found = self.parked.iter().find(|(_, parked)| parked.call.op == op).map(|(token, _)| *token);
        if let Some(token) = found {
            self.give_up(token, "the wait for the logging program was given up");
        }
    }

    fn give_up(&mut self, token: Token, why: &str) {
        let Some(Parked { call, logger, .. }) = self.unpark(token) else { return };
        self.kill_logger(logger.pid);
        self.call_failed(call, Failure::new(Code::Internal, format!("failed to start logging: {why}")));
    }

    fn unpark(&mut self, token: Token) -> Option<Parked> {
        let parked = self.parked.remove(&token)?;
        self.watches.end(&parked.logger.ready, token);
        Some(parked)
    }

    /// Ends a program that nothing was logged with.
    pub(super) fn kill_logger(&mut self, pid: u32) {
        if self.loggers.0.contains_key(&pid) {
            cgroup::signal_process(pid, SIGKILL);
            self.loggers.reaped(pid);
        }
    }

    /// A call that was not made fails as one that the runtime has failed.
    fn call_failed(&mut self, call: RuntimeCall, failure: Failure) {
        let RuntimeCall { op, process, then, .. } = call;
        match then {
            Then::Spawned(spawning) => self.spawning_ended(op, &process, *spawning, Err(failure)),
            Then::Finish
            | Then::FinishAndRemove(_)
            | Then::Deleted(_)
            | Then::Dumped(_)
            | Then::NotRestored(_)
            | Then::Undone(_)
            | Then::Job(_) => {
                self.happen(berth_shim_core::Event::Finished { op, result: Err(failure) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_outlives_its_process_is_asked_and_then_killed() {
        let mut loggers = Loggers::default();
        loggers.started(7);
        loggers.started(8);
        assert_eq!((loggers.deadline_ms(), loggers.due(u64::MAX / 2)), (None, Vec::new()), "while it serves");
        loggers.dismiss(7, 100);
        loggers.dismiss(7, 9_999);
        assert_eq!(loggers.deadline_ms(), Some(100 + END_MS), "the first word counts");
        assert_eq!(loggers.due(99 + END_MS), []);
        assert_eq!(loggers.due(100 + END_MS), [(7, SIGTERM)]);
        assert_eq!(loggers.due(100 + END_MS + TERM_MS), [(7, SIGKILL)]);
        assert_eq!((loggers.deadline_ms(), loggers.is_empty()), (None, false), "the other one serves on");
    }

    #[test]
    fn a_program_that_was_reaped_gets_no_signal() {
        let mut loggers = Loggers::default();
        loggers.started(7);
        loggers.dismiss_all(0);
        loggers.reaped(7);
        loggers.dismiss(7, 0);
        assert!(loggers.is_empty() && loggers.due(u64::MAX).is_empty());
    }
}
