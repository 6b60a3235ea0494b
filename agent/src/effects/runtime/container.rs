//! Containers: record, task, start; and the way back.
//!
//! The record's id, the task's and the snapshot's are the same computed id, so each step finds what an earlier try made.

use std::{collections::BTreeSet, sync::Arc};

use berth_core::{
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{ContainerId, SandboxId},
    observation::ObservedTask,
    oci, paths,
    pod::{
        port::start::StartRequest,
        retention::{RunLog, log_to_remove, volumes_to_remove},
    },
};
use containerd_client::services::v1::{Container, container::Runtime as RuntimeName};
use oci_spec::runtime::Spec;
use prost_types::Any;

use super::{
    handlers, kill,
    port::Runtime,
    prepare,
    records::{self, SPEC_URL},
    task::{self, Deleted},
};
use crate::{
    causes::with_causes,
    effects::{
        failure::{failed, local, sandbox_gone},
        files::{
            env_file,
            work::{Called, FILES, TREE, Work},
        },
        host::Host,
        images::snapshot,
        kinds::{Lane, RUNTIME},
    },
    objects,
    runtime::labels,
    workers::Sort,
};

/// Starts a container, or finds it started.
pub(in crate::effects) async fn start(
    host: &Arc<Host>,
    request: &Arc<StartRequest>,
) -> Result<Outcome, Failure> {
    let handler = handlers::of_sandbox(host, &request.pod, &request.sandbox).await?;
    let runtime = Runtime::of(host, &handler);
    let request = &with_values(host, request).await?;
    let spec = prepare::container(host, request, runtime.own_shm(request)).await?;
    let is_privileged = request.container.security.privileged;
    let annotations = &request.pod.annotations;
    let spec = oci::with_terms(spec, &request.plan, annotations, is_privileged, handler.terms());
    // Whose files hang takes nobody's place.
    let _place = host.lanes.enter(Lane::Start, RUNTIME).await?;
    host.failpoint.reach("container.files-written");
    let record = record(host, runtime, request, &runtime.adapt(request, spec))?;
    host.members.add(&request.sandbox, &request.id);
    let is_new = records::create(host, record.clone()).await?;
    host.failpoint.reach("container.record-created");
    let state = if is_new {
        ObservedTask::Absent
    } else {
        let found = runtime.task(&request.sandbox, &request.id).await?;
        found.ok_or_else(|| sandbox_gone(&request.sandbox))?
    };
    match state {
        // What was made to join another container may have joined one that has ended since.
        ObservedTask::Created if request.target.is_none() && task::is_created(host, &request.id).await? => {}
        // Containerd may have lost what the shim still has.
        ObservedTask::Absent | ObservedTask::Created => {
            if !is_new {
                task::clear(host, runtime, request).await?;
            }
            if !is_new && request.target.is_some() {
                records::write_spec(host, record).await?;
            }
            runtime.forget_exit(request)?;
            let failure = task::create(host, runtime, request).await?;
            joins_what_runs(host, runtime, request).await?;
            if let Some(failure) = failure {
                return Ok(Outcome::NotStarted(Box::new(failure)));
            }
            host.failpoint.reach("container.task-created");
        }
        ObservedTask::Running { .. } | ObservedTask::Exited(_) => {
            link_log(host, request).await;
            return Ok(Outcome::Started(state));
        }
        ObservedTask::Starting | ObservedTask::Unknown => return Ok(Outcome::Started(state)),
    }
    if let Some(failure) = task::start(host, runtime, request).await? {
        return Ok(Outcome::NotStarted(Box::new(failure)));
    }
    host.failpoint.reach("container.task-started");
    runtime.follow(&request.sandbox, &request.id);
    let started = runtime.task(&request.sandbox, &request.id);
    let ((), started) = tokio::join!(link_log(host, request), started);
    Ok(Outcome::Started(started?.unwrap_or(ObservedTask::Absent)))
}

/// Looks whether the container whose processes this one is to see still runs, now that it has joined it by a process id: so long that
/// id was no other's. If not, what was made is taken back.
async fn joins_what_runs(host: &Host, runtime: Runtime<'_>, request: &StartRequest) -> Result<(), Failure> {
    let Some(target) = &request.target else { return Ok(()) };
    let found = runtime.task(&request.sandbox, &target.id).await?;
    let found = found.ok_or_else(|| sandbox_gone(&request.sandbox))?;
    if target.is(&found) {
        return Ok(());
    }
    task::clear(host, runtime, request).await?;
    let message = format!("invalid target container: container {:?} is not running", target.id.as_str());
    Err(Failure::new(FailureKind::Transient, message))
}

