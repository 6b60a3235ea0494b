//! The removal of what a pod leaves behind: earlier runs and sandboxes while it lives, everything when it ends.

use crate::{
    effect::Act,
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{ContainerId, ContainerName, OpId, SandboxId},
    pod::{
        actual::{Life, Run},
        fit,
        machine::{PodMachine, Shared},
        outcome::Slot,
        resource::{Resource, Retry},
        silence::{is_given_up, unanswered},
    },
    time::Mono,
};

/// A container to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoveContainerRequest {
    /// Which.
    pub id: ContainerId,
}

/// Something to remove.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leftover {
    /// A run of a container.
    Container(ContainerId),
    /// A sandbox.
    Sandbox(SandboxId),
    /// The CNI attachment of a sandbox.
    Network(SandboxId),
    /// The network namespace of a sandbox.
    Netns(SandboxId),
    /// All volumes.
    Volumes,
    /// The cgroup.
    Cgroup,
    /// The directories.
    Dirs,
    /// What is kept of the pod's end.
    End,
    /// The record: the last of all.
    Record,
}

/// How far a removal is.
#[derive(Debug, Clone, PartialEq)]
pub enum Removal {
    /// To be done.
    Due,
    /// Waits for the outcome of this effect, which makes the resource.
    After(OpId),
    /// Being done.
    Removing {
        /// The effect.
        op: OpId,
        /// Failures before.
        tries: u32,
    },
    /// Failed; tried until it works.
    Stuck(Retry),
}

impl PodMachine {
    /// The current run of a container is to be removed, when nothing of it is being made any more.
    pub(in crate::pod) fn leave(&mut self, name: &ContainerName) {
        let id = self.life.container_id(name);
        let making = match self.life.run(name) {
            Run::Preparing(preparing) => preparing.rootfs.op(),
            Run::Idle | Run::BackingOff | Run::Starting(_) | Run::Running(_) | Run::Ended(_) => None,
        };
        let removal = making.map_or(Removal::Due, Removal::After);
        self.life.actual.removals.insert(Leftover::Container(id), removal);
    }

    /// Asks for a removal.
    pub(in crate::pod) fn remove_leftover(&mut self, leftover: Leftover, shared: &mut Shared<'_>) {
        let tries = match self.life.actual.removals.get(&leftover) {
            Some(Removal::Stuck(retry)) => retry.tries,
            Some(Removal::Due | Removal::After(_) | Removal::Removing { .. }) | None => 0,
        };
        let actual = &mut self.life.actual;
        let current = &self.life.record.sandbox_id;
        match &leftover {
            Leftover::Container(_) => {}
            Leftover::Sandbox(id) if id == current => actual.sandbox = Resource::Absent,
            Leftover::Network(id) if id == current => actual.network = Resource::Absent,
            Leftover::Netns(id) if id == current => actual.netns = Resource::Absent,
            Leftover::Sandbox(_) | Leftover::Network(_) | Leftover::Netns(_) => {}
            Leftover::Volumes => {
                actual.volumes.clear();
                actual.refreshes.clear();
            }
            Leftover::Cgroup => actual.cgroup = Resource::Absent,
            Leftover::Dirs => actual.dirs = Resource::Absent,
            Leftover::End => actual.end = Resource::Absent,
            Leftover::Record => {}
        }
        let act = request(&self.life, &leftover);
        let op = self.ask(shared, Slot::Remove(leftover.clone()), tries, act);
        self.life.actual.removals.insert(leftover, Removal::Removing { op, tries });
    }

    /// Takes the outcome.
    pub(in crate::pod) fn removed(
        &mut self,
        leftover: Leftover,
        tries: u32,
        result: Result<Outcome, Failure>,
        now: Mono,
    ) {
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
                    self.life.actual.end_waits(FailureKind::Unrecorded, now);
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

    /// Something that was given up meanwhile was made, or not: it can be removed now.
    pub(in crate::pod) fn made_too_late(&mut self, op: OpId) {
        for removal in self.life.actual.removals.values_mut() {
            if *removal == Removal::After(op) {
                *removal = Removal::Due;
            }
        }
    }
}

fn request(life: &Life, leftover: &Leftover) -> Act {
    match leftover {
        Leftover::Container(id) => Act::RemoveContainer(RemoveContainerRequest { id: id.clone() }),
        Leftover::Sandbox(id) => Act::RemoveSandbox(id.clone()),
        Leftover::Network(id) => Act::RemoveNetwork(id.clone()),
        Leftover::Netns(id) => Act::RemoveNetns(id.clone()),
        Leftover::Volumes => {
            let with_images = life.spec.volumes.iter().any(|volume| volume.image().is_some());
            Act::RemoveVolumes { with_images }
        }
        Leftover::Cgroup => Act::RemoveCgroup(life.spec.qos),
        Leftover::Dirs => Act::RemoveDirs(life.record.name.clone()),
        Leftover::End => Act::DropEnd,
        Leftover::Record => Act::Forget,
    }
}
