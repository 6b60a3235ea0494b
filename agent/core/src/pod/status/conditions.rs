//! The conditions of a pod. Source: `pkg/kubelet/status/generate.go`.

use super::{Phases, any_main_started};
use crate::{
    id::ContainerName,
    pod::{
        actual::{Life, Stage},
        resize,
        resource::Resource,
        restart_all::has_rule_for_all,
    },
    record::EndedBy,
    spec::{ContainerKind, ReadinessGate, Unallocated},
    status::{Condition, ConditionKind, ContainerStatus, Phase},
    time::Now,
};

/// A condition before it is compared with what it was.
struct Verdict {
    holds: bool,
    reason: &'static str,
    message: String,
    /// The generation that it is about, where that is not the newest.
    generation: Option<i64>,
}

impl Verdict {
    fn yes() -> Self {
        Self::told("", String::new())
    }

    /// It holds, for this reason.
    fn told(reason: &'static str, message: String) -> Self {
        Self { holds: true, reason, message, generation: None }
    }

    fn no(reason: &'static str, message: String) -> Self {
        Self { holds: false, ..Self::told(reason, message) }
    }
}

pub(super) fn of(
    life: &Life,
    phases: Phases,
    init_containers: &[ContainerStatus],
    containers: &[ContainerStatus],
    now: Now,
) -> Vec<Condition> {
    let startable = if is_furnished(life) { Verdict::yes() } else { Verdict::no("", String::new()) };
    let ready = || ready(life, phases.decided, init_containers, containers);
    let verdicts = [
        (ConditionKind::PodReadyToStartContainers, startable),
        (ConditionKind::Initialized, initialized(life, phases.decided, init_containers, containers)),
        (ConditionKind::Ready, gated(ready(), &life.spec.readiness_gates)),
        (ConditionKind::ContainersReady, ready()),
        (ConditionKind::PodScheduled, Verdict::yes()),
    ];
    let known = &life.record.conditions;
    let own = verdicts.into_iter().chain(restarting(life, phases.decided)).filter(|_| !life.is_rejected());
    let others = resizes(life, phases.shown).into_iter().flatten().chain(disrupted(life, phases.shown));
    others
        .chain(own)
        .map(|(kind, Verdict { holds, reason, message, generation })| {
            let before = known.get(&kind).filter(|before| before.holds == holds);
            let since = before.map_or(now.wall, |before| before.since);
            Condition { kind, holds, reason: reason.into(), message, since, generation }
        })
        .collect()
}

/// Told with the end alone, when nothing runs any more (`mergePodStatus` of `pkg/kubelet/status/status_manager.go`).
fn disrupted(life: &Life, phase: Phase) -> Option<(ConditionKind, Verdict)> {
    let EndedBy::Node(message) = &life.record.terminal.as_ref()?.by else { return None };
    let verdict = Verdict::told("TerminationByKubelet", message.clone());
    (phase == Phase::Failed).then_some((ConditionKind::DisruptionTarget, verdict))
}

/// Source: `determinePodResizeStatus` of `pkg/kubelet/kubelet_pods.go`: one that has ended asks for nothing.
fn resizes(life: &Life, phase: Phase) -> [Option<(ConditionKind, Verdict)>; 2] {
    if matches!(phase, Phase::Succeeded | Phase::Failed) {
        return [None, None];
    }
    let pending = life.spec.resize.as_ref().and_then(|resize| {
        let Unallocated { is_infeasible, message } = resize.unallocated.as_ref()?;
        let verdict = Verdict::told(resize::pending_reason(*is_infeasible), message.clone());
        let verdict = Verdict { generation: resize.generation, ..verdict };
        Some((ConditionKind::PodResizePending, verdict))
    });
    let in_progress = life.record.resizing.as_ref().map(|resizing| {
        let reason = if resizing.error.is_some() { "Error" } else { "" };
        let verdict = Verdict::told(reason, resizing.error.clone().unwrap_or_default());
        let verdict = Verdict { generation: resizing.generation, ..verdict };
        (ConditionKind::PodResizeInProgress, verdict)
    });
    [pending, in_progress]
}

