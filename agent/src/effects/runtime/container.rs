//! Containers: record, task, start; and the way back.
//!
//! The record's id, the task's and the snapshot's are the same computed id, so each step finds what an earlier try made.

use std::sync::Arc;

use berth_core::{
    config::Paths,
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{ContainerId, ContainerName, PodName, PodUid, SandboxId},
    observation::ObservedTask,
    paths,
    pod::port::start::StartRequest,
};
use containerd_client::services::v1::{
    Container, container::Runtime as RuntimeName, snapshots::RemoveSnapshotRequest,
};
use oci_spec::runtime::Spec;
use prost_types::Any;

use super::{
    kill,
    port::Runtime,
    prepare,
    records::{self, SPEC_URL},
    task,
};
use crate::{
    causes::with_causes,
    effects::{
        failure::{failed, local, sandbox_gone},
        files::work::{Called, FILES, Work},
        host::Host,
        kinds::{Lane, RUNTIME},
    },
    runtime::labels,
    workers::Sort,
};

/// Starts a container, or finds it started.
pub(in crate::effects) async fn start(
    host: &Arc<Host>,
    request: &Arc<StartRequest>,
) -> Result<Outcome, Failure> {
    let runtime = Runtime::of(host, &request.pod)?;
    let spec = prepare::container(host, request).await?;
    // Whose files hang takes nobody's place.
    let _place = host.lanes.enter(Lane::Start, RUNTIME).await?;
    host.failpoint.reach("container.files-written");
    let record = record(host, runtime, request, &runtime.adapt(request, spec))?;
    let is_new = records::create(host, record).await?;
    host.failpoint.reach("container.record-created");
    let state = if is_new {
        ObservedTask::Absent
    } else {
        let found = runtime.task(&request.sandbox, &request.id).await?;
        found.ok_or_else(|| sandbox_gone(&request.sandbox))?
    };
    match state {
        ObservedTask::Created if task::is_created(host, &request.id).await? => {}
        // Containerd may have lost what the shim still has.
        ObservedTask::Absent | ObservedTask::Created => {
            if !is_new {
                task::clear(host, runtime, request).await?;
            }
            runtime.forget_exit(request)?;
            if let Some(failure) = task::create(host, runtime, request).await? {
                return Ok(Outcome::NotStarted(Box::new(failure)));
            }
            host.failpoint.reach("container.task-created");
        }
        ObservedTask::Running { .. } | ObservedTask::Exited(_) => {
            link_log(host, request).await?;
            return Ok(Outcome::Started(state));
        }
        ObservedTask::Starting | ObservedTask::Unknown => return Ok(Outcome::Started(state)),
    }
    if let Some(failure) = task::start(host, runtime, request).await? {
        return Ok(Outcome::NotStarted(Box::new(failure)));
    }
    host.failpoint.reach("container.task-started");
    link_log(host, request).await?;
    runtime.follow(&request.sandbox, &request.id);
    let started = runtime.task(&request.sandbox, &request.id).await?;
    Ok(Outcome::Started(started.unwrap_or(ObservedTask::Absent)))
}

/// Removes a container with everything that was made for it, killing it when it runs.
pub(in crate::effects) async fn remove(host: &Arc<Host>, id: &ContainerId) -> Result<Outcome, Failure> {
    host.grouped.forget(id);
    if let Some(record) = records::container(host, id).await? {
        if !labels::is_ours(&record, &host.node().paths.run) {
            return Ok(Outcome::Done);
        }
        let sandbox = SandboxId::from_known(labels::sandbox_of(&record));
        kill::must_answer(host, &sandbox).await?;
        if let Err(error) = task::remove(host, id).await {
            return Err(kill::failure(host, &sandbox, error).await);
        }
        if let Err(error) = host.shims.delete(&sandbox, id).await {
            tracing::debug!(container = %id, error = with_causes(&error), "nothing deleted in the shim");
        }
        host.failpoint.reach("container.task-deleted");
        remove_log_before(host, &record).await?;
        host.shims.forget_exit(&sandbox, id).map_err(local("forget the end of", id.as_str()))?;
        records::delete_container(host, id).await?;
    }
    let remove = RemoveSnapshotRequest { snapshotter: host.config.snapshotter.clone(), key: id.to_string() };
    let mut client = host.containerd.snapshots();
    let removed = host.containerd.call("remove snapshot", id.as_str(), client.remove(remove)).await;
    records::absent_is_fine(removed)?;
    host.failpoint.reach("container.snapshot-removed");
    Ok(Outcome::Done)
}

