//! The whole state of the runtime, read once: at start and whenever containerd was lost.
//!
//! Containerd's records say what was made; only a pod's shim says what runs. A shim that does not answer leaves its
//! containers `Unknown`; one whose socket nobody listens on is gone, and its tasks are `Absent` but for those whose end it
//! wrote down.

use std::collections::{BTreeMap, BTreeSet};

use berth_core::{
    id::{ContainerId, ContainerName, PodUid, SandboxId},
    observation::{Observation, ObservedContainer, ObservedSandbox, ObservedTask},
};
use containerd_client::{
    services::v1::{
        Container, ListContainersRequest, ListTasksRequest, container::Runtime, sandbox::StoreListRequest,
    },
    types::{Sandbox, v1::Process},
};
use futures::{StreamExt, stream};
use jiff::Timestamp;

use super::{
    CallError, Containerd,
    labels::{CONTAINER_NAME, Labels, POD_UID, SANDBOX, handler_of, is_ours, sandbox_of},
    shims::{ShimLook, Shims, observed_process},
};
use crate::{
    causes::with_causes,
    clock,
    config::{BERTH_RUNTIME, Handler},
    holder,
};

/// Shims asked at once, by us or by containerd. Each answers from memory in well under a millisecond; more would only queue for the CPU.
const SHIMS_AT_ONCE: usize = 16;

/// Containers in containerd before observation gives up: far beyond what a node runs.
const CONTAINERS_MAX: usize = 100_000;

