//! Processes of containers: signals and ends.

use berth_core::{
    event::Outcome,
    id::{ContainerId, PodUid},
    observation::{Exit, ObservedTask, SandboxReport},
    pod::port::signal::{SignalRequest, StopSignal},
    time::Now,
};

use super::{Container, Report, World, short};

impl World {
    /// They are in the pod's directory, also when the container has gone with its sandbox.
    pub(super) fn last_words(&mut self, id: &ContainerId) -> Outcome {
        if self.containers.get(id).is_some_and(Container::is_running) {
            self.violate(format!("termination message of {} before its end", short(id)));
        }
        Outcome::TerminationMessage("bye".into())
    }

    pub(super) fn signal(&mut self, request: &SignalRequest, now: Now) {
        let SignalRequest { sandbox, id, signal } = request;
        let Some(container) = self.containers.get(id) else { return };
        if container.sandbox != *sandbox {
            let text = format!("{} is signalled in another sandbox", short(id));
            self.violations.push(text);
        }
        let code = match signal {
            StopSignal::Stop(_) if self.deaf.contains(&container.name) => return,
            StopSignal::Stop(_) => 143,
            StopSignal::Kill => 137,
        };
        self.exit(&id.clone(), code, now);
    }

    /// A container's process ends.
    pub(crate) fn exit(&mut self, id: &ContainerId, code: u32, now: Now) {
        self.end(id, code, false, now);
    }

    /// A container's process ends, perhaps since the kernel killed something in it for memory.
    pub(crate) fn end(&mut self, id: &ContainerId, code: u32, oom_killed: bool, now: Now) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let ObservedTask::Running { started_at, .. } = container.task else { return };
        let exit = Exit { code, started_at: Some(started_at), finished_at: now.wall, oom_killed };
        container.task = ObservedTask::Exited(exit);
        let report = SandboxReport::Exited { id: id.clone(), exit };
        self.reports.push((container.sandbox.clone(), Report::Told(report)));
        let pod = container.pod.clone();
        self.oracle.process_ended(&pod, id, exit, now);
    }

    /// The running container of a pod with this name.
    pub(crate) fn running(&self, pod: &PodUid, name: &str) -> Option<ContainerId> {
        let mut all = self.containers.iter();
        let found = all.find(|(_, one)| one.pod == *pod && one.name.as_str() == name && one.is_running());
        found.map(|(id, _)| id.clone())
    }
}
