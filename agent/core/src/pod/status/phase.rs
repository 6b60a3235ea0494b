//! The phase of a pod. Source: `getPhase` of `pkg/kubelet/kubelet_pods.go`.

use super::any_main_started;
use crate::{
    pod::{actual::Life, restart::runs_again},
    spec::{ContainerKind, Source},
    status::{ContainerState, ContainerStatus, Phase, Terminated},
};

/// A pod of the API that was taken down has ended, however far it had come: the server waits for that. A pod of a manifest never gets
/// a final phase by being taken down. Source: `TerminatePod` of `pkg/kubelet/status/status_manager.go`.
pub(super) fn of(life: &Life, init_containers: &[ContainerStatus], containers: &[ContainerStatus]) -> Phase {
    let phase = seen(life, init_containers, containers);
    let has_ended = matches!(phase, Phase::Succeeded | Phase::Failed);
    if is_taken_down(life) && !has_ended { Phase::Failed } else { phase }
}

/// Whether an init container has failed for good: the pod has, whatever of it still runs.
pub(super) fn has_failed_to_initialize(life: &Life, init_containers: &[ContainerStatus]) -> bool {
    Init::of(life, init_containers).failed_for_good > 0
}

fn is_taken_down(life: &Life) -> bool {
    life.has_stopped() && life.spec.source == Source::Api
}

fn seen(life: &Life, init_containers: &[ContainerStatus], containers: &[ContainerStatus]) -> Phase {
    let init = Init::of(life, init_containers);
    let main = Main::of(life, containers);
    if init.failed_for_good > 0 {
        return Phase::Failed;
    }
    let is_initializing = init.pending > 0 || (init.pending_sidecars > 0 && !any_main_started(containers));
    if is_initializing || main.waiting > 0 {
        return Phase::Pending;
    }
    if main.running > 0 {
        return Phase::Running;
    }
    if main.stopped == 0 {
        return Phase::Pending;
    }
    let all_succeeded = main.stopped == main.succeeded;
    if is_taken_down(life) && all_succeeded {
        return Phase::Succeeded;
    }
    if is_one_replaced(life) {
        return Phase::Running;
    }
    match (main.stopped == main.stopped_for_good, all_succeeded) {
        (false, _) => Phase::Running,
        (true, true) => Phase::Succeeded,
        (true, false) => Phase::Failed,
    }
}

/// Whether the end of a container is the last one by what its pod and itself say of it.
fn is_for_good(life: &Life, status: &ContainerStatus, end: &Terminated) -> bool {
    let record = life.record.containers.get(&status.name);
    let begins_anew = record.is_some_and(|run| run.anew && run.exit.is_none());
    if begins_anew || life.record.restarting.is_some() {
        return false;
    }
    let container = life.spec.all_containers().find(|one| one.name == status.name);
    container.is_none_or(|one| !runs_again(one, life.spec.restart_policy, end.exit_code))
}

/// Whether a main container was stopped to follow its spec, or was decided to run again after that: it does so whatever the
/// policy, so the pod has not ended.
fn is_one_replaced(life: &Life) -> bool {
    life.spec.containers.iter().any(|one| {
        let record = life.record.containers.get(&one.name);
        record.is_some_and(|run| life.record.is_replaced(run) || run.exit.is_none())
    })
}

#[derive(Default)]
struct Init {
    pending: usize,
    failed_for_good: usize,
    pending_sidecars: usize,
}

impl Init {
    fn of(life: &Life, statuses: &[ContainerStatus]) -> Self {
        let mut counts = Self::default();
        for status in statuses {
            match status.kind {
                ContainerKind::Init | ContainerKind::Main => counts.add_init(life, status),
                ContainerKind::Sidecar => counts.add_sidecar(status),
                ContainerKind::Ephemeral => {}
            }
        }
        counts
    }

    fn add_init(&mut self, life: &Life, status: &ContainerStatus) {
        let ended = match (&status.state, &status.last_state) {
            (ContainerState::Terminated(end), _) | (ContainerState::Waiting { .. }, Some(end)) => end,
            (ContainerState::Running { .. }, _) | (ContainerState::Waiting { .. }, None) => {
                self.pending += 1;
                return;
            }
        };
        if ended.exit_code != 0 && is_for_good(life, status, ended) {
            self.failed_for_good += 1;
        }
    }

    fn add_sidecar(&mut self, status: &ContainerStatus) {
        match (&status.state, &status.last_state) {
            (ContainerState::Running { .. }, _) if status.started => {}
            (ContainerState::Running { .. }, _) | (ContainerState::Waiting { .. }, None) => {
                self.pending_sidecars += 1;
            }
            (ContainerState::Terminated(_), _) | (ContainerState::Waiting { .. }, Some(_)) => {}
        }
    }
}

#[derive(Default)]
struct Main {
    running: usize,
    waiting: usize,
    stopped: usize,
    stopped_for_good: usize,
    succeeded: usize,
}

impl Main {
    fn of(life: &Life, statuses: &[ContainerStatus]) -> Self {
        let mut counts = Self::default();
        for status in statuses {
            match (&status.state, &status.last_state) {
                (ContainerState::Running { .. }, _) => counts.running += 1,
                (ContainerState::Terminated(end), _) => {
                    counts.stopped += 1;
                    counts.stopped_for_good += usize::from(is_for_good(life, status, end));
                    counts.succeeded += usize::from(end.exit_code == 0);
                }
                (ContainerState::Waiting { .. }, Some(end)) => {
                    counts.stopped += 1;
                    counts.stopped_for_good += usize::from(is_for_good(life, status, end));
                }
                (ContainerState::Waiting { .. }, None) => counts.waiting += 1,
            }
        }
        counts
    }
}
