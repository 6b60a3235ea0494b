//! What follows from the end of an effect.

use super::{
    actual::{Leftover, Removal},
    fit,
    machine::PodMachine,
    resource::{Ended, Retry},
    words::about_pod,
};
use crate::{
    event::{Failure, FailureKind, Outcome},
    id::OpId,
    ops::Slot,
    status::Severity,
    time::{Mono, Now},
};

impl PodMachine {
    /// Takes the outcome of an effect.
    pub fn settle(&mut self, op: OpId, slot: Slot, tries: u32, result: Result<Outcome, Failure>, now: Now) {
        let ended = Ended { op, tries, at: now.mono };
        match slot {
            Slot::Dirs => {
                self.complain(&result, "Failed", "error making pod data directories: ");
                self.life.actual.dirs.settle(ended, fit::done(result));
            }
            Slot::Cgroup => {
                self.complain(&result, "FailedCreatePodContainer", "unable to ensure pod container exists: ");
                self.life.actual.cgroup.settle(ended, fit::done(result));
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
            Slot::Words(name) => self.words_read(op, &name, tries, result, now),
            Slot::Remove(leftover) => self.removed(leftover, tries, result, now.mono),
        }
    }

    /// Tells a failure, unless containerd's absence explains it.
    pub(super) fn complain(&mut self, result: &Result<Outcome, Failure>, reason: &'static str, prefix: &str) {
        if let Err(failure) = result
            && failure.kind != FailureKind::RuntimeDown
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
            Slot::Sandbox(_) => actual.sandbox.settle(ended, fit::sandbox(result)),
            Slot::Dirs
            | Slot::Cgroup
            | Slot::Volume(_)
            | Slot::Rootfs(_)
            | Slot::Start(_)
            | Slot::Signal(_)
            | Slot::Words(_)
            | Slot::Remove(_) => {}
        }
        if gone {
            self.lose_sandbox(now.wall, now);
        }
    }

    fn removed(&mut self, leftover: Leftover, tries: u32, result: Result<Outcome, Failure>, now: Mono) {
        self.complain(&result, "FailedKillPod", "error killing pod: ");
        match fit::done(result) {
            Ok(()) => {
                self.life.actual.removals.remove(&leftover);
            }
            Err(failure) => {
                let stuck = Removal::Stuck(Retry::after(failure, tries, now));
                self.life.actual.removals.insert(leftover, stuck);
            }
        }
    }
}
