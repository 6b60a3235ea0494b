//! What follows for the run of a container: it started, or not; was signalled; ended; its end is complete.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    actual::{self, Asked, Delivery, End, Preparing, Refusal, Run, Running, Starting, Stop, Words},
    fit,
    machine::PodMachine,
    resource::{Ended, Retry, growing},
    words::{about, about_pod},
};
use crate::{
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{ContainerName, OpId},
    observation::{Exit, ObservedTask},
    record::ExitRecord,
    status::Severity,
    time::{Mono, Now},
};

/// Tries to read the last words of a container; then it goes without.
const WORDS_TRIES_MAX: u32 = 3;

/// Time after SIGKILL in which a container has to be gone before it is killed again.
const KILL_AGAIN: Duration = Duration::from_secs(5);

/// Signals after which a container whose end nobody reports is removed as it is: its removal ends what is left of it.
pub(super) const KILLS_MAX: u32 = 3;

/// From a container's deadline to the beginning of its removal, at most, when its shim answers nothing at all:
/// three signals of [`SIGNAL_DEADLINE`](crate::effect::SIGNAL_DEADLINE) each, with 1 s, 2 s and 4 s after them. How long
/// the removal then waits for the shim: [`silence`](super::silence).
pub const SILENT_KILL_MAX: Duration = Duration::from_secs(37);

/// Texts of events. Source: `startContainer` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`.
const CREATED: &str = "Container created";
const STARTED: &str = "Container started";

/// Exit code and reason of a run that could not be started, as containerd's CRI reports them (`errorStartExitCode`,
/// `errorStartReason` of `internal/cri/server/container_start.go`).
const START_FAILED: u32 = 128;
pub(super) const START_ERROR: &str = "StartError";

/// Reason of the waiting state of a container that could not be made, or was not.
const CREATE_ERROR: &str = "CreateContainerError";

/// Exit code of a run whose end nobody saw.
const LOST: u32 = 137;

/// The failure of a start whose earlier try may have worked: a later one that failed for sure does not tell of that, nor does
/// a look that failed.
fn still_unknown(asked: Asked, prepared: &Preparing, failure: Failure) -> Failure {
    if (was_unanswered(prepared) || asked == Asked::Look) && !is_no_answer(failure.kind) {
        return Failure { kind: FailureKind::Unknown, ..failure };
    }
    failure
}

/// Whether why a start failed tells more than the end that was reported before: that its sandbox was lost is no news of a
/// run which never began. An earlier try may have worked.
fn tells_more(failure: &Failure, starting: &Starting, end: &End) -> bool {
    match end {
        End::Seen(_) => false,
        End::Lost(_) | End::Unseen(_) => {
            failure.kind == FailureKind::StartFailed && !was_unanswered(&starting.prepared)
        }
    }
}

fn was_unanswered(prepared: &Preparing) -> bool {
    prepared.refused.as_ref().is_some_and(|refusal| is_no_answer(refusal.retry.failure.kind))
}

fn is_no_answer(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::Unknown | FailureKind::RuntimeDown)
}

impl PodMachine {
    fn complain_about(&mut self, name: &ContainerName, failure: &Failure) {
        if !failure.kind.is_told_elsewhere() {
            let text = format!("Error: {}", failure.message);
            self.notes.push(about(name, Severity::Warning, "Failed", text));
        }
    }

    pub(super) fn rootfs_settled(
        &mut self,
        name: &ContainerName,
        ended: Ended,
        result: Result<Outcome, Failure>,
    ) {
        let Some(Run::Preparing(preparing)) = self.life.actual.containers.get_mut(name) else {
            return self.made_too_late(ended.op);
        };
        if preparing.rootfs.op() != Some(ended.op) {
            return self.made_too_late(ended.op);
        }
        let failed = result.as_ref().err().cloned();
        preparing.rootfs.settle(ended, fit::rootfs(result));
        if let Some(failure) = failed {
            self.complain_about(name, &failure);
        }
    }

