//! Records of sandboxes and containers in containerd: written before anything runs, removed after everything else.
//!
//! Both are container records, which containerd's CRI plugin leaves alone as long as they do not bear its label. That of a
//! sandbox names itself as its sandbox. The store of sandboxes is CRI's: what is there and not made by it, it deletes when
//! containerd starts (decision 0018).

use std::collections::{BTreeSet, HashMap};

use berth_core::{
    failure::{Failure, FailureKind},
    id::{ContainerId, PodUid, SandboxId},
    oci::OCI_VERSION,
    pod::port::sandbox::SandboxRequest,
};
use containerd_client::services::v1::{
    Container, CreateContainerRequest, DeleteContainerRequest, GetContainerRequest, ListContainersRequest,
    UpdateContainerRequest, container::Runtime, sandbox::StoreDeleteRequest,
};
use prost_types::{Any, FieldMask};

use crate::{
    absent::absent_is_fine,
    config::Handler,
    effects::{failure::failed, host::Host},
    runtime::labels,
};

/// Type URL of an OCI spec as JSON (containerd, `client/client.go`).
pub(super) const SPEC_URL: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";

/// The record of a sandbox: found again by its labels.
fn sandbox(host: &Host, request: &SandboxRequest, handler: &Handler) -> Result<Container, Failure> {
    let kept = serde_json::to_vec(handler).map_err(|error| failed(FailureKind::Config, &error))?;
    let kept = Any { type_url: labels::HANDLER.to_owned(), value: kept };
    let SandboxRequest { id, attempt, pod, .. } = request;
    let labels = [
        (labels::POD_NAME, pod.name.name.clone()),
        (labels::POD_NAMESPACE, pod.name.namespace.clone()),
        (labels::POD_UID, pod.uid.to_string()),
        (labels::SANDBOX, id.to_string()),
        (labels::ATTEMPT, attempt.to_string()),
        (labels::RUN_DIR, host.node().paths.run.clone()),
    ];
    let spec = serde_json::json!({
        "ociVersion": OCI_VERSION,
        "annotations": {
            "io.kubernetes.cri.container-type": "sandbox",
            "io.kubernetes.cri.sandbox-id": id.as_str(),
            "io.kubernetes.cri.sandbox-name": pod.name.name,
            "io.kubernetes.cri.sandbox-namespace": pod.name.namespace,
            "io.kubernetes.cri.sandbox-uid": pod.uid.as_str(),
        },
    });
    Ok(Container {
        id: id.to_string(),
        labels: labels.map(|(name, value)| (name.to_owned(), value)).into_iter().collect::<HashMap<_, _>>(),
        runtime: Some(Runtime { name: handler.runtime.name().to_owned(), options: None }),
        spec: Some(Any { type_url: SPEC_URL.to_owned(), value: spec.to_string().into_bytes() }),
        extensions: HashMap::from([(labels::HANDLER.to_owned(), kept)]),
        ..Container::default()
    })
}

/// The record of a sandbox, and whether it was written just now.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) record: Container,
    pub(super) is_new: bool,
}

/// Writes the record of a sandbox, or finds it.
pub(super) async fn ensure_sandbox(
    host: &Host,
    request: &SandboxRequest,
    handler: &Handler,
) -> Result<Recorded, Failure> {
    let record = sandbox(host, request, handler)?;
    let is_new = create(host, record.clone()).await?;
    Ok(Recorded { record, is_new })
}

/// The handler that a sandbox was recorded with.
pub(super) async fn handler(host: &Host, id: &SandboxId) -> Result<Option<Handler>, Failure> {
    Ok(record(host, id.as_str()).await?.and_then(|record| labels::handler_of(&record)))
}

/// Removes the record of a sandbox, if there is one, also from the store of sandboxes where an earlier version made it.
pub(super) async fn delete_sandbox(host: &Host, id: &SandboxId) -> Result<(), Failure> {
    if host.stored.contains(id) {
        let delete = StoreDeleteRequest { sandbox_id: id.to_string() };
        let mut client = host.containerd.sandbox_store();
        absent_is_fine(host.containerd.call("delete sandbox", id.as_str(), client.delete(delete)).await)?;
    }
    delete_record(host, id.as_str()).await
}

