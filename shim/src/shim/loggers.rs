//! Logging programs: processes that wait for theirs to be ready, and the programs' own ends.
//!
//! A program ends by itself when its streams do. One that does not within [`END_MS`] is asked to by SIGTERM, and killed
//! when it does not listen: the runc shim's times, but after the program has had the time to read what is left.

use std::collections::BTreeMap;
use std::process::Command;

use berth_shim_core::{Code, Failure, OpId};
use nix::libc::{SIGKILL, SIGTERM};

use super::Shim;
use super::calls::Parked;
use super::children::{RuntimeCall, Then};
use crate::io::{Answer, ChildStreams, Logger, READY_MS_MAX};
use crate::poll::Token;

/// Time from the end of a process to the SIGTERM for a program that still runs, milliseconds.
const END_MS: u64 = 10_000;
/// Time from there to SIGKILL, milliseconds.
const TERM_MS: u64 = 2_000;

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

    pub(super) fn has(&self, pid: u32) -> bool {
        self.0.contains_key(&pid)
    }

    pub(super) fn started(&mut self, pid: u32) {
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
    pub(super) fn due(&mut self, now_ms: u64) -> Vec<(u32, i32)> {
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
        let now_ms = self.now().mono_ms;
        self.calls.park((command, streams), call, logger, now_ms, &mut self.watches)
    }

    pub(super) fn logger_ready(&mut self, token: Token) {
        match self.calls.answer(token) {
            Some(Answer::Ready) => {
                let Some(parked) = self.calls.unpark(token, &mut self.watches) else { return };
                if let Err(failed) = self.calls.spawn_parked(self.pod.as_ref(), parked) {
                    let (call, failure) = *failed;
                    self.call_failed(call, failure);
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
        for token in self.calls.late_parked(now_ms) {
            let text = format!("the logging program did not say within {READY_MS_MAX} ms that it is ready");
            self.give_up(token, &text);
        }
        self.calls.end_late_loggers(now_ms);
    }

    /// Ends the waiting of an action that is no longer wanted.
    pub(super) fn cancel_parked(&mut self, op: OpId) {
        if let Some(token) = self.calls.parked_of(op) {
            self.give_up(token, "the wait for the logging program was given up");
        }
    }

    fn give_up(&mut self, token: Token, why: &str) {
        let Some(Parked { call, logger, .. }) = self.calls.unpark(token, &mut self.watches) else { return };
        self.calls.kill_logger(logger.pid);
        self.call_failed(call, Failure::new(Code::Internal, format!("failed to start logging: {why}")));
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
