//! Containers: record, task, start; and the way back.
//!
//! The record's id, the task's and the snapshot's are the same computed id, so each step finds what an earlier try made.

use std::{path::Path, sync::Arc};

use berth_core::{
    effect::StartRequest,
    event::{Failure, FailureKind, ObservedTask, Outcome},
    id::{ContainerId, PodName, SandboxId},
    paths,
    spec::{Stdin, Stdio},
};
use containerd_client::{
    services::v1::{
        Container, CreateContainerRequest, CreateTaskRequest, DeleteContainerRequest, DeleteTaskRequest,
        GetContainerRequest, GetRequest, KillRequest, StartRequest as StartTaskRequest, WaitRequest,
        container::Runtime, snapshots::RemoveSnapshotRequest,
    },
    types::{Mount, v1::Status},
};
use oci_spec::runtime::Spec;
use prost_types::Any;

use super::{
    failure::{failed, local},
    grouped,
    host::{Host, blocking},
    host_files, hung, prepare, rootfs, runtime_text,
    sandbox::{self, BERTH, SPEC_URL},
};
use crate::{
    chain::chain,
    runtime::{CallError, labels},
};

/// Bytes of a log line before it is split (`max_container_log_line_size` of containerd's CRI).
const LOG_LINE_MAX: u32 = 16384;

const SIGKILL: u32 = 9;

/// Starts a container, or finds it started.
pub(super) async fn start(host: &Arc<Host>, request: &Arc<StartRequest>) -> Result<Outcome, Failure> {
    let runtime = sandbox::runtime_of(host, &request.pod)?;
    let spec = prepare::container(host, request).await?;
    host.failpoint.reach("container.files-written");
    let spec = if runtime == BERTH { spec } else { grouped::adapt(host, request, spec) };
    let is_new = create_record(host, request, runtime, &spec).await?;
    host.failpoint.reach("container.record-created");
    let state = if is_new { ObservedTask::Absent } else { state(host, request).await? };
    match state {
        ObservedTask::Absent => {
            create_task(host, request, runtime).await?;
            host.failpoint.reach("container.task-created");
            start_task(host, request).await?;
        }
        ObservedTask::Created => start_task(host, request).await?,
        ObservedTask::Running { .. } | ObservedTask::Exited(_) => return Ok(Outcome::Started(state)),
        ObservedTask::Unknown => return Err(super::failure::unknown("the shim does not answer")),
    }
    host.failpoint.reach("container.task-started");
    link_log(host, request).await?;
    if runtime != BERTH {
        host.grouped.add(&request.id, &request.sandbox);
    }
    Ok(Outcome::Started(self::state(host, request).await?))
}

