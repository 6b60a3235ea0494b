//! Signals to containers.

use std::time::Duration;

use crate::{
    effect::Act,
    event::Outcome,
    failure::Failure,
    id::{ContainerId, ContainerName, OpId, SandboxId},
    pod::{
        actual::{Run, RunEnd, Running},
        fit,
        machine::{PodMachine, Shared},
        outcome::Slot,
        resource::growing,
        text::about_pod,
    },
    record::{EndedBy, PodRecord},
    spec::{Container, ContainerKind},
    status::{PodEvent, Severity},
    time::{Mono, Now},
};

/// Sent to containers whose image names no signal.
const STOP_SIGNAL: &str = "SIGTERM";

/// Time after SIGKILL in which a container has to be gone before it is killed again.
const KILL_AGAIN: Duration = Duration::from_secs(5);

/// Signals after which a container whose end nobody reports is removed as it is: its removal ends what is left of it.
const KILLS_MAX: u32 = 3;

/// From a container's deadline to the beginning of its removal, at most, when its shim answers nothing at all:
/// three signals of [`SIGNAL_DEADLINE`] each, with 1 s, 2 s and 4 s after them. How long the removal then waits for the
/// shim: [`silence`](crate::pod::silence).
pub const SILENT_KILL_MAX: Duration = Duration::from_secs(37);

/// What the shell gives [`Act::Signal`] and [`Act::LookAtTask`] to be answered. A shim answers from memory;
/// one that takes longer hangs.
pub const SIGNAL_DEADLINE: Duration = Duration::from_secs(10);

/// A signal to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignalRequest {
    /// The sandbox it runs in, whose shim is asked first.
    pub sandbox: SandboxId,
    /// The container that gets it.
    pub id: ContainerId,
    /// Which.
    pub signal: StopSignal,
}

/// A signal that ends a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopSignal {
    /// The image's STOPSIGNAL, or SIGTERM.
    Stop(String),
    /// SIGKILL to everything in the container.
    Kill,
}

/// How far the stop of a running container is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Not asked to stop.
    No,
    /// Its stop signal.
    Term(Delivery),
    /// SIGKILL.
    Kill(Delivery),
}

/// How far a signal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Being sent.
    Sending {
        /// The effect.
        op: OpId,
        /// Earlier tries.
        tries: u32,
    },
    /// Sent, or not; to be sent again then.
    Waiting {
        /// When.
        again: Option<Mono>,
        /// Tries.
        tries: u32,
    },
}

/// Which signal is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pod) enum Sent {
    /// The stop signal.
    Term,
    /// SIGKILL.
    Kill,
}

impl Delivery {
    pub(in crate::pod) fn tries(self) -> u32 {
        match self {
            Self::Sending { tries, .. } | Self::Waiting { tries, .. } => tries,
        }
    }
}

impl PodMachine {
    /// Asks to send a running container a signal.
    pub(in crate::pod) fn signal(
        &mut self,
        name: &ContainerName,
        sent: Sent,
        shared: &mut Shared<'_>,
        now: Now,
    ) {
        let Run::Running(running) = self.life.run(name).clone() else { return };
        let tries = match (sent, running.stop) {
            (Sent::Term, Stop::Term(delivery)) | (Sent::Kill, Stop::Kill(delivery)) => delivery.tries(),
            (Sent::Term, Stop::No | Stop::Kill(_)) | (Sent::Kill, Stop::No | Stop::Term(_)) => 0,
        };
        if sent == Sent::Kill && tries >= KILLS_MAX {
            return self.ended(name, RunEnd::Unseen(now.wall), now);
        }
        let signal = match sent {
            Sent::Term => self.stop_signal(name),
            Sent::Kill => StopSignal::Kill,
        };
        if sent == Sent::Term {
            self.note_signal(name, now.mono);
        }
        let (sandbox, id) = (self.life.sandbox_id(), self.life.container_id(name));
        let act = Act::Signal(SignalRequest { sandbox, id, signal });
        let op = self.ask(shared, Slot::Signal(name.clone()), tries, act);
        let delivery = Delivery::Sending { op, tries };
        let stop = match sent {
            Sent::Term => Stop::Term(delivery),
            Sent::Kill => Stop::Kill(delivery),
        };
        self.set_run(name, Run::Running(Running { stop, ..running }));
    }

    /// Since when a container that had to wait for its stop signal has had it.
    fn note_signal(&mut self, name: &ContainerName, now: Mono) {
        let may_wait = self.container(name).is_some_and(|container| may_wait(&container));
        if let Some(record) = self.life.record.containers.get_mut(name).filter(|_| may_wait) {
            record.hooked.signalled.get_or_insert(now);
        }
    }

    /// The container's own counts before its image's.
    fn stop_signal(&self, name: &ContainerName) -> StopSignal {
        let own = self.container(name).and_then(|container| container.lifecycle.stop_signal.clone());
        let image = self.life.record.containers.get(name).and_then(|run| run.image.as_ref());
        let signal = own.or_else(|| image.and_then(|image| image.stop_signal.clone()));
        StopSignal::Stop(signal.filter(|signal| !signal.is_empty()).unwrap_or_else(|| STOP_SIGNAL.into()))
    }