/// The request with what objects and services give its environment, which goes into the spec and nowhere else.
async fn with_values(host: &Host, request: &Arc<StartRequest>) -> Result<Arc<StartRequest>, Failure> {
    if request.unplanned.is_none() {
        return Ok(Arc::clone(request));
    }
    let values = objects::environment(&host.objects, &request.pod, &request.container).await;
    let mut values = values.map_err(|error| failed(FailureKind::Config, &error))?;
    env_file::add(host, request, &mut values).await?;
    let planned = request.with_values(&values);
    planned.map(Arc::new).map_err(|error| failed(prepare::kind_of(&error), &error))
}

/// Removes a container with everything that was made for it, killing it when it runs.
pub(in crate::effects) async fn remove(host: &Arc<Host>, id: &ContainerId) -> Result<Outcome, Failure> {
    host.grouped.forget(id);
    host.fresh_layers.forget(id);
    // The record is not there, or names another than it is made with by now.
    let mut snapshotters = BTreeSet::from([host.settings().snapshotter.clone()]);
    if let Some(record) = records::container(host, id).await? {
        if !labels::is_ours(&record, &host.node().paths.run) {
            return Ok(Outcome::Done);
        }
        let sandbox = SandboxId::from_known(labels::sandbox_of(&record));
        kill::must_answer(host, &sandbox).await?;
        match task::remove(&host.containerd, id).await {
            Ok(Deleted::ByShim) => {}
            // Containerd may have lost what the shim still has.
            Ok(Deleted::ByNobody) => {
                if let Err(error) = host.shims.delete(&sandbox, id).await {
                    tracing::debug!(container = %id, error = with_causes(&error), "nothing deleted in the shim");
                }
            }
            Err(error) => return Err(kill::failure(host, &sandbox, error).await),
        }
        host.failpoint.reach("container.task-deleted");
        remove_log(host, &record).await?;
        host.shims.forget_exit(&sandbox, id).map_err(local("forget the end of", id.as_str()))?;
        records::delete_container(host, id).await?;
        host.members.remove(&sandbox, id);
        remove_volumes(host, &record);
        snapshotters.insert(record.snapshotter);
    }
    for snapshotter in snapshotters {
        snapshot::remove(host, "remove snapshot", &snapshotter, id.as_str()).await?;
    }
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
        runtime: Some(RuntimeName { name: runtime.name().to_owned(), options: runtime.options()? }),
        spec: Some(Any { type_url: SPEC_URL.to_owned(), value }),
        snapshotter: host.settings().snapshotter.clone(),
        snapshot_key: request.id.to_string(),
        ..Container::default()
    };
    record.labels.insert(labels::RUN_DIR.to_owned(), host.node().paths.run.clone());
    record.labels.insert(labels::SANDBOX.to_owned(), request.sandbox.to_string());
    Ok(record)
}

/// Makes the link that log collectors follow. A container that runs is seen also without
/// (`startContainer` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`).
async fn link_log(host: &Host, request: &StartRequest) {
    let paths = &host.node().paths;
    let link = paths::log_link(paths, &request.pod.name, &request.container.name, &request.id);
    let what = format!("link to the log of container {}", request.container.name);
    let called = Called { what: &what, path: &link, sort: Sort::Own, within: FILES };
    let work = Work::Link { target: request.plan.log_path.clone(), link: link.clone() };
    if let Err(failure) = host.work(request.pod.uid.as_str(), called, &work).await {
        tracing::warn!(container = %request.id, why = failure.message, "collectors do not find the log");
    }
}

/// Removes the log that goes with a run.
async fn remove_log(host: &Host, record: &Container) -> Result<(), Failure> {
    let Some(run) = labels::Labels(&record.labels).run() else { return Ok(()) };
    let Some(RunLog { link, log }) = log_to_remove(&host.node().paths, &run) else { return Ok(()) };
    let what = format!("removal of a log of container {}", run.container);
    let called = Called { what: &what, path: &log, sort: Sort::Ends, within: FILES };
    host.work(run.uid.as_str(), called, &Work::Unlink { link, log: log.clone() }).await?;
    Ok(())
}

/// Removes the `VOLUME`s that go with a run, which may take long: nothing waits for it. What is left goes with a later run, or with the pod.
fn remove_volumes(host: &Arc<Host>, record: &Container) {
    let Some(run) = labels::Labels(&record.labels).run() else { return };
    let Some(volumes) = volumes_to_remove(&host.node().paths, &run) else { return };
    let host = Arc::clone(host);
    tokio::spawn(async move {
        // Once at a time for a pod, whose ends have few places.
        let what = "removal of VOLUMEs of earlier runs";
        let called = Called { what, path: &volumes.dir, sort: Sort::Ends, within: TREE };
        let work = Work::RemoveRunVolumes((&volumes).into());
        if let Err(failure) = host.work(volumes.uid.as_str(), called, &work).await {
            tracing::warn!(pod = %volumes.uid, why = failure.message, "VOLUMEs of earlier runs are left");
        }
    });
}