/// Removes a container with everything that was made for it, killing it when it runs.
pub(super) async fn remove(host: &Arc<Host>, id: &ContainerId) -> Result<Outcome, Failure> {
    host.grouped.forget(id);
    let record = match get_record(host, id).await {
        Ok(record) => Some(record),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    if let Some(record) = record {
        let sandbox = SandboxId::from_known(&record.sandbox);
        hung::refuse(host, &sandbox).await?;
        if let Err(error) = remove_task(host, id).await {
            return Err(hung::failure(host, &sandbox, error).await);
        }
        host.failpoint.reach("container.task-deleted");
        unlink_log(host, &record).await?;
        let delete = DeleteContainerRequest { id: id.to_string() };
        let mut client = host.containerd.containers();
        absent_is_fine(host.containerd.call("delete container", id.as_str(), client.delete(delete)).await)?;
    }
    let remove = RemoveSnapshotRequest { snapshotter: host.config.snapshotter.clone(), key: id.to_string() };
    let mut client = host.containerd.snapshots();
    absent_is_fine(host.containerd.call("remove snapshot", id.as_str(), client.remove(remove)).await)?;
    host.failpoint.reach("container.snapshot-removed");
    Ok(Outcome::Done)
}

async fn create_record(
    host: &Host,
    request: &StartRequest,
    runtime: &str,
    spec: &Spec,
) -> Result<bool, Failure> {
    let mut own_labels: std::collections::HashMap<_, _> = request.plan.labels.clone().into_iter().collect();
    if runtime != BERTH {
        own_labels.insert(labels::SANDBOX.to_owned(), request.sandbox.to_string());
    }
    let value = serde_json::to_vec(spec).map_err(|error| failed(FailureKind::Config, &error))?;
    let container = Container {
        id: request.id.to_string(),
        labels: own_labels,
        image: request.image.name.clone(),
        runtime: Some(Runtime { name: runtime.to_owned(), options: grouped::options(host, runtime) }),
        spec: Some(Any { type_url: SPEC_URL.to_owned(), value }),
        snapshotter: host.config.snapshotter.clone(),
        snapshot_key: request.id.to_string(),
        sandbox: if runtime == BERTH { request.sandbox.to_string() } else { String::new() },
        ..Container::default()
    };
    let create = CreateContainerRequest { container: Some(container) };
    let mut client = host.containerd.containers();
    match host.containerd.call("create container", request.id.as_str(), client.create(create)).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_already_exists() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn get_record(host: &Host, id: &ContainerId) -> Result<Container, CallError> {
    let get = GetContainerRequest { id: id.to_string() };
    let mut client = host.containerd.containers();
    Ok(host
        .containerd
        .call("read container", id.as_str(), client.get(get))
        .await?
        .container
        .unwrap_or_default())
}

/// What became of the container: by its shim, or by containerd for the shims of others.
async fn state(host: &Host, request: &StartRequest) -> Result<ObservedTask, Failure> {
    if sandbox::runtime_of(host, &request.pod)? == BERTH {
        return Ok(host.shims.task(&request.sandbox, &request.id).await);
    }
    Ok(host.grouped.state(&host.containerd, &request.id).await?)
}

async fn create_task(host: &Host, request: &StartRequest, runtime: &str) -> Result<(), Failure> {
    let id = request.id.as_str();
    let mut rootfs = rootfs::mounts(host, &request.id).await?;
    rootfs.iter_mut().for_each(make_volatile);
    let Stdio { stdin, tty } = request.container.stdio;
    let log = if runtime == BERTH { log_uri(host, request) } else { grouped::log_uri(host, request)? };
    let create = CreateTaskRequest {
        container_id: id.to_owned(),
        rootfs,
        stdin: if runtime == BERTH { stdin_uri(stdin).to_owned() } else { String::new() },
        stderr: if tty { String::new() } else { log.clone() },
        stdout: log,
        terminal: tty,
        ..CreateTaskRequest::default()
    };
    let mut client = host.containerd.tasks();
    match host.containerd.call("create task", id, client.create(create)).await {
        Err(error) if !error.is_already_exists() => Err(start_failure(host, request, error).await),
        Ok(_) | Err(_) => Ok(()),
    }
}

async fn start_task(host: &Arc<Host>, request: &StartRequest) -> Result<(), Failure> {
    let id = request.id.as_str();
    let start = StartTaskRequest { container_id: id.to_owned(), exec_id: String::new() };
    let mut client = host.containerd.tasks();
    match host.containerd.call("start task", id, client.start(start)).await {
        Ok(_) => Ok(()),
        Err(error) => {
            let is_lost = error.is_not_found();
            let mut failure = start_failure(host, request, error).await;
            if failure.kind == FailureKind::StartFailed || is_lost {
                remove_task(host, &request.id).await?;
            }
            if is_lost && sandbox::runtime_of(host, &request.pod)? == BERTH {
                forget_task(host, request).await;
            }
            if matches!(failure.kind, FailureKind::Transient | FailureKind::SandboxGone) {
                // It may run, or have run before its sandbox went.
                failure.kind = FailureKind::Unknown;
            }
            Err(failure)
        }
    }
}

/// Has the shim delete a task that containerd does not know of, and which nobody can start so: the next try makes
/// another. Containerd may have died, or given up on a creation, before it was told of its end.
async fn forget_task(host: &Host, request: &StartRequest) {
    if let Err(error) = host.shims.delete(&request.sandbox, &request.id).await {
        tracing::debug!(container = %request.id, error = chain(&error), "nothing deleted in the shim");
    }
}

/// Why a start failed: the container's own fault, or its sandbox has gone, or something that may pass.
async fn start_failure(host: &Host, request: &StartRequest, error: CallError) -> Failure {
    if error.kind() != FailureKind::Transient {
        return error.into();
    }
    if let Some(words) = runtime_text::fault_of_container(&error.cause().to_string()) {
        return Failure { kind: FailureKind::StartFailed, message: words };
    }
    let mut failure = Failure::from(error);
    let runtime = sandbox::runtime_of(host, &request.pod);
    if runtime == Ok(BERTH) && matches!(sandbox::is_ready(host, &request.sandbox).await, Ok(false)) {
        failure.kind = FailureKind::SandboxGone;
    }
    failure
}

/// Deletes the task, killing it first when it runs.
async fn remove_task(host: &Host, id: &ContainerId) -> Result<(), CallError> {
    match task_status(host, id).await? {
        Some(Status::Stopped) => {}
        Some(status) => {
            kill(host, id).await?;
            if status != Status::Created {
                let wait = WaitRequest { container_id: id.to_string(), exec_id: String::new() };
                let mut client = host.containerd.tasks();
                gone_is_fine(host.containerd.call("wait for", id.as_str(), client.wait(wait)).await)?;
            }
        }
        // Nothing to kill. But a task whose shim has died is still in containerd's books, with its bundle.
        None => {}
    }
    let delete = DeleteTaskRequest { container_id: id.to_string() };
    let mut client = host.containerd.tasks();
    gone_is_fine(host.containerd.call("delete task", id.as_str(), client.delete(delete)).await)
}

async fn kill(host: &Host, id: &ContainerId) -> Result<(), CallError> {
    let kill =
        KillRequest { container_id: id.to_string(), signal: SIGKILL, all: true, ..KillRequest::default() };
    let mut client = host.containerd.tasks();
    gone_is_fine(host.containerd.call("kill", id.as_str(), client.kill(kill)).await)
}

/// How the task is; none when there is none, or its shim has died.
async fn task_status(host: &Host, id: &ContainerId) -> Result<Option<Status>, CallError> {
    let get = GetRequest { container_id: id.to_string(), exec_id: String::new() };
    let mut client = host.containerd.tasks();
    match host.containerd.call("look at task", id.as_str(), client.get(get)).await {
        Ok(answer) => Ok(answer.process.map(|process| process.status())),
        Err(error) if error.is_shim_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

fn absent_is_fine<T>(result: Result<T, CallError>) -> Result<(), Failure> {
    match result {
        Err(error) if !error.is_not_found() => Err(error.into()),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn gone_is_fine<T>(result: Result<T, CallError>) -> Result<(), CallError> {
    match result {
        Err(error) if !error.is_shim_gone() => Err(error),
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::debug!(error = chain(&error), "nothing left to act on");
            Ok(())
        }
    }
}

/// Marks a writable layer as one that a crash may lose, which spares a sync of the whole disk when it is unmounted. A
/// layer that was mounted so before, by a start that failed, bears a mark of the kernel that would refuse it.
/// Source: Linux, `Documentation/filesystems/overlayfs.rst`, "Volatile mount".
fn make_volatile(mount: &mut Mount) {
    let Some(work) = mount.options.iter().find_map(|option| option.strip_prefix("workdir=")) else { return };
    if mount.r#type != "overlay" {
        return;
    }
    let mark = Path::new(work).join("work/incompat/volatile");
    // Most often it is not there. The kernel makes it a directory that holds a file.
    drop(std::fs::remove_dir_all(mark));
    mount.options.push("volatile".to_owned());
}

fn log_uri(host: &Host, request: &StartRequest) -> String {
    let logs = host.node().logs;
    let (path, size, files) = (&request.plan.log_path, logs.max_size_bytes, logs.max_files);
    format!("cri-log://{path}?max_size={size}&max_files={files}&max_line={LOG_LINE_MAX}")
}

fn stdin_uri(stdin: Stdin) -> &'static str {
    match stdin {
        Stdin::Closed => "",
        Stdin::Open => "attach:",
        Stdin::Once => "attach:?once=true",
    }
}

/// Makes the link that log collectors follow.
async fn link_log(host: &Arc<Host>, request: &Arc<StartRequest>) -> Result<(), Failure> {
    let (host, request) = (Arc::clone(host), Arc::clone(request));
    blocking(move || {
        let paths = &host.node().paths;
        let link = paths::log_link(paths, &request.pod.name, &request.container.name, &request.id);
        host_files::make_dir(&paths.container_logs, 0o755)?;
        match std::os::unix::fs::symlink(&request.plan.log_path, &link) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            result => result.map_err(local("link", &link)),
        }
    })
    .await
}

/// Removes the link to a container's log, and the logs of the runs before it. Its own stays for `--previous`.
async fn unlink_log(host: &Arc<Host>, record: &Container) -> Result<(), Failure> {
    let own = labels::Labels(&record.labels);
    let text = |name: &str| record.labels.get(name).cloned().unwrap_or_default();
    let (Some(pod), Some(attempt)) = (own.pod(), own.attempt()) else { return Ok(()) };
    let name = PodName { namespace: text(labels::POD_NAMESPACE), name: text(labels::POD_NAME) };
    let container = berth_core::id::ContainerName::new(text(labels::CONTAINER_NAME));
    let (host, id) = (Arc::clone(host), ContainerId::from_known(&record.id));
    blocking(move || {
        let paths = &host.node().paths;
        host_files::remove_file(paths::log_link(paths, &name, &container, &id))?;
        match attempt.checked_sub(1) {
            Some(before) => {
                host_files::remove_log(&paths::container_log(paths, &name, &pod, &container, before))
            }
            None => Ok(()),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writable_overlays_are_volatile_and_other_mounts_are_left() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        let mark = work.join("work/incompat/volatile");
        std::fs::create_dir_all(&mark).unwrap();
        // As `ovl_create_volatile_dirty` of the kernel leaves it.
        std::fs::write(mark.join("dirty"), "").unwrap();
        let mut overlay = Mount {
            r#type: "overlay".to_owned(),
            source: "overlay".to_owned(),
            options: vec![format!("workdir={}", work.display()), "lowerdir=/a".to_owned()],
            ..Mount::default()
        };
        make_volatile(&mut overlay);
        assert_eq!(overlay.options.last().map(String::as_str), Some("volatile"));
        assert!(!work.join("work/incompat/volatile").exists());

        let mut bind =
            Mount { r#type: "bind".to_owned(), options: vec!["rbind".to_owned()], ..Mount::default() };
        make_volatile(&mut bind);
        assert_eq!(bind.options, ["rbind"]);
    }
}
