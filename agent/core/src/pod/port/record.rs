//! The record of a pod on disk: what was asked to be written, what is there, when it is written again.
//!
//! Invariant 6: whatever must be found again after a crash is begun only when the record that tells of it is on disk. A
//! record that cannot be written holds up its pod's new resources and nothing else: what runs goes on, signals are sent,
//! ends are taken in, and what is no longer wanted is removed.

use std::mem;

use crate::{
    effect::{Act, Effect, Footprint},
    event::Outcome,
    failure::{Failure, FailureKind},
    id::OpId,
    ops::Purpose,
    pod::{
        actual::Life,
        fit,
        machine::{PodMachine, Shared},
        outcome::Slot,
        port::removal::Leftover,
        resource::Retry,
        text::about_pod,
    },
    record::{Goal, PodRecord},
    status::{ContainerState, Phase, PodStatus, Severity},
    time::Mono,
};

/// Reason of events and of the status while a record cannot be written.
const NOT_WRITTEN: &str = "RecordNotWritten";

/// How every message about it begins.
const WHAT: &str = "the record of the pod could not be written";

/// What is known of the record on disk.
#[derive(Debug)]
pub(in crate::pod) enum Recording {
    /// There is none.
    Unsaved,
    /// Being written.
    Saving {
        /// The effect.
        op: OpId,
        /// What is written.
        new: Box<PodRecord>,
        /// What is there when that fails.
        old: Option<Box<PodRecord>>,
    },
    /// There, and as given.
    Saved(Box<PodRecord>),
    /// The last write failed.
    Failed {
        /// Why, and when it is tried again.
        retry: Retry,
        /// What is there.
        old: Option<Box<PodRecord>>,
    },
}

/// Whether acts may follow.
#[derive(Debug)]
pub(in crate::pod) enum Standing {
    /// The record on disk is the one in memory.
    Saved,
    /// It is being written: everything waits for that.
    Held,
    /// It cannot be written now.
    Failed(Retry),
}

impl PodMachine {
    /// Asks for the record to be written when the one on disk is another.
    pub(in crate::pod) fn save(&mut self, shared: &mut Shared<'_>, now: Mono) -> Standing {
        let is_being_written = matches!(self.recording, Recording::Saving { .. });
        if self.life.actual.removals.contains_key(&Leftover::Record) && !is_being_written {
            return Standing::Saved;
        }
        let (old, tries) = match mem::replace(&mut self.recording, Recording::Unsaved) {
            Recording::Saved(record) if *record == self.life.record => {
                self.recording = Recording::Saved(record);
                return Standing::Saved;
            }
            saving @ Recording::Saving { .. } => {
                self.recording = saving;
                return Standing::Held;
            }
            Recording::Failed { retry, old } if retry.at > now => {
                self.recording = Recording::Failed { retry: retry.clone(), old };
                return Standing::Failed(retry);
            }
            Recording::Saved(record) => (Some(record), 0),
            Recording::Failed { retry, old } => (old, retry.tries),
            Recording::Unsaved => (None, 0),
        };
        let new = Box::new(self.life.record.clone());
        let uid = new.uid.clone();
        let op = shared.ops.open(Purpose::Pod { uid: uid.clone(), slot: Slot::Record, tries });
        shared.effects.push_back(Effect::Pod { op, pod: uid, act: Act::Persist(new.clone()) });
        self.recording = Recording::Saving { op, new, old };
        Standing::Held
    }

    /// Takes the outcome of a write.
    pub(in crate::pod) fn saved(
        &mut self,
        op: OpId,
        tries: u32,
        result: Result<Outcome, Failure>,
        now: Mono,
    ) {
        if !matches!(&self.recording, Recording::Saving { op: saving, .. } if *saving == op) {
            return;
        }
        let Recording::Saving { new, old, .. } = mem::replace(&mut self.recording, Recording::Unsaved) else {
            return;
        };
        self.recording = match fit::done(result) {
            Ok(()) => {
                if tries > 0 {
                    let text = "the record of the pod is written again";
                    self.notes.push(about_pod(Severity::Normal, "RecordWritten", text));
                    self.life.actual.end_waits(FailureKind::Unrecorded, now);
                }
                Recording::Saved(new)
            }
            Err(failure) => {
                self.notes.push(about_pod(Severity::Warning, NOT_WRITTEN, text(&failure)));
                Recording::Failed { retry: Retry::after(failure, tries, now), old }
            }
        };
    }

    /// Answers the acts that may not be begun without the record; whether there were any.
    pub(in crate::pod) fn refuse_unrecorded(
        &mut self,
        shared: &mut Shared<'_>,
        why: &Failure,
        now: crate::time::Now,
    ) -> bool {
        let life = &self.life;
        let refused: Vec<OpId> =
            self.acts.extract_if(.., |(_, act)| needs_record(act, life)).map(|(op, _)| op).collect();
        for op in &refused {
            if let Some(Purpose::Pod { slot, tries, .. }) = shared.ops.close(*op) {
                let failure = Failure { kind: FailureKind::Unrecorded, message: text(why) };
                self.settle(*op, slot, tries, Err(failure), now);
            }
        }
        !refused.is_empty()
    }

    /// Shows in a status that the record cannot be written: as the reason of the pod, and of containers that wait for
    /// what is held up by it.
    pub(in crate::pod) fn tell_unrecorded(&self, status: &mut PodStatus) {
        let failure = match &self.recording {
            Recording::Failed { retry, .. } => &retry.failure,
            Recording::Unsaved | Recording::Saving { .. } | Recording::Saved(_) => return,
        };
        // How a pod has ended is what everybody is told for good.
        let is_final = matches!(status.phase, Phase::Succeeded | Phase::Failed);
        if status.reason.is_empty() && !is_final {
            NOT_WRITTEN.clone_into(&mut status.reason);
            status.message = text(failure);
        }
        let lists = [&mut status.init_containers, &mut status.containers, &mut status.ephemeral_containers];
        for container in lists.into_iter().flatten() {
            if let ContainerState::Waiting { reason, message } = &mut container.state
                && (message.is_empty() || message.starts_with(WHAT))
            {
                NOT_WRITTEN.clone_into(reason);
                *message = text(failure);
            }
        }
    }
}

/// Whether an act waits for the record. One that leaves something does. One that takes something away does while the pod is
/// wanted: a pod that is removed is taken down by its old record too, which makes room, and a crash on the way is cleaned up
/// like any pod that nobody wants. Its network stays as long as its sandbox: an agent that finds the sandbox and an old record
/// takes the attachment for there.
fn needs_record(act: &Act, life: &Life) -> bool {
    let is_wanted = match life.record.goal {
        Goal::Wanted => true,
        Goal::Removed => false,
    };
    let is_before_its_sandbox = if let Act::RemoveNetwork(sandbox) = act {
        life.actual.removals.contains_key(&Leftover::Sandbox(sandbox.clone()))
    } else {
        false
    };
    match act.footprint() {
        Footprint::Leaves => true,
        Footprint::TakesAway => is_wanted || is_before_its_sandbox,
        Footprint::None => false,
    }
}

fn text(failure: &Failure) -> String {
    format!("{WHAT}: {}", failure.message)
}
