//! What a plan consists of, and what takes its steps.

use super::{
    machine::{PodMachine, Shared},
    port::{image::ImageFor, removal::Leftover, signal::Sent},
};
use crate::{
    id::{ContainerName, ImageRef, SandboxId, VolumeName},
    record::TerminalRecord,
    spec::{HookMoment, Resizable},
    time::{Mono, Now},
};

/// What is to be done for a pod now, and when to look again.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// In order; none waits for another.
    pub steps: Vec<Step>,
    /// When time alone changes the plan.
    pub wake_at: Option<Mono>,
    /// Why the pod cannot be wired, while that is so.
    pub unwired: Option<String>,
}

impl Plan {
    /// Asks to be made again at `at`, or earlier.
    pub(super) fn wake(&mut self, at: Mono) {
        self.wake_at = Some(self.wake_at.map_or(at, |known| known.min(at)));
    }
}

/// One step. Those that change only the record or what is known of the pod are followed by a new plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// The pod has ended for good.
    End(TerminalRecord),
    /// Begin the next run of a container, or prepare the current one anew.
    Begin(ContainerName),
    /// Say that the next run of a container waits.
    BackOff(ContainerName),
    /// Say that the next pull of an image waits.
    BackOffPull(ImageRef),
    /// Give up a run that was not started.
    Discard(ContainerName),
    /// Begin to stop a running container.
    Stop(ContainerName),
    /// Replace the sandbox, which is empty and cannot go on.
    ReplaceSandbox,
    /// Begin to stop all containers, which then begin anew.
    RestartAll,
    /// All containers begin anew.
    BeginAll,

    /// Make something.
    Ensure(PodResource),
    /// Make the content of a volume anew.
    Refresh(VolumeName),
    /// Look for an image.
    Inspect(ImageFor),
    /// Pull an image.
    Pull(ImageFor),
    /// Wait no longer for the image of a volume.
    GiveUpImage(VolumeName),
    /// Start a container.
    Start(ContainerName),
    /// Look whether a container runs whose start nobody answered.
    Look(ContainerName),
    /// Run a hook of a container.
    RunHook(ContainerName, HookMoment),
    /// Show that a hook of a container has not ended.
    ShowHook(ContainerName),
    /// A postStart hook that lets time pass is over.
    Begun(ContainerName),
    /// Give the cgroup of a container what is allocated to it of a resource.
    Resize(ContainerName, Resizable),
    /// Have the pod's cgroup go by what the pod names for itself now.
    SettleWhole,
    /// What is allocated is in force everywhere.
    Resized,
    /// Send a container its stop signal.
    Term(ContainerName),
    /// Kill a container.
    Kill(ContainerName),
    /// Read the termination message of a container.
    ReadTerminationMessage(ContainerName),
    /// Remove something.
    Remove(Leftover),
    /// Kill the shim of a sandbox that is being removed.
    KillShim(SandboxId),
}

/// A resource that a pod needs on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodResource {
    /// The pod's directories.
    Dirs,
    /// Its cgroup.
    Cgroup,
    /// Its network namespace.
    Netns,
    /// Its CNI attachment.
    Network,
    /// Its sandbox.
    Sandbox,
    /// One of its volumes.
    Volume(VolumeName),
    /// Files that were missing.
    Files,
    /// The writable layer of a container.
    Rootfs(ContainerName),
    /// What is kept of its end.
    End,
}

impl PodMachine {
    /// Takes one step.
    pub(super) fn apply(&mut self, step: Step, shared: &mut Shared<'_>, now: Now) {
        match step {
            Step::End(end) => self.end(end, now.mono),
            Step::Begin(name) => self.begin(&name, shared, now.mono),
            Step::BackOff(name) => self.back_off(&name),
            Step::BackOffPull(image) => self.back_off_pull(&image),
            Step::Discard(name) => self.discard(&name, shared, now),
            Step::ReplaceSandbox => self.lose_sandbox(now.wall, now),
            Step::RestartAll => self.restart_all(now.mono),
            Step::BeginAll => self.begin_all(now.mono),
            Step::Stop(name) => self.stop(&name, now.mono),
            Step::Ensure(resource) => self.ensure(resource, shared, now.mono),
            Step::Refresh(name) => self.refresh_volume(name, shared),
            Step::Inspect(of) => self.inspect(of, shared, now.mono),
            Step::Pull(of) => self.pull(of, shared, now.mono),
            Step::GiveUpImage(name) => self.give_up_image(name, shared),
            Step::Start(name) => self.start(&name, shared, now.mono),
            Step::Look(name) => self.look_at_task(&name, shared),
            Step::RunHook(name, moment) => self.run_hook(&name, moment, shared, now.mono),
            Step::ShowHook(name) => self.show_hook(&name),
            Step::Begun(name) => self.begun(&name),
            Step::Resize(name, resource) => {
                self.try_resize(now.mono);
                self.resize_container(&name, resource, shared);
            }
            Step::SettleWhole => {
                self.try_resize(now.mono);
                self.settle_whole(shared);
            }
            Step::Resized => self.resized(now.mono),
            Step::Term(name) => self.signal(&name, Sent::Term, shared, now),
            Step::Kill(name) => self.signal(&name, Sent::Kill, shared, now),
            Step::ReadTerminationMessage(name) => self.read_termination_message(&name, shared),
            Step::Remove(leftover) => self.remove_leftover(leftover, shared),
            Step::KillShim(sandbox) => self.kill_shim(sandbox, shared),
        }
    }

    fn ensure(&mut self, resource: PodResource, shared: &mut Shared<'_>, now: Mono) {
        match resource {
            PodResource::Dirs => self.ensure_dirs(shared),
            PodResource::Cgroup => self.ensure_cgroup(shared),
            PodResource::Netns => self.ensure_netns(shared),
            PodResource::Network => self.ensure_network(shared),
            PodResource::Sandbox => self.ensure_sandbox(shared, now),
            PodResource::Volume(name) => self.ensure_volume(name, shared),
            PodResource::Files => self.ensure_files(shared),
            PodResource::Rootfs(name) => self.ensure_rootfs(&name, shared),
            PodResource::End => self.keep_end(shared),
        }
    }
}
