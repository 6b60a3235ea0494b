//! What users see of a pod, as the kubelet shows it.

mod conditions;
mod containers;
mod phase;
mod resources;

use std::net::IpAddr;

use super::actual::Life;
use crate::{
    config::NodeConfig,
    derived::network::known_ips,
    record::{EndedBy, Goal, PodRecord, Transition},
    spec::{ContainerKind, NetworkMode, Source},
    status::{ConditionKind, ContainerState, ContainerStatus, Phase, PodStatus},
    time::Now,
};

/// How far a pod is.
#[derive(Clone, Copy)]
struct Phases {
    /// What is shown.
    shown: Phase,
    /// What its conditions go by: an end that is decided counts while containers still run.
    decided: Phase,
}

/// The status of a pod. `previous` is the one before: a phase that ends the pod is not shown while a container may run.
/// Source: `generateAPIPodStatus` of `pkg/kubelet/kubelet_pods.go`, `mergePodStatus` of
/// `pkg/kubelet/status/status_manager.go`.
#[must_use]
pub fn of(life: &Life, config: &NodeConfig, previous: Option<&PodStatus>, now: Now) -> PodStatus {
    let (mut init_containers, mut containers) =
        if life.is_rejected() { (Vec::new(), Vec::new()) } else { containers::of(life) };
    // The phase of a pod of a manifest does not follow from containers that were not found when it was taken down.
    let before = phases(life, &init_containers, &containers, previous);
    containers::settle(life, &mut init_containers, &mut containers);
    let (phases, reason, message) = match life.spec.source {
        Source::Api => phases(life, &init_containers, &containers, previous),
        Source::File | Source::Http => before,
    };
    let ephemeral_containers = if life.is_rejected() { Vec::new() } else { containers::ephemeral(life) };
    let conditions = conditions::of(life, phases, &init_containers, &containers, now);
    // Of one that was rejected nothing is told but that (`rejectPod` of `pkg/kubelet/kubelet.go`).
    let host_ips = if life.is_rejected() { Vec::new() } else { config.ips.clone() };
    let pod_ips = match (life.spec.network, &life.record.network) {
        (NetworkMode::Node, _) if life.is_rejected() => Vec::new(),
        (NetworkMode::Node, _) => node_ips(config, previous),
        (NetworkMode::Pod, Some(network)) => known_ips(&network.ips, &config.ips),
        (NetworkMode::Pod, None) => Vec::new(),
    };
    PodStatus {
        uid: life.record.uid.clone(),
        name: life.record.name.clone(),
        phase: phases.shown,
        reason,
        message,
        terminating: life.record.goal == Goal::Removed || life.spec.deletion.is_some(),
        conditions,
        host_ips,
        pod_ips,
        start_time: Some(life.record.started_at),
        qos: life.spec.qos,
        recursive_read_only: life.record.recursive_read_only,
        resources: (!life.is_rejected()).then(|| resources::of(life, config, phases.shown)),
        init_containers,
        containers,
        ephemeral_containers,
    }
}

/// Addresses of a pod in the node's network: those that the node had when they were first shown, and one of the other family
/// that it got since. Source: `generateAPIPodStatus` of `pkg/kubelet/kubelet_pods.go`.
fn node_ips(config: &NodeConfig, previous: Option<&PodStatus>) -> Vec<IpAddr> {
    let mut ips = previous.map(|status| status.pod_ips.clone()).unwrap_or_default();
    if ips.is_empty() {
        return config.ips.clone();
    }
    if let ([one], [_, second]) = (ips.as_slice(), config.ips.as_slice())
        && one.is_ipv4() != second.is_ipv4()
    {
        ips.push(*second);
    }
    ips
}

/// Writes into the record what of a status must not change with a restart of the agent.
pub fn remember(record: &mut PodRecord, status: &PodStatus) {
    let is_shown = |kind: ConditionKind| status.conditions.iter().any(|one| one.kind == kind);
    // The next resize that waits, or is under way, does so since then.
    let comes_and_goes = [ConditionKind::PodResizePending, ConditionKind::PodResizeInProgress];
    record.conditions.retain(|kind, _| !comes_and_goes.contains(kind) || is_shown(*kind));
    for condition in &status.conditions {
        let transition = Transition { holds: condition.holds, since: condition.since };
        record.conditions.insert(condition.kind, transition);
    }
}

fn phases(
    life: &Life,
    init_containers: &[ContainerStatus],
    containers: &[ContainerStatus],
    previous: Option<&PodStatus>,
) -> (Phases, String, String) {
    let computed = phase::of(life, init_containers, containers);
    let (phase, reason, message) = match &life.record.terminal {
        Some(end) if end.succeeded => (Phase::Succeeded, end.reason.clone(), end.message.clone()),
        Some(end) => (Phase::Failed, end.reason.clone(), end.message.clone()),
        None => (computed, String::new(), String::new()),
    };
    if phase.is_final() && life.may_run() {
        let shown = previous.map_or(Phase::Running, |status| status.phase);
        let decided = if is_decided(life, init_containers, containers) { phase } else { shown };
        return (Phases { shown, decided }, String::new(), String::new());
    }
    (Phases { shown: phase, decided: phase }, reason, message)
}

/// Whether the end of a pod shows in its conditions while containers of it still run: its time is up, others ended it, or an init
/// container failed for good. One whose main containers have ended waits for its sidecars, and one that makes room for others is
/// ready until it is not. Source: `getPhase`, `generateAPIPodStatus` of `pkg/kubelet/kubelet_pods.go` and `SyncTerminatingPod` of
/// `pkg/kubelet/kubelet.go`, which has the phase of one that makes room set after the conditions.
fn is_decided(life: &Life, init_containers: &[ContainerStatus], containers: &[ContainerStatus]) -> bool {
    let has_ended = |one: &ContainerStatus| matches!(one.state, ContainerState::Terminated(_));
    let is_told = life.record.terminal.as_ref().is_some_and(|end| match end.by {
        EndedBy::Itself => !end.reason.is_empty() || !containers.iter().all(has_ended),
        EndedBy::Admission | EndedBy::Node(_) => false,
    });
    is_told || phase::has_failed_to_initialize(life, init_containers)
}

/// Whether a main container was ever seen to start, in whatever sandbox. Source: `HasAnyRegularContainerStarted` of
/// `pkg/kubelet/container/helpers.go`, by which the kubelet's condition `Initialized` goes, and not its phase.
fn any_main_started(containers: &[ContainerStatus]) -> bool {
    containers.iter().any(|status| {
        status.kind == ContainerKind::Main
            && (containers::has_left_waiting(status) || status.last_state.is_some())
    })
}