    /// Takes the outcome.
    pub(in crate::pod) fn signalled(
        &mut self,
        op: OpId,
        name: &ContainerName,
        result: Result<Outcome, Failure>,
        now: Mono,
    ) {
        let Some(Run::Running(running)) = self.life.actual.containers.get_mut(name) else { return };
        let (Stop::Term(delivery) | Stop::Kill(delivery)) = &mut running.stop else { return };
        let tries = match *delivery {
            Delivery::Sending { op: sending, tries } if sending == op => tries,
            Delivery::Sending { .. } | Delivery::Waiting { .. } => return,
        };
        let failed = fit::done(result).err();
        let is_kill = matches!(running.stop, Stop::Kill(_));
        let again = match &failed {
            Some(_) => Some(now + growing(tries)),
            None => is_kill.then(|| now + KILL_AGAIN),
        };
        let waiting = Delivery::Waiting { again, tries: tries.saturating_add(1) };
        running.stop = if is_kill { Stop::Kill(waiting) } else { Stop::Term(waiting) };
        if let Some(failure) = failed {
            self.complain(&Err(failure), "FailedKillPod", "error killing pod: ");
        } else if is_kill && tries == 1 {
            self.notes.push(outlived(&self.life.record, name));
        }
    }
}

/// Whether a container that is to stop may have to wait for its stop signal: for its preStop hook, or its turn.
#[must_use]
pub(in crate::pod) fn may_wait(container: &Container) -> bool {
    container.lifecycle.pre_stop.is_some() || container.kind == ContainerKind::Sidecar
}

/// What is told of a container that is there after SIGKILL. Source: `killPodNow` of `pkg/kubelet/pod_workers.go` for pods that make
/// room for others; `SyncTerminatingPod` of `pkg/kubelet/kubelet.go`.
fn outlived(record: &PodRecord, name: &ContainerName) -> PodEvent {
    let makes_room = record.terminal.as_ref().is_some_and(|end| match end.by {
        EndedBy::Node(_) => true,
        EndedBy::Itself | EndedBy::Admission => false,
    });
    if makes_room {
        let text = "Container runtime did not kill the pod within specified grace period.";
        return about_pod(Severity::Warning, "ExceededGracePeriod", text);
    }
    let text = format!("error killing pod: container {name} is still there after SIGKILL");
    about_pod(Severity::Warning, "FailedKillPod", text)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{
        fixtures,
        record::{ContainerRecord, RunImage},
    };

    #[test]
    fn the_stop_signal_of_a_container_counts_before_its_images() {
        let now = Now { mono: Mono(Duration::from_secs(500)), wall: Timestamp::UNIX_EPOCH };
        for (own, of_image, expected) in [
            (None, None, "SIGTERM"),
            (None, Some("SIGUSR1"), "SIGUSR1"),
            (None, Some(""), "SIGTERM"),
            (Some("SIGUSR2"), None, "SIGUSR2"),
            (Some("SIGUSR2"), Some("SIGUSR1"), "SIGUSR2"),
        ] {
            let mut container = fixtures::container("web");
            container.lifecycle.stop_signal = own.map(str::to_owned);
            let mut pod = PodMachine::new(fixtures::pod(vec![container]).into(), now);
            let name = ContainerName::new("web");
            let image = RunImage {
                name: "docker.io/library/web:1".to_owned(),
                id: "sha256:cafe".to_owned(),
                stop_signal: of_image.map(str::to_owned),
                user: None,
            };
            let begun = ContainerRecord::begun(pod.life().container_id(&name), 0, now.mono);
            let record = ContainerRecord { image: Some(image), ..begun };
            pod.life.record.containers.insert(name.clone(), record);
            let expected = StopSignal::Stop(expected.to_owned());
            assert_eq!(pod.stop_signal(&name), expected, "{own:?} {of_image:?}");
        }
    }

    #[test]
    fn only_of_a_pod_that_makes_room_the_runtime_is_told_to_have_had_its_time() {
        let now = Now { mono: Mono(Duration::from_secs(500)), wall: Timestamp::UNIX_EPOCH };
        let mut pod = PodMachine::new(fixtures::pod(vec![fixtures::container("web")]).into(), now);
        let told = |pod: &PodMachine| {
            let event = outlived(&pod.life().record, &ContainerName::new("web"));
            assert_eq!((event.container, event.severity), (None, Severity::Warning));
            (event.reason, event.message)
        };
        pod.remove(now.mono);
        let (reason, message) = told(&pod);
        assert_eq!(reason, "FailedKillPod");
        assert_eq!(message, "error killing pod: container web is still there after SIGKILL");
        pod.preempt(now);
        let (reason, message) = told(&pod);
        assert_eq!(reason, "ExceededGracePeriod");
        assert_eq!(message, "Container runtime did not kill the pod within specified grace period.");
    }
}
