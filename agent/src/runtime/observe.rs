//! The whole state of the runtime, read once: at start and whenever containerd was lost.
//!
//! Containerd's records say what was made; only a pod's shim says what runs. A shim that does not answer leaves its
//! containers `Unknown`; one whose socket nobody listens on is gone, and its tasks are `Absent`.

use std::collections::{BTreeMap, BTreeSet};

use berth_core::{
    event::{Observation, ObservedContainer, ObservedSandbox, ObservedTask},
    id::{ContainerId, ContainerName, PodUid, SandboxId},
};
use containerd_client::{
    services::v1::{Container, ListContainersRequest, ListTasksRequest, sandbox::StoreListRequest},
    types::{Sandbox, v1::Process},
};
use futures::{StreamExt, stream};

use super::{
    CallError, Cause, Containerd,
    labels::{ATTEMPT, CONTAINER_NAME, Labels, POD_UID, SANDBOX},
    shims::{ShimLook, Shims, observed_process},
};
use crate::{clock, effects::BERTH, holder};

/// Shims asked at once. Each answers from memory in well under a millisecond; more would only queue for the CPU.
const SHIMS_AT_ONCE: usize = 16;

/// Containers in containerd before observation gives up: far beyond what a node runs.
const CONTAINERS_MAX: usize = 100_000;

/// Why the state could not be read.
#[derive(Debug, thiserror::Error)]
#[error("read what runs on this node")]
pub struct ObserveError(#[from] CallError);

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// What is ours.
    pub observation: Observation,
    /// Pods of which another agent, such as a kubelet with CRI, has something in containerd: not ours to clean up.
    pub foreign: BTreeSet<PodUid>,
    /// Sandboxes that are shims of ours: to be followed.
    pub shims: Vec<SandboxId>,
    /// Containers of ours under shims of others, with their sandboxes.
    pub grouped: Vec<(ContainerId, SandboxId)>,
}

/// Reads everything.
///
/// # Errors
/// When containerd does not answer.
pub async fn observe(containerd: &Containerd, shims: &Shims) -> Result<Found, ObserveError> {
    let sandboxes = list_sandboxes(containerd).await?;
    let containers = list_containers(containerd).await?;
    let looks = look_at_shims(shims, &sandboxes).await;
    let loose =
        containers.iter().any(|container| is_ours(container) && !looks.contains_key(&container.sandbox));
    let tasks = if loose { list_tasks(containerd).await? } else { BTreeMap::new() };

    let labels =
        sandboxes.iter().map(|sandbox| &sandbox.labels).chain(containers.iter().map(|it| &it.labels));
    let foreign =
        labels.filter(|labels| !labels.contains_key(ATTEMPT)).filter_map(|labels| Labels(labels).pod());
    let grouped = containers.iter().filter_map(|container| {
        let sandbox = container.labels.get(SANDBOX)?;
        Some((ContainerId::from_known(&container.id), SandboxId::from_known(sandbox)))
    });
    Ok(Found {
        foreign: foreign.collect(),
        shims: looks.keys().map(SandboxId::from_known).collect(),
        grouped: grouped.collect(),
        observation: Observation {
            sandboxes: sandboxes.iter().filter_map(|it| observed_sandbox(it, &looks, shims)).collect(),
            containers: containers
                .iter()
                .filter_map(|container| observed_container(container, &looks, &tasks))
                .collect(),
        },
    })
}

async fn list_sandboxes(containerd: &Containerd) -> Result<Vec<Sandbox>, CallError> {
    let request = StoreListRequest { filters: vec![format!("labels.{POD_UID:?}")] };
    Ok(containerd.call("list sandboxes", "", containerd.sandbox_store().list(request)).await?.list)
}

/// Streamed, since one message with every spec of a full node would not fit into a gRPC message.
async fn list_containers(containerd: &Containerd) -> Result<Vec<Container>, CallError> {
    let request = ListContainersRequest { filters: vec![format!("labels.{POD_UID:?}")] };
    let mut client = containerd.containers();
    let mut stream = containerd.call("list containers", "", client.list_stream(request)).await?;
    let mut containers = Vec::new();
    let failed = |status| CallError::new("list containers", "", Cause::from(status));
    while let Some(message) = stream.message().await.map_err(failed)? {
        if let Some(mut container) = message.container {
            container.spec = None;
            containers.push(container);
        }
        if containers.len() >= CONTAINERS_MAX {
            break;
        }
    }
    Ok(containers)
}

/// What each shim of ours says, by sandbox.
async fn look_at_shims(shims: &Shims, sandboxes: &[Sandbox]) -> BTreeMap<String, ShimLook> {
    let is_ours = |sandbox: &&Sandbox| sandbox.labels.contains_key(ATTEMPT) && is_berth(sandbox);
    let ids: Vec<String> = sandboxes.iter().filter(is_ours).map(|it| it.sandbox_id.clone()).collect();
    let looks = stream::iter(ids).map(|id| async move {
        let look = shims.look(&SandboxId::from_known(&id)).await;
        (id, look)
    });
    looks.buffer_unordered(SHIMS_AT_ONCE).collect().await
}

async fn list_tasks(containerd: &Containerd) -> Result<BTreeMap<String, Process>, CallError> {
    let request = ListTasksRequest { filter: String::new() };
    let tasks = containerd.call("list tasks", "", containerd.tasks().list(request)).await?.tasks;
    Ok(tasks.into_iter().map(|task| (task.id.clone(), task)).collect())
}

fn is_ours(container: &Container) -> bool {
    container.labels.contains_key(ATTEMPT)
}

fn is_berth(sandbox: &Sandbox) -> bool {
    sandbox.runtime.as_ref().is_some_and(|runtime| runtime.name == BERTH)
}

fn observed_sandbox(
    sandbox: &Sandbox,
    looks: &BTreeMap<String, ShimLook>,
    shims: &Shims,
) -> Option<ObservedSandbox> {
    let labels = Labels(&sandbox.labels);
    let id = SandboxId::from_known(&sandbox.sandbox_id);
    let (ready, pid) = match looks.get(&sandbox.sandbox_id) {
        Some(ShimLook::Answered(state)) if state.ready => (true, state.pid),
        Some(ShimLook::Answered(_) | ShimLook::Silent | ShimLook::Gone) => (false, 0),
        None => (holder::is_ready(shims.run_dir(), &id), 0),
    };
    Some(ObservedSandbox { id, pod: labels.pod()?, attempt: labels.attempt()?, ready, pid })
}

fn observed_container(
    container: &Container,
    looks: &BTreeMap<String, ShimLook>,
    tasks: &BTreeMap<String, Process>,
) -> Option<ObservedContainer> {
    let labels = Labels(&container.labels);
    let task = match looks.get(&container.sandbox) {
        Some(ShimLook::Answered(state)) => state.task(&container.id),
        Some(ShimLook::Silent) => ObservedTask::Unknown,
        Some(ShimLook::Gone) => ObservedTask::Absent,
        None => tasks.get(&container.id).map_or(ObservedTask::Absent, |task| {
            observed_process(task, container.created_at.as_ref().and_then(clock::of_proto))
        }),
    };
    Some(ObservedContainer {
        id: ContainerId::from_known(&container.id),
        pod: labels.pod()?,
        name: ContainerName::new(container.labels.get(CONTAINER_NAME)?),
        attempt: labels.attempt()?,
        hash: labels.hash(),
        task,
    })
}
