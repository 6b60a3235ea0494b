//! What follows for the run of a container: it started, or not; was signalled; ended; its end is complete.

use jiff::Timestamp;

use super::{
    actual::{EndedRun, Run, RunEnd, Running},
    machine::PodMachine,
    port::{start::START_ERROR, termination::TerminationMessage},
    probe::is_shown_running,
    restart_all::removed,
};
use crate::{
    derived::termination,
    id::ContainerName,
    observation::Exit,
    record::{ExitRecord, PostStart},
    time::{Mono, Now},
};

/// Exit code of a run whose shim died, as containerd reports it: nothing of it is left. Nobody has to tell more of it than
/// that it was killed.
const LOST: u32 = 137;

/// Exit code and reason of a run that was there before the machine was switched off (`unknownExitCode` and
/// `unknownExitReason` of containerd's `internal/cri/server/helpers.go`).
pub(super) const FORGOTTEN: u32 = 255;
pub(super) const UNKNOWN: &str = "Unknown";

impl PodMachine {
    pub(super) fn runs(&mut self, name: &ContainerName, running: Running) {
        let known_at = running.known_at;
        self.set_run(name, Run::Running(running));
        self.end_waits_for_target(name, known_at);
    }

    /// A run has ended: its termination message is read where that can be, then it goes into the record.
    pub(super) fn ended(&mut self, name: &ContainerName, end: RunEnd, now: Now) {
        match end {
            RunEnd::Seen(mut exit) => {
                if let Run::Running(running) = self.life.run(name) {
                    // What a lost shim left on disk may not tell.
                    exit.started_at.get_or_insert(running.started_at);
                }
                self.wait_for_message(name, exit, now);
            }
            RunEnd::Lost(at) => {
                let started_at = self.started_at(name, now);
                let exit = Exit { code: LOST, started_at, finished_at: at, oom_killed: false };
                match self.life.run(name) {
                    Run::Running(_) => self.wait_for_message(name, exit, now),
                    // Adopted: nothing tells that it ever ran.
                    Run::Idle | Run::BackingOff | Run::Preparing(_) | Run::Starting(_) | Run::Ended(_) => {
                        self.conclude(name, exit, String::new(), None, now.mono_of(at));
                    }
                }
            }
            RunEnd::Forgotten(at) => {
                let exit = Exit { code: FORGOTTEN, started_at: None, finished_at: at, oom_killed: false };
                self.conclude(name, exit, String::new(), Some(UNKNOWN.into()), now.mono_of(at));
            }
            RunEnd::Unseen(at) => {
                let exit = Exit { code: LOST, started_at: None, finished_at: at, oom_killed: false };
                let message = "The container could not be located: no end was reported after SIGKILL";
                let reason = "ContainerStatusUnknown";
                self.conclude(name, exit, message.into(), Some(reason.into()), now.mono_of(at));
            }
        }
    }

    /// All that is known of an end but the termination message, which is still to be read.
    fn wait_for_message(&mut self, name: &ContainerName, exit: Exit, now: Now) {
        let at = now.mono_of(exit.finished_at);
        let shown_since = match self.life.run(name) {
            Run::Running(running) => Some(running.started_at).filter(|_| self.is_shown_running(name)),
            // Adopted: an earlier agent showed it.
            Run::Idle => exit.started_at,
            Run::BackingOff | Run::Preparing(_) | Run::Starting(_) | Run::Ended(_) => None,
        };
        self.set_run(
            name,
            Run::Ended(EndedRun { exit, at, shown_since, message: TerminationMessage::Unread }),
        );
    }

    fn is_shown_running(&self, name: &ContainerName) -> bool {
        self.container(name).is_some_and(|container| is_shown_running(&self.life, &container))
    }

    /// Since when the current run of a container ran; of one that an earlier agent started, since when it was to.
    fn started_at(&self, name: &ContainerName, now: Now) -> Option<Timestamp> {
        match self.life.run(name) {
            Run::Running(running) => Some(running.started_at),
            Run::Idle => {
                let record = self.life.record.containers.get(name)?;
                Some(now.wall - now.mono.since(record.begun_at))
            }
            Run::BackingOff | Run::Preparing(_) | Run::Starting(_) | Run::Ended(_) => None,
        }
    }

    /// The end of a run, complete, goes into the record; what is left of the run is removed. Only then is the next run
    /// prepared: at no time are there two. It ended at `at`, and not before it was begun, whatever the clock says.
    pub(super) fn conclude(
        &mut self,
        name: &ContainerName,
        exit: Exit,
        message: String,
        reason: Option<String>,
        at: Mono,
    ) {
        let is_restarting = self.life.record.restarting.is_some();
        // What no status shows is not kept: records are written whole. Why a start failed is shown whole while the container waits.
        let message = if reason.as_deref() == Some(START_ERROR) {
            message
        } else {
            termination::share(&message, self.life.spec.all_containers().count()).to_owned()
        };
        if let Some(record) = self.life.record.containers.get_mut(name) {
            let (message, reason) = if is_restarting && record.stopping.is_some() {
                removed(message, reason)
            } else {
                (message, reason)
            };
            let at = at.max(record.begun_at);
            let (id, attempt) = (record.id.clone(), record.attempt);
            let post_start = match &record.hooked.post_start {
                PostStart::Failed(why) => Some(why.clone()),
                PostStart::Due | PostStart::Over => None,
            };
            record.exit = Some(ExitRecord { id, attempt, exit, at, message, reason, post_start });
        }
        self.leave(name);
        self.set_run(name, Run::Idle);
    }
}
