//! Takes the steps of a plan: changes what is known and asks for effects.

use std::sync::Arc;

use super::{
    actual::{Preparing, Run, RunEnd},
    machine::{PodMachine, Shared},
    plan::STOP_MIN,
    port::{image::ImageUse, signal::Sent},
    resource::Resource,
    restart::{is_of_another, next_back_off},
    step::{PodResource, Step},
    text::{about, about_pod, pod_text},
};
use crate::{
    id::{ContainerId, ContainerName},
    record::{ContainerRecord, TerminalRecord, TerminationRecord},
    spec::{Container, ContainerKind},
    status::Severity,
    time::{Mono, Now},
};

impl PodMachine {
    pub(super) fn apply(&mut self, step: Step, shared: &mut Shared<'_>, now: Now) {
        match step {
            Step::End(end) => self.end(end, now.mono),
            Step::Begin(name) => self.begin(&name, shared, now.mono),
            Step::BackOff(name) => self.back_off(&name),
            Step::BackOffPull(image) => self.back_off_pull(&image),
            Step::Discard(name) => self.discard(&name, shared, now),
            Step::ReplaceSandbox => self.lose_sandbox(now.wall, now),
            Step::Stop(name) => self.stop(&name, now.mono),
            Step::Ensure(resource) => self.ensure(resource, shared, now.mono),
            Step::Inspect(name) => self.inspect(&name, shared, now.mono),
            Step::Pull(name) => self.pull(&name, shared, now.mono),
            Step::Start(name) => self.start(&name, shared, now.mono),
            Step::Look(name) => self.look_at_task(&name, shared),
            Step::Term(name) => self.signal(&name, Sent::Term, shared, now),
            Step::Kill(name) => self.signal(&name, Sent::Kill, shared, now),
            Step::ReadTerminationMessage(name) => self.read_termination_message(&name, shared, now),
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

    pub(super) fn container(&self, name: &ContainerName) -> Option<Arc<Container>> {
        self.life.spec.all_containers().find(|container| container.name == *name).cloned()
    }

    pub(super) fn set_run(&mut self, name: &ContainerName, run: Run) {
        self.life.actual.containers.insert(name.clone(), run);
    }

    fn end(&mut self, end: TerminalRecord, now: Mono) {
        if end.reason == "DeadlineExceeded" {
            self.notes.push(about_pod(Severity::Normal, "DeadlineExceeded", end.message.clone()));
        }
        self.life.record.terminal = Some(end);
        self.terminate(now);
    }

    fn begin(&mut self, name: &ContainerName, shared: &Shared<'_>, now: Mono) {
        let Some(container) = self.container(name) else { return };
        let longest = shared.config.crash_backoff_max;
        let containers = &mut self.life.record.containers;
        let rootfs = match containers.get_mut(name) {
            None => {
                let id = ContainerId::of(&self.life.record.uid, name, 0);
                containers.insert(name.clone(), ContainerRecord::begun(id, 0, now));
                Resource::Absent
            }
            Some(record) => match record.exit.take() {
                Some(exit) => {
                    record.backoff = next_back_off(record, longest, now);
                    record.attempt = record.attempt.saturating_add(1);
                    record.id = ContainerId::of(&self.life.record.uid, name, record.attempt);
                    record.begun_at = now;
                    record.started_in = None;
                    record.stopping = None;
                    record.last_exit = Some(exit);
                    Resource::Absent
                }
                None => {
                    // What was to stop never ran.
                    record.stopping = None;
                    if is_of_another(record) {
                        record.backoff = next_back_off(record, longest, now);
                        record.begun_at = now;
                    }
                    Resource::Unknown
                }
            },
        };
        let preparing = Preparing {
            hash: container.hash,
            image: ImageUse::Wanted,
            rootfs,
            refused: None,
            is_under_way: false,
            end: None,
        };
        self.set_run(name, Run::Preparing(preparing));
    }

    fn back_off(&mut self, name: &ContainerName) {
        let text =
            format!("Back-off restarting failed container {name} in pod {}", pod_text(&self.life.record));
        self.notes.push(about(name, Severity::Warning, "BackOff", text));
        self.set_run(name, Run::BackingOff);
    }

    /// Gives up a run that was not started. One that may have been counts as ended.
    fn discard(&mut self, name: &ContainerName, shared: &mut Shared<'_>, now: Now) {
        shared.pulls.withdraw(&self.asker(name));
        if self.life.may_have_run(name) {
            return self.ended(name, RunEnd::Lost(now.wall), now);
        }
        let record = self.life.record.containers.get_mut(name);
        let was_asked = record.and_then(|record| record.started_in.take()).is_some();
        if let Run::Preparing(preparing) = self.life.run(name)
            && (was_asked || preparing.rootfs != Resource::Absent)
        {
            self.leave(name);
        }
        self.set_run(name, Run::Idle);
    }

    fn is_sidecar(&self, name: &ContainerName) -> bool {
        self.container(name).is_some_and(|container| container.kind == ContainerKind::Sidecar)
    }

    fn stop(&mut self, name: &ContainerName, now: Mono) {
        let together = self.life.record.termination.or(self.life.record.replacing);
        let text = match together {
            Some(_) => format!("Stopping container {name}"),
            None if self.is_sidecar(name) => format!("Init container {name} definition changed"),
            None => format!("Container {name} definition changed, will be restarted"),
        };
        let deadline = match together {
            Some(pod) => pod.deadline.max(now + STOP_MIN),
            None => now + self.life.spec.grace.max(STOP_MIN),
        };
        if let Some(record) = self.life.record.containers.get_mut(name) {
            record.stopping = Some(TerminationRecord { began: now, deadline });
            self.notes.push(about(name, Severity::Normal, "Killing", text));
        }
    }
}