    pub(super) fn started(
        &mut self,
        op: OpId,
        name: &ContainerName,
        tries: u32,
        result: Result<Outcome, Failure>,
        now: Now,
    ) {
        let Run::Starting(starting) = self.life.run(name).clone() else { return };
        if starting.op != op {
            return;
        }
        let failure = match result {
            Ok(
                Outcome::Started(ObservedTask::Running { started_at, .. })
                | Outcome::Task(ObservedTask::Running { started_at, .. }),
            ) => {
                self.tell_started(name);
                let (hash, known_at) = (starting.prepared.hash, now.mono);
                return match starting.end {
                    None => self.runs(name, Running { started_at, known_at, hash, stop: Stop::No }),
                    Some(end) => self.ended(name, end, now),
                };
            }
            Ok(Outcome::Started(ObservedTask::Exited(exit)) | Outcome::Task(ObservedTask::Exited(exit))) => {
                self.tell_started(name);
                return self.ended(name, End::Seen(exit), now);
            }
            Ok(Outcome::Task(ObservedTask::Absent | ObservedTask::Created)) if starting.end.is_none() => {
                return self.never_began(name, starting.prepared, tries, now.mono);
            }
            Ok(other) => fit::unfitting(&other),
            Err(failure) => failure,
        };
        if let Some(end) = starting.end.clone().filter(|end| !tells_more(&failure, &starting, end)) {
            return self.ended(name, end, now);
        }
        if failure.kind == FailureKind::StartFailed {
            self.notes.push(about(name, Severity::Normal, "Created", CREATED));
        }
        self.complain_about(name, &failure);
        self.not_started(name, starting, tries, failure, now);
    }

    fn not_started(
        &mut self,
        name: &ContainerName,
        starting: Starting,
        tries: u32,
        failure: Failure,
        now: Now,
    ) {
        let reason = match failure.kind {
            FailureKind::StartFailed => {
                let exit =
                    Exit { code: START_FAILED, started_at: None, finished_at: now.wall, oom_killed: false };
                return self.conclude(name, exit, failure.message, Some(START_ERROR.into()), now);
            }
            FailureKind::Config => "CreateContainerConfigError",
            FailureKind::Transient
            | FailureKind::Unknown
            | FailureKind::RuntimeDown
            | FailureKind::InvalidImageName
            | FailureKind::ImagePull
            | FailureKind::SandboxGone
            | FailureKind::Silent
            | FailureKind::Unrecorded => CREATE_ERROR,
        };
        let gone = failure.kind == FailureKind::SandboxGone;
        let retry = Retry::after(still_unknown(starting.asked, &starting.prepared, failure), tries, now.mono);
        let refused = Some(Refusal { reason, retry });
        self.set_run(name, Run::Preparing(Preparing { refused, ..starting.prepared }));
        if gone {
            self.lose_sandbox(now.wall, now);
        }
    }

    /// A start that nobody had answered came to nothing.
    fn never_began(&mut self, name: &ContainerName, prepared: Preparing, tries: u32, now: Mono) {
        let failure = Failure { kind: FailureKind::Transient, message: "it was not started".into() };
        let retry = Retry::after(failure, tries, now);
        let refused = Some(Refusal { reason: CREATE_ERROR, retry });
        self.set_run(name, Run::Preparing(Preparing { refused, ..prepared }));
    }

    fn tell_started(&mut self, name: &ContainerName) {
        self.notes.push(about(name, Severity::Normal, "Created", CREATED));
        self.notes.push(about(name, Severity::Normal, "Started", STARTED));
    }

    pub(super) fn runs(&mut self, name: &ContainerName, running: Running) {
        self.set_run(name, Run::Running(running));
    }

