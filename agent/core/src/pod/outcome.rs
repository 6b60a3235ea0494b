//! What of a pod effects are about, and what takes their outcomes.

use super::{
    machine::PodMachine,
    port::removal::Leftover,
    resource::EndedEffect,
    text::{about, about_pod, without_id},
};
use crate::{
    event::Outcome,
    failure::Failure,
    id::{Attempt, ContainerId, ContainerName, OpId, SandboxId, VolumeName},
    spec::{CpuMemory, HookMoment, ProbeKind, Resizable},
    status::Severity,
    time::Now,
};

/// What of a pod an effect is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slot {
    /// The record on disk.
    Record,
    /// The status that everybody sees.
    Status,
    /// Directories.
    Dirs,
    /// cgroup.
    Cgroup,
    /// Network namespace of a sandbox.
    Netns(Attempt),
    /// CNI attachment of a sandbox.
    Network(Attempt),
    /// A sandbox.
    Sandbox(Attempt),
    /// What is kept of the pod's end.
    End,
    /// A volume.
    Volume(VolumeName),
    /// Writable layer of a container.
    Rootfs(ContainerName),
    /// Start of a container.
    Start(ContainerName),
    /// The cgroup of a run of a container, which is to have this of a resource.
    Resize(ContainerName, ContainerId, Resizable, CpuMemory),
    /// Whether the memory limit of the pod can become lower.
    CheckMemory,
    /// Signal to a container.
    Signal(ContainerName),
    /// Termination message of a container.
    TerminationMessage(ContainerName),
    /// Probe of a container.
    Probe(ContainerName, ProbeKind),
    /// Hook of a container.
    Hook(ContainerName, HookMoment),
    /// A look at what was made for it with this sandbox.
    Look(Attempt),
    /// Files that were missing.
    Files,
    /// A removal.
    Remove(Leftover),
    /// The shim of a sandbox that is being removed.
    Shim(SandboxId),
}

impl PodMachine {
    /// Takes the outcome of an effect.
    pub fn settle(&mut self, op: OpId, slot: Slot, tries: u32, result: Result<Outcome, Failure>, now: Now) {
        let ended = EndedEffect { op, tries, at: now.mono };
        match slot {
            Slot::Record => self.saved(op, tries, result, now.mono),
            Slot::Status => self.published(ended, result),
            Slot::Dirs => self.dirs_made(ended, result),
            Slot::Cgroup => self.cgroup_made(ended, result),
            Slot::End => self.end_kept(ended, result),
            Slot::Netns(sandbox) => self.netns_made(sandbox, ended, result, now),
            Slot::Network(sandbox) => self.network_made(sandbox, ended, result, now),
            Slot::Sandbox(sandbox) => self.sandbox_made(sandbox, ended, result, now),
            Slot::Volume(name) => self.volume_made(&name, ended, result),
            Slot::Rootfs(name) => self.rootfs_made(&name, ended, result, now),
            Slot::Start(name) => self.started(op, &name, tries, result, now),
            Slot::Resize(name, id, resource, given) => {
                self.container_resized(ended, (&name, &id), (resource, given), result);
            }
            Slot::CheckMemory => self.memory_checked(ended, result),
            Slot::Signal(name) => self.signalled(op, &name, result, now.mono),
            // The node takes its answer: one that changes nothing costs no plan.
            Slot::Probe(name, kind) => {
                self.probed(op, &name, kind, result, now);
            }
            Slot::Hook(name, moment) => self.hook_ended(op, &name, moment, result, now.mono),
            Slot::Look(sandbox) => self.looked(op, sandbox, result, now),
            Slot::Files => self.files_written(ended, result),
            Slot::TerminationMessage(name) => self.termination_message_read(op, &name, tries, result, now),
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

    /// Tells a failure about a container, unless that is told elsewhere.
    pub(super) fn complain_about(&mut self, name: &ContainerName, failure: &Failure) {
        if !failure.kind.is_told_elsewhere() {
            let message = without_id(&failure.message, &self.life.container_id(name), name);
            let text = format!("Error: {message}");
            self.notes.push(about(name, Severity::Warning, "Failed", text));
        }
    }
}
