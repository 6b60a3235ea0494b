//! What follows from the end of an effect.

use super::{
    actual::{Leftover, Removal, Up},
    fit,
    machine::PodMachine,
    resource::{Ended, Retry},
    silence::{is_given_up, unanswered},
    words::about_pod,
};
use crate::{
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{OpId, SandboxId},
    ops::Slot,
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
            Slot::Dirs => {
                self.complain(&result, "Failed", "error making pod data directories: ");
                self.life.actual.dirs.settle(ended, fit::done(result));
            }
            Slot::Cgroup => {
                self.complain(&result, "FailedCreatePodContainer", "unable to ensure pod container exists: ");
                self.life.actual.cgroup.settle(ended, fit::done(result));
            }
            Slot::End => {
                self.complain(&result, "FailedKeepEnd", "error keeping how the pod ended: ");
                self.life.actual.end.settle(ended, fit::done(result));
            }
            Slot::Netns(attempt) | Slot::Network(attempt) | Slot::Sandbox(attempt)
                if attempt != self.life.record.sandbox =>
            {
                self.made_too_late(op);
            }
            Slot::Netns(_) | Slot::Network(_) | Slot::Sandbox(_) => {
                self.sandbox_settled(&slot, ended, result, now);
            }
            Slot::Volume(name) => {
                let prefix = format!("MountVolume.SetUp failed for volume {:?} : ", name.as_str());
                self.complain(&result, "FailedMount", &prefix);
                if let Some(state) = self.life.actual.volumes.get_mut(&name) {
                    state.settle(ended, fit::volume(result));
                }
            }
            Slot::Rootfs(name) => self.rootfs_settled(&name, ended, result),
            Slot::Start(name) => self.started(op, &name, tries, result, now),
            Slot::Signal(name) => self.signalled(op, &name, result, now.mono),
            Slot::Look(sandbox) => self.looked(op, sandbox, result, now),
            Slot::Files => {
                self.complain(&result, "Failed", "error writing files of the pod: ");
                self.life.actual.files.settle(ended, fit::done(result));
            }
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

    /// Something that was given up meanwhile was made, or not: it can be removed now.
    pub(super) fn made_too_late(&mut self, op: OpId) {
        for removal in self.life.actual.removals.values_mut() {
            if *removal == Removal::After(op) {
                *removal = Removal::Due;
            }
        }
    }

    fn sandbox_settled(&mut self, slot: &Slot, ended: Ended, result: Result<Outcome, Failure>, now: Now) {
        self.complain(&result, "FailedCreatePodSandBox", "Failed to create pod sandbox: ");
        let gone = matches!(&result, Err(failure) if failure.kind == FailureKind::SandboxGone);
        let actual = &mut self.life.actual;
        match slot {
            Slot::Netns(_) => actual.netns.settle(ended, fit::netns(result)),
            Slot::Network(_) => {
                let record = &mut self.life.record;
                let wired = fit::network(result).map(|status| record.network = Some(status));
                actual.network.settle(ended, wired);
            }
            Slot::Sandbox(_) => {
                let up = fit::sandbox(result).map(|pid| Up { pid, known_at: now.mono });
                actual.sandbox.settle(ended, up);
            }
            Slot::Record
            | Slot::Status
            | Slot::Dirs
            | Slot::Cgroup
            | Slot::End
            | Slot::Volume(_)
            | Slot::Rootfs(_)
            | Slot::Start(_)
            | Slot::Signal(_)
            | Slot::Words(_)
            | Slot::Look(_)
            | Slot::Files
            | Slot::Remove(_)
            | Slot::Shim(_) => {}
        }
        if gone {
            self.lose_sandbox(now.wall, now);
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

    /// What waited for the shim need not wait any more.
    fn shim_killed(&mut self, sandbox: SandboxId, tries: u32, result: Result<Outcome, Failure>, now: Mono) {
        self.complain(&result, "FailedKillPod", "error killing pod: ");
        let actual = &mut self.life.actual;
        if let Err(failure) = fit::done(result) {
            let stuck = Removal::Stuck(Retry::after(failure, tries, now));
            actual.removals.insert(Leftover::Sandbox(sandbox), stuck);
            return;
        }
        actual.unanswered.remove(&sandbox);
        actual.removals.insert(Leftover::Sandbox(sandbox), Removal::Due);
        for removal in actual.removals.values_mut() {
            match removal {
                Removal::Stuck(retry) if retry.failure.kind == FailureKind::Silent => *removal = Removal::Due,
                // It asks the shim that is gone now, and begins anew with short delays.
                Removal::Removing { tries, .. } => *tries = 0,
                Removal::Due | Removal::After(_) | Removal::Stuck(_) => {}
            }
        }
    }
}