/// Containers that containerd has for a sandbox. It reads every record that it has, of whatever pod.
pub(super) async fn members(
    host: &Host,
    pod: &PodUid,
    id: &SandboxId,
) -> Result<BTreeSet<ContainerId>, Failure> {
    let filter = format!("labels.{:?}=={:?}", labels::POD_UID, pod.as_str());
    let request = ListContainersRequest { filters: vec![filter] };
    let mut client = host.containerd.containers();
    let list = host.containerd.call("list containers of sandbox", id.as_str(), client.list(request)).await?;
    let is_member = |it: &Container| it.id != id.as_str() && labels::sandbox_of(it) == id.as_str();
    let run_dir = &host.node().paths.run;
    let members = list.containers.into_iter().filter(|it| labels::is_ours(it, run_dir) && is_member(it));
    Ok(members.map(|it| ContainerId::from_known(it.id)).collect())
}

/// Writes a record; tells whether there was none. Ids are computed, so the same pod under another agent has the same: what is
/// there has to be ours.
pub(super) async fn create(host: &Host, container: Container) -> Result<bool, Failure> {
    let id = container.id.clone();
    let create = CreateContainerRequest { container: Some(container) };
    let mut client = host.containerd.containers();
    match host.containerd.call("record", &id, client.create(create)).await {
        Ok(_) => return Ok(true),
        Err(error) if error.is_already_exists() => {}
        Err(error) => return Err(error.into()),
    }
    match of_another(host, &id).await? {
        Some(other) => Err(taken(&id, &other)),
        None => Ok(false),
    }
}

/// Writes the OCI spec of a record that is there anew.
pub(super) async fn write_spec(host: &Host, container: Container) -> Result<(), Failure> {
    let id = container.id.clone();
    let update_mask = Some(FieldMask { paths: vec!["spec".to_owned()] });
    let update = UpdateContainerRequest { container: Some(container), update_mask };
    let mut client = host.containerd.containers();
    host.containerd.call("write spec of", &id, client.update(update)).await?;
    Ok(())
}

/// What bears an id in containerd, if another agent made it: nothing of it is used or removed.
pub(super) async fn of_another(host: &Host, id: &str) -> Result<Option<Container>, Failure> {
    let found = record(host, id).await?;
    Ok(found.filter(|it| !labels::is_ours(it, &host.node().paths.run)))
}

fn taken(id: &str, record: &Container) -> Failure {
    let owner = record.labels.get(labels::RUN_DIR).map_or("unknown", String::as_str);
    let message = format!(
        "record {id}: containerd has a record of that name, made by another agent (run directory {owner}): give this pod another UID, or this agent a containerd of its own"
    );
    Failure { kind: FailureKind::Config, message }
}

/// The record of a container, if there is one.
pub(super) async fn container(host: &Host, id: &ContainerId) -> Result<Option<Container>, Failure> {
    record(host, id.as_str()).await
}

async fn record(host: &Host, id: &str) -> Result<Option<Container>, Failure> {
    let get = GetContainerRequest { id: id.to_owned() };
    let mut client = host.containerd.containers();
    match host.containerd.call("read container", id, client.get(get)).await {
        Ok(answer) => Ok(Some(answer.container.unwrap_or_default())),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Removes the record of a container, if there is one.
pub(super) async fn delete_container(host: &Host, id: &ContainerId) -> Result<(), Failure> {
    delete_record(host, id.as_str()).await
}

async fn delete_record(host: &Host, id: &str) -> Result<(), Failure> {
    let delete = DeleteContainerRequest { id: id.to_owned() };
    let mut client = host.containerd.containers();
    Ok(absent_is_fine(host.containerd.call("delete the record of", id, client.delete(delete)).await)?)
}
