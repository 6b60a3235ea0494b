//! What follows from the end of an effect.

use super::{
    actual::{Leftover, Removal},
    fit,
    machine::PodMachine,
    resource::{Ended, Retry},
    silence::{is_given_up, unanswered},
    words::about_pod,
};
use crate::{
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{ContainerName, OpId},
    ops::Slot,
    pod::words::about,
    status::Severity,
    time::{Mono, Now},
};

impl PodMachine {
    /// Takes the outcome of an effect.
    pub fn settle(&mut self, op: OpId, slot: Slot, tries: u32, result: Result<Outcome, Failure>, now: Now) {
        let ended = Ended { op, tries, at: now.mono };
        match slot {
            Slot::Record => self.saved(op, tries, result, now.mono),
            Slot::Status => self.publishing.settle(ended, fit::done(result)),
            Slot::Dirs => self.dirs_made(ended, result),
            Slot::Cgroup => self.cgroup_made(ended, result),
            Slot::End => self.end_kept(ended, result),
            Slot::Netns(sandbox) => self.netns_made(sandbox, ended, result, now),
            Slot::Network(sandbox) => self.network_made(sandbox, ended, result, now),
            Slot::Sandbox(sandbox) => self.sandbox_made(sandbox, ended, result, now),
            Slot::Volume(name) => self.volume_made(&name, ended, result),
            Slot::Rootfs(name) => self.rootfs_made(&name, ended, result),
            Slot::Start(name) => self.started(op, &name, tries, result, now),
            Slot::Signal(name) => self.signalled(op, &name, result, now.mono),
            Slot::Look(sandbox) => self.looked(op, sandbox, result, now),
            Slot::Files => self.files_written(ended, result),
            Slot::Words(name) => self.words_read(op, &name, tries, result, now),
            Slot::Remove(leftover) => self.removed(leftover, tries, result, now.mono),
            Slot::Shim(sandbox) => self.shim_killed(sandbox, tries, result, now.mono),
        }
    }

    /// Tells a failure, unless that is told elsewhere.
    pub(super) fn complain(&mut self, result: &Result<Outcome, Failure>, reason: &'static str, prefix: &str) {
        if let Err(failure) = result
            && !failure.kind.is_told_elsewhere()
        {
            let text = format!("{prefix}{}", failure.message);
            self.notes.push(about_pod(Severity::Warning, reason, text));
        }
    }

    /// The same of a container.
    pub(super) fn complain_about(&mut self, name: &ContainerName, failure: &Failure) {
        if !failure.kind.is_told_elsewhere() {
            let text = format!("Error: {}", failure.message);
            self.notes.push(about(name, Severity::Warning, "Failed", text));
        }
    }

    /// Something that was given up meanwhile was made, or not: it can be removed now.
    pub(super) fn made_too_late(&mut self, op: OpId) {
        for removal in self.life.actual.removals.values_mut() {
            if *removal == Removal::After(op) {
                *removal = Removal::Due;
            }
        }
    }

    fn removed(&mut self, leftover: Leftover, tries: u32, result: Result<Outcome, Failure>, now: Mono) {
        self.complain(&result, "FailedKillPod", "error killing pod: ");
        let mut is_shim_due = false;
        if let Leftover::Sandbox(sandbox) = &leftover {
            let before = self.life.actual.unanswered.remove(sandbox).unwrap_or_default();
            let unanswered = unanswered(before, &result);
            if unanswered > 0 {
                self.life.actual.unanswered.insert(sandbox.clone(), unanswered);
            }
            is_shim_due = is_given_up(unanswered);
        }
        // Fewer than were counted when its shim was killed meanwhile.
        let tries = match self.life.actual.removals.get(&leftover) {
            Some(Removal::Removing { tries, .. }) => *tries,
            Some(Removal::Due | Removal::After(_) | Removal::Stuck(_)) | None => tries,
        };
        match fit::done(result) {
            Ok(()) => {
                self.forgotten |= leftover == Leftover::Record;
                self.life.actual.removals.remove(&leftover);
                if let Leftover::Sandbox(_) = leftover {
                    // What waited for it while no record can be written.
                    self.end_waits(FailureKind::Unrecorded, now);
                }
            }
            Err(failure) => {
                let mut retry = Retry::after(failure, tries, now);
                if is_shim_due {
                    retry.at = now;
                }
                self.life.actual.removals.insert(leftover, Removal::Stuck(retry));
            }
        }
    }
}
