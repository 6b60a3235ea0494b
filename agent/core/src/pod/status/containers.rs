//! The statuses of containers. Source: `convertToAPIContainerStatuses` and `convertStatusToAPIStatus` of
//! `pkg/kubelet/kubelet_pods.go`, `TerminatePod` of `pkg/kubelet/status/status_manager.go`.

use std::{sync::Arc, time::Duration};

use crate::{
    derived::termination,
    id::{Attempt, ContainerId, ImageRef},
    pod::{
        actual::{Life, Preparing, Run, Stage},
        image_need::of_volume,
        port::{hook::Hooking, image::ImageUse, pull_backoff::PullBackoff, volume::not_mounted},
        probe::{has_passed_startup, has_started, is_ready, is_shown_running},
        resize::actuated,
        restart::{could_not_start, runs_again, waited},
        restart_all::has_rule_for_all,
        target::target,
        text::{crash_loop, pull_waits},
        turn::is_in_turn,
    },
    record::{ContainerRecord, ExitRecord},
    spec::{Container, ContainerKind, CpuMemory},
    status::{ContainerState, ContainerStatus, Terminated},
};

/// Init containers in spec order, main containers by name.
pub(super) fn of(life: &Life) -> (Vec<ContainerStatus>, Vec<ContainerStatus>) {
    let init = all(life, &life.spec.init_containers);
    (init, by_name(all(life, &life.spec.containers)))
}

/// Ephemeral containers, by name.
pub(super) fn ephemeral(life: &Life) -> Vec<ContainerStatus> {
    by_name(all(life, &life.spec.ephemeral_containers))
}

fn all(life: &Life, containers: &[Arc<Container>]) -> Vec<ContainerStatus> {
    containers.iter().map(|container| status(life, container)).collect()
}

fn by_name(mut statuses: Vec<ContainerStatus>) -> Vec<ContainerStatus> {
    statuses.sort_by(|left, right| left.name.cmp(&right.name));
    statuses
}

/// Whether a container was seen to run or to end.
pub(super) fn has_left_waiting(status: &ContainerStatus) -> bool {
    match status.state {
        ContainerState::Waiting { .. } => false,
        ContainerState::Running { .. } | ContainerState::Terminated(_) => true,
    }
}

fn status(life: &Life, container: &Container) -> ContainerStatus {
    let record = life.record.containers.get(&container.name);
    let run = life.run(&container.name);
    let (state, last) = states(life, container, record, run);
    let terminated = |exit: &ExitRecord| terminated(life, exit);
    let last_state = last.map(terminated);
    let is_running = matches!(state, ContainerState::Running { .. });
    let started = match container.kind {
        ContainerKind::Main | ContainerKind::Sidecar => is_running && has_passed_startup(life, container),
        ContainerKind::Init => is_running,
        // Nobody waits for it to be (`UpdatePodStatus` of `pkg/kubelet/prober/prober_manager.go`).
        ContainerKind::Ephemeral => false,
    };
    let ready = match (container.kind, &state) {
        (ContainerKind::Main | ContainerKind::Sidecar, _) => started && is_ready(life, container),
        (ContainerKind::Init, ContainerState::Terminated(end)) => end.exit_code == 0,
        (ContainerKind::Init, ContainerState::Running { .. } | ContainerState::Waiting { .. })
        | (ContainerKind::Ephemeral, _) => false,
    };
    let (id, restart_count) = shown_run(record, &state);
    let image = record.filter(|_| id.is_some()).and_then(|record| record.image.as_ref());
    ContainerStatus {
        name: container.name.clone(),
        kind: container.kind,
        image: image.map_or_else(|| container.image.to_string(), |image| image.name.clone()),
        image_id: image.map(|image| image.id.clone()).unwrap_or_default(),
        id,
        state,
        last_state,
        ready,
        started,
        restart_count,
        user: image.and_then(|image| image.user.clone()),
        actuated: in_cgroup(life, container).filter(|_| is_running),
    }
}

/// What the cgroup of a container has, where that is not what its spec says: while it is changed, and where its pod bounds it, by which its weight
/// goes as well when it requests no CPU (`calculateLinuxResources` of `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`).
fn in_cgroup(life: &Life, container: &Container) -> Option<CpuMemory> {
    let is_bounded = life.spec.resources.is_some();
    let has = actuated(life, container).map(|actuated| actuated.has);
    let has = has.or_else(|| is_bounded.then(|| CpuMemory::of(&life.spec, container)))?;
    let cpu_request = if has.cpu_request == 0 && is_bounded { has.cpu_limit } else { has.cpu_request };
    Some(CpuMemory { cpu_request, ..has })
}