/// Of a pod in which that may come. Source: `GenerateAllContainersRestartingCondition`.
fn restarting(life: &Life, phase: Phase) -> Option<(ConditionKind, Verdict)> {
    let verdict = match (phase, life.record.restarting) {
        (Phase::Succeeded, _) => Verdict::no("PodCompleted", String::new()),
        (Phase::Failed, _) => Verdict::no("PodFailed", String::new()),
        (Phase::Pending | Phase::Running, None) => Verdict::no("", String::new()),
        (Phase::Pending | Phase::Running, Some(_)) => {
            let message = "container exited with restart policy rule".to_owned();
            Verdict::told("RestartAllContainersStarted", message)
        }
    };
    has_rule_for_all(&life.spec).then_some((ConditionKind::AllContainersRestarting, verdict))
}

/// A pod that is being taken down does not become startable again because the agent began anew, and one whose sandbox is
/// being looked at does not stop to be.
fn is_furnished(life: &Life) -> bool {
    let kind = ConditionKind::PodReadyToStartContainers;
    let was = life.record.conditions.get(&kind).is_some_and(|before| before.holds);
    let has_sandbox = match &life.actual.sandbox {
        Resource::Ready(_) => was || life.stage() == Stage::Run,
        Resource::Unknown | Resource::Ensuring(_) => was && life.stage() == Stage::Run,
        Resource::Absent | Resource::Failed(_) => false,
    };
    has_sandbox && (!life.is_wired() || life.actual.network.ready().is_some())
}

/// A pod that was initialized stays so when its init containers run again, in another sandbox.
fn initialized(
    life: &Life,
    phase: Phase,
    init: &[ContainerStatus],
    containers: &[ContainerStatus],
) -> Verdict {
    if phase == Phase::Succeeded {
        return Verdict::told("PodCompleted", String::new());
    }
    let was = life.record.conditions.get(&ConditionKind::Initialized).is_some_and(|before| before.holds);
    if was || any_main_started(containers) {
        return Verdict::yes();
    }
    let incomplete = |status: &&ContainerStatus| match status.kind {
        ContainerKind::Sidecar => !status.started,
        ContainerKind::Init | ContainerKind::Main | ContainerKind::Ephemeral => !status.ready,
    };
    let names = names(init.iter().filter(incomplete));
    if names.is_empty() {
        return Verdict::yes();
    }
    Verdict::no("ContainersNotInitialized", format!("containers with incomplete status: [{names}]"))
}

/// Containers are named in the order of the spec, which is not that of their statuses.
fn ready(life: &Life, phase: Phase, init: &[ContainerStatus], containers: &[ContainerStatus]) -> Verdict {
    match phase {
        Phase::Succeeded => return Verdict::no("PodCompleted", String::new()),
        Phase::Failed => return Verdict::no("PodFailed", String::new()),
        Phase::Pending | Phase::Running => {}
    }
    let sidecars = init.iter().filter(|status| status.kind == ContainerKind::Sidecar);
    let of = |name: &ContainerName| containers.iter().find(|status| status.name == *name);
    let main = life.spec.containers.iter().filter_map(|one| of(&one.name));
    let names = names(sidecars.chain(main).filter(|status| !status.ready));
    if names.is_empty() {
        return Verdict::yes();
    }
    Verdict::no("ContainersNotReady", format!("containers with unready status: [{names}]"))
}

/// A pod whose containers are ready waits for what others say of it. Source: `GeneratePodReadyCondition`.
fn gated(containers: Verdict, gates: &[ReadinessGate]) -> Verdict {
    let closed = gates.iter().filter_map(|gate| match gate.status.as_deref() {
        Some("True") => None,
        Some(status) => Some(format!(
            "the status of pod readiness gate {:?} is not \"True\", but {status}",
            gate.condition
        )),
        None => Some(format!(
            "corresponding condition of pod readiness gate {:?} does not exist.",
            gate.condition
        )),
    });
    let closed: Vec<String> = if containers.holds { closed.collect() } else { Vec::new() };
    if closed.is_empty() { containers } else { Verdict::no("ReadinessGatesNotReady", closed.join(", ")) }
}

fn names<'a>(statuses: impl Iterator<Item = &'a ContainerStatus>) -> String {
    statuses.map(|status| status.name.as_str()).collect::<Vec<_>>().join(" ")
}
