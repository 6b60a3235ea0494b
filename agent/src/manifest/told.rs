//! What the status of a pod says of its runs, for an agent that knows nothing of them.

use berth_core::{
    id::{ContainerId, ContainerName},
    record::RunImage,
    spec::ToldRun,
    status::{RunUser, Terminated},
};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, PodStatus};

/// The code of an end that has none which there can be.
const NO_CODE: u32 = 255;

/// Which containers have run, how often, and how each ended.
pub(super) fn have_run(status: &PodStatus) -> impl Iterator<Item = (ContainerName, ToldRun)> + use<'_> {
    let lists =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let all = lists.into_iter().flatten().flatten();
    all.filter_map(|one| Some((ContainerName::new(&one.name), run(one)?)))
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
