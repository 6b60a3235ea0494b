//! What the status of a pod says of its runs and resources, for an agent that knows nothing of them.

use std::collections::BTreeMap;

use berth_core::{
    id::{ContainerId, ContainerName},
    record::RunImage,
    spec::ToldRun,
    status::{RunUser, Terminated},
};
use k8s_openapi::{
    api::core::v1::{
        ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodStatus,
        ResourceRequirements,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use crate::quantity::Quantity as Amount;

/// What of a pod can be resized.
const RESIZED: [&str; 2] = ["cpu", "memory"];
/// The code of an end that has none which there can be.
const NO_CODE: u32 = 255;

/// Which containers have run, how often, and how each ended.
pub(super) fn have_run(status: &PodStatus) -> impl Iterator<Item = (ContainerName, ToldRun)> + use<'_> {
    let lists =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let all = lists.into_iter().flatten().flatten();
    all.filter_map(|one| Some((ContainerName::new(&one.name), run(one)?)))
}

/// What the status says of resources that its pod waits for.
pub(super) fn pending_resize(status: &PodStatus) -> Option<&PodCondition> {
    status.conditions.iter().flatten().find(|one| one.type_ == "PodResizePending" && one.status == "True")
}

/// Gives a pod that waits for other resources those that its status says it has. Whether there were any. Of limits what is in force is told
/// alone. What is allocated outlives a reboot under the kubelet (`allocated_pods_state` in its root directory).
pub(super) fn allocate(pod: &mut Pod, status: &PodStatus) -> bool {
    let Some(spec) = pod.spec.as_mut() else { return false };
    // Then what is in force is not what is allocated, and may be nothing.
    let is_changing = status.conditions.iter().flatten().any(|one| one.type_ == "PodResizeInProgress");
    let before = spec.clone();
    let statuses: Vec<&ContainerStatus> = [&status.init_container_statuses, &status.container_statuses]
        .into_iter()
        .flatten()
        .flatten()
        .collect();
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let Some(told) = statuses.iter().find(|told| told.name == container.name) else { continue };
        let in_force = told.resources.as_ref();
        take(container.resources.as_mut(), told.allocated_resources.as_ref(), in_force, is_changing);
    }
    // What is told of a pod as a whole has its overhead.
    let own = |told: &Amounts| without(told, spec.overhead.as_ref());
    let allocated = status.allocated_resources.as_ref().map(own);
    let in_force = status.resources.as_ref().map(|all| ResourceRequirements {
        limits: all.limits.as_ref().map(own),
        ..ResourceRequirements::default()
    });
    take(spec.resources.as_mut(), allocated.as_ref(), in_force.as_ref(), is_changing);
    *spec != before
}

/// Amounts of a pod without its overhead.
fn without(told: &Amounts, overhead: Option<&Amounts>) -> Amounts {
    let own = |(name, told): (&String, &Quantity)| {
        let over = overhead.and_then(|overhead| milli(overhead.get(name)?));
        let left = over.zip(milli(told)).map(|(over, told)| told.saturating_sub(over));
        (name.clone(), left.map_or_else(|| told.clone(), |left| Quantity(format!("{left}m"))))
    };
    told.iter().map(own).collect()
}

/// Thousandths of what is written.
fn milli(text: &Quantity) -> Option<i64> {
    text.0.parse::<Amount>().ok().map(Amount::milli)
}

/// Amounts by the resources that they are of.
type Amounts = BTreeMap<String, Quantity>;

/// Takes what is told of what can be resized. What is not told then was not there: nothing of a container that has none of its own. Where
/// nothing is told of its resources at all, it has not begun.
fn take(
    asked: Option<&mut ResourceRequirements>,
    allocated: Option<&Amounts>,
    in_force: Option<&ResourceRequirements>,
    is_changing: bool,
) {
    static NOTHING: Amounts = Amounts::new();
    let Some(asked) = asked else { return };
    let least = in_force.map(|_| &NOTHING);
    let limits = in_force.and_then(|in_force| in_force.limits.as_ref());
    let limits = if is_changing { limits } else { limits.or(least) };
    for (asked, told) in [(&mut asked.requests, allocated.or(least)), (&mut asked.limits, limits)] {
        let (Some(asked), Some(told)) = (asked, told) else { continue };
        for name in RESIZED {
            match (asked.get_mut(name), told.get(name)) {
                (Some(asked), Some(told)) => asked.clone_from(told),
                (Some(_), None) => drop(asked.remove(name)),
                (None, _) => {}
            }
        }
    }
    // What is in force may not be what is allocated yet.
    let (Some(requests), Some(limits)) = (&asked.requests, &mut asked.limits) else { return };
    for name in RESIZED {
        if let (Some(request), Some(limit)) = (requests.get(name), limits.get_mut(name))
            && milli(request) > milli(limit)
        {
            limit.clone_from(request);
        }
    }
}

fn run(status: &ContainerStatus) -> Option<ToldRun> {
    let terminated = |state: Option<&ContainerState>| {
        state.and_then(|state| state.terminated.as_ref()).map(|end| of_end(status, end))
    };
    let (state, last) = (status.state.as_ref(), terminated(status.last_state.as_ref()));
    let is_running = state.is_some_and(|state| state.running.is_some());
    let (end, before) = match terminated(state) {
        Some(end) => (Some(end), last),
        None if is_running => (None, last),
        // It waits for its next run.
        None => (Some(last?), None),
    };
    let restarts = u32::try_from(status.restart_count).unwrap_or_default();
    Some(ToldRun { restarts, end, before, image: Some(image(status)) })
}

fn image(status: &ContainerStatus) -> RunImage {
    let user = status.user.as_ref().and_then(|user| user.linux.as_ref()).and_then(|linux| {
        let groups = linux.supplemental_groups.iter().flatten();
        Some(RunUser {
            uid: u32::try_from(linux.uid).ok()?,
            gid: u32::try_from(linux.gid).ok()?,
            supplemental_groups: groups.map(|group| u32::try_from(*group)).collect::<Result<_, _>>().ok()?,
        })
    });
    RunImage { name: status.image.clone(), id: status.image_id.clone(), stop_signal: None, user }
}

fn of_end(status: &ContainerStatus, end: &ContainerStateTerminated) -> Terminated {
    let id = end.container_id.as_ref().or(status.container_id.as_ref());
    let id = id.and_then(|id| id.strip_prefix("containerd://"));
    Terminated {
        exit_code: u32::try_from(end.exit_code).unwrap_or(NO_CODE),
        reason: end.reason.clone().unwrap_or_default(),
        message: end.message.clone().unwrap_or_default(),
        started_at: end.started_at.as_ref().map(|at| at.0),
        finished_at: end.finished_at.as_ref().map(|at| at.0),
        id: id.map(ContainerId::from_known),
    }
}