/// The run that the id and the number of restarts are of. One that has not run yet shows to nobody: while it is made, the run before
/// is still the newest. Nor does its image, which the kubelet knows from the container.
fn shown_run(record: Option<&ContainerRecord>, state: &ContainerState) -> (Option<ContainerId>, Attempt) {
    let Some(record) = record else { return (None, 0) };
    let exits = [record.exit.as_ref(), record.last_exit.as_ref()];
    let newest_end = exits.into_iter().flatten().next();
    match (state, newest_end) {
        (ContainerState::Waiting { .. }, None) => (None, record.attempt),
        (ContainerState::Waiting { .. } | ContainerState::Terminated(_), Some(end)) => {
            (Some(end.id.clone()), end.attempt)
        }
        (ContainerState::Running { .. }, _) | (ContainerState::Terminated(_), None) => {
            (record.started_in.map(|_| record.id.clone()), record.attempt)
        }
    }
}

/// The current state, and the run that is shown as the last one.
fn states<'a>(
    life: &Life,
    container: &Container,
    record: Option<&'a ContainerRecord>,
    run: &Run,
) -> (ContainerState, Option<&'a ExitRecord>) {
    let Some(record) = record else {
        return (without_target(life, container).unwrap_or_else(|| default_waiting(life)), None);
    };
    let last = record.last_exit.as_ref();
    match run {
        Run::Running(running) if is_shown_running(life, container) => {
            (ContainerState::Running { started_at: running.started_at }, last)
        }
        Run::Running(running) => match waits_for_hook(&running.hook) {
            Some(message) => (waiting_for(life, message), last),
            None => being_made(life, container, record),
        },
        Run::Starting(_) => being_made(life, container, record),
        Run::Preparing(preparing) => match held_up(life, container, preparing) {
            // In a pod that ends nothing is made any more: the run before was the last (`ShouldContainerBeRestarted` of
            // `pkg/kubelet/container/helpers.go`).
            Some(state) if last.is_none() || life.stage() == Stage::Run => (state, last),
            Some(_) | None => being_made(life, container, record),
        },
        // Its end is shown whole, with its termination message.
        Run::Ended(ended) => match ended.shown_since {
            Some(started_at) => (ContainerState::Running { started_at }, last),
            None => being_made(life, container, record),
        },
        Run::BackingOff if life.stage() == Stage::Run => {
            let delay = Duration::from_millis(record.backoff.delay_ms);
            (backing_off(life, container, delay), record.exit.as_ref().or(last))
        }
        Run::Idle | Run::BackingOff => match &record.exit {
            Some(exit) if is_followed_against_policy(life, container, record, exit) => {
                (default_waiting(life), Some(exit))
            }
            Some(exit) => match start_failed(life, container, exit) {
                Some(failed) => (failed, Some(exit)),
                None => (ContainerState::Terminated(terminated(life, exit)), last),
            },
            // What was being made is gone again.
            None if life.stage() != Stage::Run || last.is_some() => being_made(life, container, record),
            None => (without_target(life, container).unwrap_or_else(|| default_waiting(life)), None),
        },
    }
}

/// A run that is being made. Until it runs, what was shown of the run before stays: how it ended, or what the next one waited for.
/// Source: `convertStatusToAPIStatus`, where the reason of a container's last failure stays until a start succeeds.
fn being_made<'a>(
    life: &Life,
    container: &Container,
    record: &'a ContainerRecord,
) -> (ContainerState, Option<&'a ExitRecord>) {
    let Some(before) = record.last_exit.as_ref() else { return (default_waiting(life), None) };
    if record.anew || !has_had_its_turn(life, container) {
        return (default_waiting(life), Some(before));
    }
    // Another run is made of it, against its policy.
    if container.kind == ContainerKind::Main && was_the_last(life, container, before) {
        return (default_waiting(life), Some(before));
    }
    let has_waited = waited(record);
    if life.stage() == Stage::Run && !has_waited.is_zero() {
        return (backing_off(life, container, has_waited), Some(before));
    }
    if let Some(failed) = start_failed(life, container, before) {
        return (failed, Some(before));
    }
    (ContainerState::Terminated(terminated(life, before)), None)
}

