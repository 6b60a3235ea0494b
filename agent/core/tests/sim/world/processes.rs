//! Processes of containers: signals and ends.

use berth_core::{
    event::Outcome,
    id::{ContainerId, PodUid},
    observation::{Exit, ObservedTask, SandboxReport},
    pod::port::signal::{SignalRequest, StopSignal},
    time::{Mono, Now},
};

use super::{Container, Report, World, short};

/// How a process takes a signal that is to end it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Not at all, as a process does that is the first of its namespace and has no handler.
    Ignores,
    /// It ends when it is ready, with a code of its own.
    Ends {
        /// When.
        at: Mono,
        /// How.
        code: u32,
    },
}

impl World {
    /// It is in the pod's directory, also when the container has gone with its sandbox.
    pub(super) fn termination_message(&mut self, id: &ContainerId) -> Outcome {
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
        let manner = self.manners.remove(id);
        let code = match signal {
            StopSignal::Stop(_) if self.deaf.contains(&container.name) => return,
            StopSignal::Stop(_) => 143,
            StopSignal::Kill => 137,
        };
        match manner {
            None => self.exit(&id.clone(), code, now),
            Some(Manner::Ignores) => {}
            Some(Manner::Ends { at, code }) => {
                let end = self.ending.entry(id.clone()).or_insert((at, code));
                *end = (*end).min((at, code));
            }
        }
    }

    /// Processes that took their time come to their end; whether there was one.
    pub(crate) fn end_late(&mut self, now: Now) -> bool {
        let due: Vec<_> = self.ending.extract_if(.., |_, (at, _)| *at <= now.mono).collect();
        for (id, (_, code)) in &due {
            self.exit(id, *code, now);
        }
        !due.is_empty()
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
        self.ending.remove(id);
        if self.silent.contains(&container.sandbox) {
            self.unseen.insert(id.clone());
        }
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