fn record(
    host: &Host,
    runtime: Runtime<'_>,
    request: &StartRequest,
    spec: &Spec,
) -> Result<Container, Failure> {
    let value = serde_json::to_vec(spec).map_err(|error| failed(FailureKind::Config, &error))?;
    let mut record = Container {
        id: request.id.to_string(),
        labels: request.plan.labels.clone().into_iter().collect(),
        image: request.image.name.clone(),
        runtime: Some(RuntimeName { name: runtime.name().to_owned(), options: runtime.options() }),
        spec: Some(Any { type_url: SPEC_URL.to_owned(), value }),
        snapshotter: host.config.snapshotter.clone(),
        snapshot_key: request.id.to_string(),
        ..Container::default()
    };
    record.labels.insert(labels::RUN_DIR.to_owned(), host.node().paths.run.clone());
    record.labels.insert(labels::SANDBOX.to_owned(), request.sandbox.to_string());
    Ok(record)
}

/// Makes the link that log collectors follow.
async fn link_log(host: &Host, request: &StartRequest) -> Result<(), Failure> {
    let paths = &host.node().paths;
    let link = paths::log_link(paths, &request.pod.name, &request.container.name, &request.id);
    let what = format!("link to the log of container {}", request.container.name);
    let called = Called { what: &what, path: &link, sort: Sort::Own, within: FILES };
    let work = Work::Link { target: request.plan.log_path.clone(), link: link.clone() };
    host.work(request.pod.uid.as_str(), called, &work).await?;
    Ok(())
}

/// Removes the log of the run before, with its rotated parts and the link that collectors follow. Those of the run itself
/// stay until the next one has ended or the pod goes, whatever becomes of the run's record: collectors get its last lines,
/// and `--previous` finds it.
/// Source: `pkg/kubelet/pod_container_deletor.go`, with one dead instance per container (`MaxPerPodContainerCount`).
async fn remove_log_before(host: &Host, record: &Container) -> Result<(), Failure> {
    let Some(LogBefore { pod, container, link, log }) = log_before(&host.node().paths, record) else {
        return Ok(());
    };
    let what = format!("removal of a log of container {container}");
    let called = Called { what: &what, path: &log, sort: Sort::Ends, within: FILES };
    host.work(pod.as_str(), called, &Work::Unlink { link, log: log.clone() }).await?;
    Ok(())
}

/// The log of the run before one, and the link to it.
#[derive(Debug, PartialEq)]
struct LogBefore {
    pod: PodUid,
    container: ContainerName,
    link: String,
    log: String,
}

fn log_before(paths: &Paths, record: &Container) -> Option<LogBefore> {
    let own = labels::Labels(&record.labels);
    let text = |name: &str| record.labels.get(name).cloned().unwrap_or_default();
    let (pod, before) = (own.pod()?, own.attempt()?.checked_sub(1)?);
    let name = PodName { namespace: text(labels::POD_NAMESPACE), name: text(labels::POD_NAME) };
    let container = ContainerName::new(text(labels::CONTAINER_NAME));
    let link = paths::log_link(paths, &name, &container, &ContainerId::of(&pod, &container, before));
    let log = paths::container_log(paths, &name, &pod, &container, before);
    Some(LogBefore { pod, container, link, log })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_with_a_run_is_the_log_of_the_one_before() {
        let paths = Paths {
            root: "/root".to_owned(),
            pod_logs: "/logs".to_owned(),
            container_logs: "/links".to_owned(),
            run: "/run".to_owned(),
            seccomp: "/seccomp".to_owned(),
        };
        let record = |attempt: &str| {
            let labels = [
                (labels::POD_UID, "1-a"),
                (labels::POD_NAME, "web"),
                (labels::POD_NAMESPACE, "default"),
                (labels::CONTAINER_NAME, "main"),
                (labels::ATTEMPT, attempt),
            ];
            let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            Container { labels, ..Container::default() }
        };
        let (pod, container) = (PodUid::new("1-a"), ContainerName::new("main"));
        let id = ContainerId::of(&pod, &container, 2);
        let expected = LogBefore {
            pod,
            container,
            link: format!("/links/web_default_main-{id}.log"),
            log: "/logs/default_web_1-a/main/2.log".to_owned(),
        };
        assert_eq!(log_before(&paths, &record("3")), Some(expected));
        assert_eq!(log_before(&paths, &record("0")), None, "the only run keeps its log");
        assert_eq!(log_before(&paths, &record("")), None, "what others made");
    }
}