/// Whether it is a container's turn, or was in this sandbox: one that has ended has ended, whatever its next run waits for.
fn has_had_its_turn(life: &Life, container: &Container) -> bool {
    let record = life.record.containers.get(&container.name);
    record.is_some_and(|record| record.last_in == Some(life.record.sandbox)) || is_in_turn(life, container)
}

/// Whether a run that was stopped alone is followed by another, which the policy alone would not have. It is never shown to have ended:
/// the API server takes no other state then (`ValidateContainerStateTransition` of `pkg/apis/core/validation/validation.go`), and a kubelet
/// ends and begins them in one go.
fn is_followed_against_policy(
    life: &Life,
    container: &Container,
    record: &ContainerRecord,
    exit: &ExitRecord,
) -> bool {
    life.record.is_replaced(record) && was_the_last(life, container, exit)
}

/// Whether no run would follow by the policy, where nothing else may begin it anew.
fn was_the_last(life: &Life, container: &Container, exit: &ExitRecord) -> bool {
    life.stage() == Stage::Run
        && !has_rule_for_all(&life.spec)
        && !runs_again(container, life.spec.restart_policy, exit.exit.code)
}

/// What the kubelet does not tell: a postStart hook may hang.
fn waits_for_hook(hook: &Hooking) -> Option<&'static str> {
    match hook {
        Hooking::Asked { shown_at: None, .. } => Some("its postStart hook has not ended"),
        Hooking::Again { .. } => Some("its postStart hook could not be run yet"),
        Hooking::Asked { .. } | Hooking::No => None,
    }
}

fn backing_off(life: &Life, container: &Container, delay: Duration) -> ContainerState {
    ContainerState::Waiting {
        reason: "CrashLoopBackOff".into(),
        message: crash_loop(&container.name, &life.record, delay),
    }
}

/// Why a run came to nothing whose container is started again: its start failed, or its postStart hook.
fn start_failed(life: &Life, container: &Container, exit: &ExitRecord) -> Option<ContainerState> {
    if !starts_again(life, container, exit) {
        return None;
    }
    let (reason, message) = match &exit.post_start {
        Some(why) => ("PostStartHookError", why),
        None if could_not_start(exit) => ("RunContainerError", &exit.message),
        None => return None,
    };
    Some(ContainerState::Waiting { reason: reason.into(), message: message.clone() })
}

/// Whether a container that ended will be started again in this pod.
fn starts_again(life: &Life, container: &Container, exit: &ExitRecord) -> bool {
    life.stage() == Stage::Run && runs_again(container, life.spec.restart_policy, exit.exit.code)
}

fn default_waiting(life: &Life) -> ContainerState {
    waiting_for(life, "")
}

fn waiting_for(life: &Life, message: &str) -> ContainerState {
    let reason = if life.spec.init_containers.is_empty() { "ContainerCreating" } else { "PodInitializing" };
    ContainerState::Waiting { reason: reason.into(), message: message.into() }
}

/// What holds a run up is shown when it is its turn: the image of a main container may be missing long before.
fn held_up(life: &Life, container: &Container, preparing: &Preparing) -> Option<ContainerState> {
    if !has_had_its_turn(life, container) {
        return None;
    }
    let waiting =
        |reason: &str, message: String| Some(ContainerState::Waiting { reason: reason.into(), message });
    if let Some(refusal) = &preparing.refused {
        let refused = || waiting(refusal.reason, refusal.retry.failure.message.clone());
        return without_target(life, container).or_else(refused);
    }
    // Of several images that it mounts the last one is shown (`toKubeContainerImageVolumes` of
    // `pkg/kubelet/kuberuntime/kuberuntime_manager.go`), and before its own.
    let mounted = || container.mounts.iter().rev().filter_map(|mount| life.spec.volume(&mount.volume));
    let needed = mounted().filter_map(|volume| of_volume(life, volume));
    let missing = needed.map(|need| (need.image, need.state)).chain([(&container.image, &preparing.image)]);
    if let Some((reason, message)) =
        missing.into_iter().find_map(|(image, state)| not_to_be_had(life, image, state))
    {
        return waiting(&reason, message);
    }
    let mut images = mounted().filter(|volume| volume.image().is_some());
    let unmounted = images.find_map(|volume| life.actual.volumes.get(&volume.name)?.retry());
    let unmounted = unmounted.map(|retry| match &retry.failure {
        failure if failure.kind.is_told_elsewhere() => failure.message.clone(),
        failure => not_mounted(&failure.message),
    });
    let layer = || preparing.rootfs.retry().map(|retry| retry.failure.message.clone());
    if let Some(message) = unmounted.or_else(layer) {
        return waiting("CreateContainerError", message);
    }
    without_target(life, container)
}