    /// A run has ended: its last words are read where they can be, then it goes into the record.
    pub(super) fn ended(&mut self, name: &ContainerName, end: End, now: Now) {
        match end {
            End::Seen(exit) => {
                let mut exit = exit;
                let shown_since = match self.life.run(name) {
                    Run::Running(running) => {
                        // What a lost shim left on disk may not tell.
                        exit.started_at.get_or_insert(running.started_at);
                        Some(running.started_at)
                    }
                    // Adopted: an earlier agent showed it.
                    Run::Idle => exit.started_at,
                    Run::BackingOff | Run::Preparing(_) | Run::Starting(_) | Run::Ended(_) => None,
                };
                self.set_run(name, Run::Ended(actual::Ended { exit, shown_since, words: Words::Unread }));
            }
            End::Lost(at) => {
                self.unknown_end(
                    name,
                    at,
                    "The container could not be located: its sandbox was lost while it ran",
                    now,
                );
            }
            End::Unseen(at) => {
                self.unknown_end(
                    name,
                    at,
                    "The container could not be located: no end was reported after SIGKILL",
                    now,
                );
            }
        }
    }

    fn unknown_end(&mut self, name: &ContainerName, at: Timestamp, message: &str, now: Now) {
        let exit = Exit { code: LOST, started_at: None, finished_at: at, oom_killed: false };
        self.conclude(name, exit, message.into(), Some("ContainerStatusUnknown".into()), now);
    }

    /// The end of a run, complete, goes into the record; what is left of the run is removed. Only then is the next run
    /// prepared: at no time are there two.
    pub(super) fn conclude(
        &mut self,
        name: &ContainerName,
        exit: Exit,
        message: String,
        reason: Option<String>,
        now: Now,
    ) {
        let age = Duration::try_from(now.wall.duration_since(exit.finished_at)).unwrap_or_default();
        let at = Mono(now.mono.0.saturating_sub(age));
        if let Some(record) = self.life.record.containers.get_mut(name) {
            let at = at.max(record.begun_at);
            let (id, attempt) = (record.id.clone(), record.attempt);
            record.exit = Some(ExitRecord { id, attempt, exit, at, message, reason });
        }
        self.leave(name);
        self.set_run(name, Run::Idle);
    }

    pub(super) fn signalled(
        &mut self,
        op: OpId,
        name: &ContainerName,
        result: Result<Outcome, Failure>,
        now: Mono,
    ) {
        let Some(Run::Running(running)) = self.life.actual.containers.get_mut(name) else { return };
        let (Stop::Term(delivery) | Stop::Kill(delivery)) = &mut running.stop else { return };
        let tries = match *delivery {
            Delivery::Sending { op: sending, tries } if sending == op => tries,
            Delivery::Sending { .. } | Delivery::Waiting { .. } => return,
        };
        let failed = fit::done(result).err();
        let is_kill = matches!(running.stop, Stop::Kill(_));
        let again = match &failed {
            Some(_) => Some(now + growing(tries)),
            None => is_kill.then(|| now + KILL_AGAIN),
        };
        let waiting = Delivery::Waiting { again, tries: tries.saturating_add(1) };
        running.stop = if is_kill { Stop::Kill(waiting) } else { Stop::Term(waiting) };
        if let Some(failure) = failed {
            self.complain(&Err(failure), "FailedKillPod", "error killing pod: ");
        } else if is_kill && tries == 1 {
            let text = "Container runtime did not kill the pod within specified grace period.";
            self.notes.push(about_pod(Severity::Warning, "ExceededGracePeriod", text));
        }
    }

    pub(super) fn words_read(
        &mut self,
        op: OpId,
        name: &ContainerName,
        tries: u32,
        result: Result<Outcome, Failure>,
        now: Now,
    ) {
        let Some(Run::Ended(ended)) = self.life.actual.containers.get_mut(name) else { return };
        match ended.words {
            Words::Reading { op: reading, .. } if reading == op => {}
            Words::Reading { .. } | Words::Unread | Words::Failed(_) => return,
        }
        let exit = ended.exit;
        match result {
            Ok(Outcome::TerminationMessage(message)) => self.conclude(name, exit, message, None, now),
            Ok(_) => self.conclude(name, exit, String::new(), None, now),
            Err(_) if tries + 1 >= WORDS_TRIES_MAX => self.conclude(name, exit, String::new(), None, now),
            Err(failure) => ended.words = Words::Failed(Retry::after(failure, tries, now.mono)),
        }
    }
}