/// Why the state could not be read.
#[derive(Debug, thiserror::Error)]
#[error("read what runs on this node")]
pub struct ObserveError(#[from] CallError);

/// What runs on the node.
#[derive(Debug, Default)]
pub struct ObservedNode {
    /// What is ours.
    pub observation: Observation,
    /// Pods of which another agent, such as a kubelet with CRI, has something in containerd: not ours to clean up.
    pub foreign: BTreeSet<PodUid>,
    /// Sandboxes that are shims of ours: to be followed.
    pub shims: Vec<SandboxId>,
    /// Sandboxes of ours in the store of sandboxes, where earlier versions recorded them.
    pub stored: BTreeSet<SandboxId>,
    /// Handlers that sandboxes were made by.
    pub handlers: Vec<(SandboxId, Handler)>,
    /// Containers of ours under shims of others, with their sandboxes.
    pub grouped: Vec<(ContainerId, SandboxId)>,
}

/// Reads everything. The sandboxes that are `known` are looked at also when containerd has no record of them.
///
/// # Errors
/// When containerd does not answer.
pub async fn observe(
    containerd: &Containerd,
    shims: &Shims,
    known: BTreeSet<SandboxId>,
) -> Result<ObservedNode, ObserveError> {
    let asked_at = clock::mono();
    let mut records = list_containers(containerd).await?;
    let in_store: Vec<Container> = list_sandboxes(containerd).await?.into_iter().map(as_record).collect();
    let stored = stored(&in_store, shims.run_dir());
    records.extend(in_store);
    let (ours, foreign): (Vec<_>, Vec<_>) = records.into_iter().partition(|it| is_ours(it, shims.run_dir()));
    let (sandboxes, containers): (Vec<_>, Vec<_>) = ours.into_iter().partition(is_sandbox);
    let unrecorded = unrecorded(known, &sandboxes, &containers);
    let looks = look_at_shims(shims, &sandboxes, &unrecorded).await;
    let loose: Vec<&Container> = containers.iter().filter(|it| !looks.contains_key(sandbox_of(it))).collect();
    let tasks = loose_tasks(containerd, &loose).await?;

    let grouped = loose
        .iter()
        .map(|it| (ContainerId::from_known(&it.id), SandboxId::from_known(sandbox_of(it))))
        .filter(|(_, sandbox)| !sandbox.as_str().is_empty());
    Ok(ObservedNode {
        foreign: foreign.iter().filter_map(|it| Labels(&it.labels).pod()).collect(),
        grouped: grouped.collect(),
        stored,
        handlers: sandboxes
            .iter()
            .filter_map(|it| Some((SandboxId::from_known(&it.id), handler_of(it)?)))
            .collect(),
        observation: Observation {
            asked_at,
            sandboxes: sandboxes.iter().filter_map(|it| observed_sandbox(it, &looks, shims)).collect(),
            containers: containers
                .iter()
                .filter_map(|container| observed_container(container, &looks, &tasks))
                .collect(),
            silent: looks
                .iter()
                .filter(|(_, look)| look.is_silent())
                .map(|(id, _)| SandboxId::from_known(id))
                .collect(),
            unrecorded: unrecorded.into_iter().filter(|id| may_be_up(id, &looks, shims)).collect(),
        },
        shims: looks.keys().map(SandboxId::from_known).collect(),
    })
}

/// The record of a sandbox names itself.
fn is_sandbox(record: &Container) -> bool {
    record.labels.get(SANDBOX) == Some(&record.id)
}

/// A sandbox of CRI's store, in which earlier versions kept ours.
fn as_record(sandbox: Sandbox) -> Container {
    let runtime = sandbox.runtime.map(|it| Runtime { name: it.name, options: None });
    let mut labels = sandbox.labels;
    labels.insert(SANDBOX.to_owned(), sandbox.sandbox_id.clone());
    Container { id: sandbox.sandbox_id, labels, runtime, ..Container::default() }
}

/// Those of ours in CRI's store.
fn stored(in_store: &[Container], run_dir: &str) -> BTreeSet<SandboxId> {
    in_store.iter().filter(|it| is_ours(it, run_dir)).map(|it| SandboxId::from_known(&it.id)).collect()
}

/// Sandboxes of ours that there should be a record of and is none.
fn unrecorded(
    known: BTreeSet<SandboxId>,
    sandboxes: &[Container],
    containers: &[Container],
) -> BTreeSet<SandboxId> {
    let members = containers.iter().map(|it| SandboxId::from_known(sandbox_of(it)));
    let mut all = known;
    all.extend(members.filter(|id| !id.as_str().is_empty()));
    for sandbox in sandboxes {
        all.remove(&SandboxId::from_known(&sandbox.id));
    }
    all
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
    while let Some(message) = containerd.next("list containers", "", stream.message()).await? {
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

/// What each shim of ours says, by sandbox. Under what runtime a sandbox without a record is, its shim's socket tells.
async fn look_at_shims(
    shims: &Shims,
    sandboxes: &[Container],
    unrecorded: &BTreeSet<SandboxId>,
) -> BTreeMap<String, ShimLook> {
    let ours = sandboxes.iter().filter(|it| is_berth(it)).map(|it| SandboxId::from_known(&it.id));
    let more = unrecorded.iter().filter(|id| shims.socket(id).exists()).cloned();
    let ids: BTreeSet<SandboxId> = ours.chain(more).collect();
    let looks = stream::iter(ids).map(|id| async move {
        let look = shims.look(&id).await;
        (id.to_string(), look)
    });
    looks.buffer_unordered(SHIMS_AT_ONCE).collect().await
}

/// The tasks of containers that no shim of ours has, by container.
async fn loose_tasks(
    containerd: &Containerd,
    loose: &[&Container],
) -> Result<BTreeMap<String, ObservedTask>, CallError> {
    if loose.is_empty() {
        return Ok(BTreeMap::new());
    }
    let listed = list_tasks(containerd).await?;
    let (mut tasks, mut unlisted) = (BTreeMap::new(), Vec::new());
    for container in loose {
        let created_at = container.created_at.as_ref().and_then(clock::of_proto);
        match listed.get(&container.id) {
            Some(task) => {
                tasks.insert(container.id.clone(), observed_process(task, created_at));
            }
            None => unlisted.push((container.id.clone(), created_at)),
        }
    }
    let asked = stream::iter(unlisted).map(|(id, created_at)| async move {
        let task = unlisted_task(containerd, &id, created_at).await;
        (id, task)
    });
    let asked: Vec<(String, ObservedTask)> = asked.buffer_unordered(SHIMS_AT_ONCE).collect().await;
    tasks.extend(asked);
    Ok(tasks)
}

/// A task that containerd does not list: it leaves out those whose shims do not answer at once (`addTasks` of its
/// `plugins/services/tasks/local.go`).
async fn unlisted_task(containerd: &Containerd, id: &str, created_at: Option<Timestamp>) -> ObservedTask {
    match containerd.task(id).await {
        Ok(Some(answer)) => observed_process(&answer.process.unwrap_or_default(), created_at),
        Ok(None) => ObservedTask::Absent,
        Err(error) => {
            tracing::debug!(error = with_causes(&error), "a task that is not listed could not be looked at");
            ObservedTask::Unknown
        }
    }
}

async fn list_tasks(containerd: &Containerd) -> Result<BTreeMap<String, Process>, CallError> {
    let request = ListTasksRequest { filter: String::new() };
    let tasks = containerd.call("list tasks", "", containerd.tasks().list(request)).await?.tasks;
    Ok(tasks.into_iter().map(|task| (task.id.clone(), task)).collect())
}

fn is_berth(sandbox: &Container) -> bool {
    sandbox.runtime.as_ref().is_some_and(|runtime| runtime.name == BERTH_RUNTIME)
}

fn observed_sandbox(
    sandbox: &Container,
    looks: &BTreeMap<String, ShimLook>,
    shims: &Shims,
) -> Option<ObservedSandbox> {
    let labels = Labels(&sandbox.labels);
    let id = SandboxId::from_known(&sandbox.id);
    let up = is_up(&id, looks, shims);
    let (pod, attempt) = (labels.pod()?, labels.attempt()?);
    Some(ObservedSandbox { id, pod, attempt, ready: up.is_some(), pid: up.unwrap_or_default() })
}

/// The pid of the shim of a sandbox that is up; 0 when files hold it.
fn is_up(id: &SandboxId, looks: &BTreeMap<String, ShimLook>, shims: &Shims) -> Option<u32> {
    match looks.get(id.as_str()) {
        Some(ShimLook::Answered(state)) => state.ready.then_some(state.pid),
        Some(ShimLook::Silent | ShimLook::NotAsked(_) | ShimLook::Gone(_)) => None,
        None => holder::is_ready(shims.run_dir(), id).then_some(0),
    }
}

/// A shim that does not answer may only be slow.
fn may_be_up(id: &SandboxId, looks: &BTreeMap<String, ShimLook>, shims: &Shims) -> bool {
    looks.get(id.as_str()).is_some_and(ShimLook::is_silent) || is_up(id, looks, shims).is_some()
}

fn observed_container(
    container: &Container,
    looks: &BTreeMap<String, ShimLook>,
    tasks: &BTreeMap<String, ObservedTask>,
) -> Option<ObservedContainer> {
    let labels = Labels(&container.labels);
    let task = match looks.get(sandbox_of(container)) {
        Some(look) => look.task(&container.id),
        None => tasks.get(&container.id).cloned().unwrap_or(ObservedTask::Absent),
    };
    Some(ObservedContainer {
        id: ContainerId::from_known(&container.id),
        pod: labels.pod()?,
        name: ContainerName::new(container.labels.get(CONTAINER_NAME)?),
        attempt: labels.attempt()?,
        sandbox: Some(SandboxId::from_known(sandbox_of(container))).filter(|id| !id.as_str().is_empty()),
        hash: labels.hash(),
        task,
    })
}

#[cfg(test)]
mod tests {
    use berth_core::failure::FailureKind;
    use containerd_client::{
        services::v1::{GetResponse, ListContainerMessage},
        types::v1::Status,
    };
    use tokio::time::timeout;

    use super::*;
    use crate::runtime::{
        fake::{Ending, Fake, LONG},
        labels::{ATTEMPT, RUN_DIR},
    };

    /// What CRI keeps there, and another agent kept, is theirs, also under an id that is computed as ours are.
    #[test]
    fn of_the_store_of_sandboxes_what_an_earlier_version_made_is_ours() {
        let cases: [(&str, &[(&str, &str)]); 3] = [
            ("earlier", &[(POD_UID, "1-a"), (ATTEMPT, "0")]),
            ("of-another", &[(POD_UID, "1-a"), (ATTEMPT, "0"), (RUN_DIR, "/run/second/berth")]),
            ("of-cri", &[(POD_UID, "1-b")]),
        ];
        let in_store = cases.map(|(id, labels)| {
            let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            as_record(Sandbox { sandbox_id: id.to_owned(), labels: labels.collect(), ..Sandbox::default() })
        });
        assert_eq!(stored(&in_store, "/run/berth"), [SandboxId::from_known("earlier")].into());
    }

    /// Containers that are missing in a list are taken for gone, and what ran is begun anew: half a list is none.
    #[tokio::test]
    async fn a_list_that_stops_midway_is_no_list() {
        let message = |id: &str| ListContainerMessage {
            container: Some(Container { id: id.to_owned(), ..Container::default() }),
        };
        let messages = [message("c1"), message("c2")];
        let whole = Fake::answering(&messages, Ending::Whole).await;
        let listed = list_containers(&whole.containerd).await.unwrap();
        assert_eq!(listed.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["c1", "c2"]);
        for ending in Ending::MIDWAY {
            let fake = Fake::answering(&messages, ending).await;
            let listed = timeout(LONG, list_containers(&fake.containerd)).await.expect("an end");
            let error = listed.unwrap_err();
            let expected = match ending {
                Ending::Refused | Ending::Unsaid | Ending::Torn => FailureKind::Transient,
                Ending::Reset | Ending::HangsUp => FailureKind::RuntimeDown,
                Ending::Stalls => FailureKind::Unknown,
                Ending::Whole | Ending::NotFound | Ending::RefusedAtLength => {
                    unreachable!("it is not midway")
                }
            };
            assert_eq!(error.kind(), expected, "{ending:?}: {error:?}");
        }
    }

    /// That its shim is slow does not end it.
    #[tokio::test]
    async fn a_task_that_is_not_listed_is_gone_only_where_containerd_knows_none() {
        let process = Process { pid: 7, status: Status::Running.into(), ..Process::default() };
        let fake = Fake::answering(&[GetResponse { process: Some(process) }], Ending::Whole).await;
        let task = unlisted_task(&fake.containerd, "c1", None).await;
        assert!(matches!(task, ObservedTask::Running { pid: 7, .. }), "{task:?}");
        let nothing: [GetResponse; 0] = [];
        let fake = Fake::answering(&nothing, Ending::NotFound).await;
        assert_eq!(unlisted_task(&fake.containerd, "c1", None).await, ObservedTask::Absent);
        for ending in Ending::MIDWAY {
            let fake = Fake::answering(&nothing, ending).await;
            let task = timeout(LONG, unlisted_task(&fake.containerd, "c1", None)).await.expect("an end");
            // Its word that it does not reach the shim.
            let is_said = matches!(ending, Ending::Refused);
            let expected = if is_said { ObservedTask::Absent } else { ObservedTask::Unknown };
            assert_eq!(task, expected, "{ending:?}");
        }
    }
}