/// Reason and message while an image is not to be had.
fn not_to_be_had(life: &Life, image: &ImageRef, state: &ImageUse) -> Option<(String, String)> {
    match state {
        ImageUse::Refused { reason, retry } => {
            Some((reason.clone().into_owned(), retry.failure.message.clone()))
        }
        ImageUse::Inspecting { .. }
        | ImageUse::Missing
        | ImageUse::Failed { .. }
        | ImageUse::Pulling { .. } => match life.actual.pull_backoffs.get(image) {
            Some(PullBackoff { error: Some(error), announced: true, .. }) => {
                Some(("ImagePullBackOff".into(), pull_waits(image, error)))
            }
            Some(PullBackoff { error: Some(error), announced: false, .. }) => {
                Some(("ErrImagePull".into(), error.clone()))
            }
            Some(PullBackoff { error: None, .. }) | None => None,
        },
        ImageUse::Wanted | ImageUse::Postponed | ImageUse::Ready(_) => None,
    }
}

/// It waits for the container whose processes it is to see.
fn without_target(life: &Life, container: &Container) -> Option<ContainerState> {
    let error = target(life, container).err().filter(|_| life.stage() == Stage::Run)?;
    Some(ContainerState::Waiting { reason: error.reason().into(), message: error.to_string() })
}

fn terminated(life: &Life, record: &ExitRecord) -> Terminated {
    let derived = match (record.exit.oom_killed, record.exit.code) {
        (true, _) => "OOMKilled",
        (false, 0) => "Completed",
        (false, _) => "Error",
    };
    let containers = life.spec.all_containers().count();
    Terminated {
        exit_code: record.exit.code,
        reason: record.reason.clone().unwrap_or_else(|| derived.into()),
        message: termination::share(&record.message, containers).to_owned(),
        started_at: record.exit.started_at,
        finished_at: Some(record.exit.finished_at),
        id: Some(record.id.clone()),
    }
}

/// A pod that has stopped has no waiting containers left: those that never ran are shown as lost, so that it does not
/// look as if it had succeeded.
pub(super) fn settle(life: &Life, init: &mut [ContainerStatus], main: &mut [ContainerStatus]) {
    if !life.has_stopped() {
        return;
    }
    let is_initialized = was_initialized(life, init, main);
    // The first one counts as begun, whatever is known of it.
    let started = init.iter().rposition(was_seen).map_or(1, |last| last + 1);
    let settled = if is_initialized { init.len() } else { started };
    for status in init.iter_mut().take(settled).chain(main.iter_mut().filter(|_| is_initialized)) {
        if !has_left_waiting(status) {
            let message = "The container could not be located when the pod was terminated";
            status.state = ContainerState::Terminated(Terminated::unlocated(message));
        }
    }
}

fn was_seen(status: &ContainerStatus) -> bool {
    has_left_waiting(status) || status.last_state.is_some()
}

/// Whether it was the main containers' turn when a pod that has stopped began to end. Source: `hasPodInitialized` of
/// `pkg/kubelet/status/status_manager.go`, which asks the status that the API had of the pod then.
fn was_initialized(life: &Life, init: &[ContainerStatus], main: &[ContainerStatus]) -> bool {
    if main.iter().any(was_seen) {
        return true;
    }
    let (Some(container), Some(status)) = (life.spec.init_containers.last(), init.last()) else {
        return true;
    };
    match container.kind {
        ContainerKind::Sidecar => ran_until_stopped(life, container) && has_started(life, container),
        ContainerKind::Init | ContainerKind::Main | ContainerKind::Ephemeral => {
            let had_ended = life.record.termination.is_none() || !ran_until_stopped(life, container);
            (status.ready && had_ended)
                || status.last_state.as_ref().is_some_and(|before| before.exit_code == 0)
        }
    }
}

/// Whether a container that has ended ran when its pod began to end.
fn ran_until_stopped(life: &Life, container: &Container) -> bool {
    let exit = life.record.containers.get(&container.name).and_then(|record| record.exit.as_ref());
    exit.is_some_and(|exit| life.record.termination.is_none_or(|end| exit.at >= end.began))
}
