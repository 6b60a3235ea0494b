//! Other resources for containers that run: from their shim, as signals (`signal.rs`), so that their OCI runtime knows of it, and systemd
//! where that keeps the cgroup.

use std::sync::Arc;

use berth_core::{
    cgroup::names,
    event::Outcome,
    failure::{Failure, FailureKind},
    id::PodUid,
    observation::ObservedTask,
    pod::port::resize::{MemoryBound, MemoryCheck, ResizeRequest, below_usage},
};
use berth_proto::{client::CallError, task, ttrpc::Code};
use containerd_client::services::v1::UpdateTaskRequest;
use prost_types::Any;

use crate::effects::{
    failure::failed,
    host::{Host, blocking},
};

const RESOURCES_URL: &str = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources";

/// Gives the cgroup of a container other resources. One that has ended has none, which is fine.
pub(in crate::effects) async fn container(
    host: &Arc<Host>,
    pod: &PodUid,
    request: ResizeRequest,
) -> Result<Outcome, Failure> {
    check(host, pod, &request.lowered).await?;
    let id = request.id.as_str();
    let value =
        serde_json::to_vec(&request.resources).map_err(|error| failed(FailureKind::Config, &error))?;
    let resources = Some(Any { type_url: RESOURCES_URL.to_owned(), value });
    let update =
        task::UpdateTaskRequest { id: id.to_owned(), resources, ..task::UpdateTaskRequest::default() };
    match host.shims.update(&request.sandbox, &update).await {
        Ok(()) => Ok(Outcome::Done),
        Err(CallError::Status(status)) if status.code == Code::NotFound => Ok(Outcome::Done),
        Err(CallError::Connect { .. } | CallError::Lost(_)) => {
            through_containerd(host, &request, update).await
        }
        Err(error) => Err(failed(FailureKind::Transient, &error)),
    }
}

async fn through_containerd(
    host: &Host,
    request: &ResizeRequest,
    update: task::UpdateTaskRequest,
) -> Result<Outcome, Failure> {
    let task::UpdateTaskRequest { id, resources, annotations: _ } = update;
    let update = UpdateTaskRequest { container_id: id.clone(), resources, ..UpdateTaskRequest::default() };
    let mut client = host.containerd.tasks();
    match host.containerd.call("change resources of", &id, client.update(update)).await {
        Ok(_) => Ok(Outcome::Done),
        // What containerd has lost may run all the same.
        Err(error) if error.is_shim_gone() => match host.shims.task(&request.sandbox, &request.id).await {
            None | Some(ObservedTask::Absent | ObservedTask::Exited(_)) => Ok(Outcome::Done),
            Some(
                ObservedTask::Created
                | ObservedTask::Starting
                | ObservedTask::Running { .. }
                | ObservedTask::Unknown,
            ) => Err(failed(FailureKind::Unknown, &error)),
        },
        Err(error) => Err(error.into()),
    }
}

/// Looks whether all that becomes less is enough for what is used.
pub(in crate::effects) async fn check_memory(
    host: &Arc<Host>,
    pod: &PodUid,
    request: MemoryCheck,
) -> Result<Outcome, Failure> {
    check(host, pod, &request).await.map(|()| Outcome::Done)
}

async fn check(host: &Arc<Host>, pod: &PodUid, request: &MemoryCheck) -> Result<(), Failure> {
    if request.bounds.is_empty() {
        return Ok(());
    }
    let settings = &host.node().cgroups;
    let path = |bound: &MemoryBound| match &bound.container {
        None => names::pod(settings, request.qos, pod),
        Some((_, id)) => names::container(settings, request.qos, pod, id),
    };
    let bounds: Vec<_> = request.bounds.iter().map(|bound| (path(bound), bound.clone())).collect();
    let host = Arc::clone(host);
    blocking(move || {
        let mut broken = Vec::new();
        for (path, bound) in bounds {
            let memory = host.cgroups.memory_use(&path);
            let memory = memory.map_err(|error| failed(FailureKind::Transient, &error))?;
            broken.extend(memory.and_then(|memory| bound.broken_by(memory)));
        }
        if broken.is_empty() {
            return Ok(());
        }
        Err(Failure { kind: FailureKind::Transient, message: below_usage(&broken) })
    })
    .await
}
