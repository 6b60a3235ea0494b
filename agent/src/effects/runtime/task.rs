//! Tasks in containerd: created, started and ended through it, under whichever shim.

use std::{sync::Arc, time::Duration};

use berth_core::{
    failure::{Failure, FailureKind},
    id::ContainerId,
    pod::port::{
        start::StartRequest,
        start_failure::{Answer, Call, Sandbox, StartFailure},
    },
};
use containerd_client::{
    services::v1::{
        CreateTaskRequest, DeleteTaskRequest, KillRequest, StartRequest as StartTaskRequest, WaitRequest,
    },
    types::{Mount, v1::Status},
};

use oci_spec::runtime::Spec;

use super::{
    port::{Runtime, Stdio},
    text,
};
use crate::{
    causes::with_causes,
    effects::{
        files::work::{Called, FILES, Work},
        host::Host,
        images::rootfs::{self, Layer},
    },
    runtime::{CallError, Containerd},
    workers::Sort,
};

const SIGKILL: u32 = 9;
/// Longest wait for the end of a process that was sent SIGKILL. Most end at once; one that a file system holds up is asked
/// about again later, and meanwhile the place in the lane is another container's.
const DEATH: Duration = Duration::from_secs(10);

/// Creates the task, or finds it; why containerd says that it did not.
pub(super) async fn create(
    host: &Host,
    runtime: Runtime<'_>,
    request: &StartRequest,
) -> Result<Option<StartFailure>, Failure> {
    let id = request.id.as_str();
    let (mut rootfs, is_fresh) = match rootfs::to_start(host, &request.id).await? {
        Layer::Fresh(mounts) => (mounts, true),
        Layer::Used(mounts) => (mounts, false),
    };
    let marks: Vec<String> = rootfs.iter_mut().filter_map(make_volatile).collect();
    for mark in marks.into_iter().filter(|_| !is_fresh) {
        let what = format!("layer of container {}", request.container.name);
        let called = Called { what: &what, path: &mark, sort: Sort::Own, within: FILES };
        host.work(request.pod.uid.as_str(), called, &Work::Clear(mark.clone())).await?;
    }
    let create = asked(request, rootfs, runtime.stdio(request), runtime.shim_path());
    let mut client = host.containerd.tasks();
    match host.containerd.call("create task", id, client.create(create)).await {
        Err(error) if !error.is_already_exists() => failed(runtime, request, Call::Create, error).await,
        Ok(_) | Err(_) => Ok(None),
    }
}

/// What containerd is asked for.
fn asked(
    request: &StartRequest,
    mut rootfs: Vec<Mount>,
    Stdio { input, output }: Stdio,
    runtime_path: String,
) -> CreateTaskRequest {
    give_label(&mut rootfs, &request.plan.spec);
    let tty = request.container.stdio.tty;
    CreateTaskRequest {
        container_id: request.id.to_string(),
        rootfs,
        stdin: input,
        stderr: if tty { String::new() } else { output.clone() },
        stdout: output,
        terminal: tty,
        runtime_path,
        ..CreateTaskRequest::default()
    }
}

/// Starts the task; why containerd says that it did not.
pub(super) async fn start(
    host: &Arc<Host>,
    runtime: Runtime<'_>,
    request: &StartRequest,
) -> Result<Option<StartFailure>, Failure> {
    let id = request.id.as_str();
    let start = StartTaskRequest { container_id: id.to_owned(), exec_id: String::new() };
    let mut client = host.containerd.tasks();
    match host.containerd.call("start task", id, client.start(start)).await {
        Ok(_) => Ok(None),
        Err(error) => failed(runtime, request, Call::Start, error).await,
    }
}

/// What was answered to a call, and what is left of the sandbox then. What follows from that is the core's to decide.
async fn failed(
    runtime: Runtime<'_>,
    request: &StartRequest,
    call: Call,
    error: CallError,
) -> Result<Option<StartFailure>, Failure> {
    if error.kind() != FailureKind::Transient {
        return Err(error.into());
    }
    let sandbox = match runtime.has_lost_sandbox(&request.sandbox).await {
        Ok(false) => Sandbox::Up,
        Ok(true) => Sandbox::Gone,
        Err(unknown) => Sandbox::Unknown(unknown.kind()),
    };
    let cause = error.cause().to_string();
    let answer = error.code().map_or(Answer::CutOff, |code| text::answer(code, request.id.as_str(), &cause));
    Ok(Some(StartFailure { call, answer, sandbox, cause, message: with_causes(&error) }))
}

/// Removes what an earlier try left of the task, also when containerd or the shim has lost it.
pub(super) async fn clear(host: &Host, runtime: Runtime<'_>, request: &StartRequest) -> Result<(), Failure> {
    remove(&host.containerd, &request.id).await?;
    runtime.forget_task(request).await;
    Ok(())
}

/// What came of the deletion of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deleted {
    /// Its shim has deleted it.
    ByShim,
    /// Containerd has no such task, or does not reach its shim.
    ByNobody,
}

/// Deletes the task, killing it first when it runs.
pub(super) async fn remove(containerd: &Containerd, id: &ContainerId) -> Result<Deleted, CallError> {
    match status(containerd, id).await? {
        Some(Status::Stopped) => {}
        Some(status) => {
            kill(containerd, id).await?;
            if status != Status::Created {
                let wait = WaitRequest { container_id: id.to_string(), exec_id: String::new() };
                let mut client = containerd.tasks();
                let end = client.wait(wait);
                gone_is_fine(containerd.call_within(DEATH, "wait for", id.as_str(), end).await)?;
            }
        }
        // Nothing to kill. But a task whose shim has died is still in containerd's books, with its bundle.
        None => {}
    }
    let delete = DeleteTaskRequest { container_id: id.to_string() };
    let mut client = containerd.tasks();
    let deleted = gone_is_fine(containerd.call("delete task", id.as_str(), client.delete(delete)).await)?;
    Ok(deleted.map_or(Deleted::ByNobody, |_exit| Deleted::ByShim))
}

/// Whether containerd has the task, not yet started.
pub(super) async fn is_created(host: &Host, id: &ContainerId) -> Result<bool, CallError> {
    Ok(status(&host.containerd, id).await? == Some(Status::Created))
}

async fn kill(containerd: &Containerd, id: &ContainerId) -> Result<(), CallError> {
    let kill =
        KillRequest { container_id: id.to_string(), signal: SIGKILL, all: true, ..KillRequest::default() };
    let mut client = containerd.tasks();
    gone_is_fine(containerd.call("kill", id.as_str(), client.kill(kill)).await).map(drop)
}

/// How the task is; none when there is none, or its shim has died.
async fn status(containerd: &Containerd, id: &ContainerId) -> Result<Option<Status>, CallError> {
    let answer = containerd.task(id.as_str()).await?;
    Ok(answer.and_then(|answer| answer.process).map(|process| process.status()))
}

/// The answer; none when there is nothing left to act on.
fn gone_is_fine<T>(result: Result<T, CallError>) -> Result<Option<T>, CallError> {
    match result {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_shim_gone() => {
            tracing::debug!(error = with_causes(&error), "nothing left to act on");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Marks a writable layer as one that a crash may lose, which spares a sync of the whole disk when it is unmounted. A
/// layer that was mounted so before, by a start that failed, bears a mark of the kernel that would refuse it: a directory
/// that holds a file, to be removed first. One that was just made has none.
/// Source: Linux, `Documentation/filesystems/overlayfs.rst`, "Volatile mount".
fn make_volatile(mount: &mut Mount) -> Option<String> {
    let work = mount.options.iter().find_map(|option| option.strip_prefix("workdir="))?;
    if mount.r#type != "overlay" {
        return None;
    }
    let mark = format!("{work}/work/incompat/volatile");
    mount.options.push("volatile".to_owned());
    Some(mark)
}

/// Has a root file system mounted with the SELinux label of its container. Source: `handleMounts` of containerd's `client/container.go`.
fn give_label(rootfs: &mut [Mount], spec: &Spec) {
    let Some(label) = spec.linux().as_ref().and_then(|linux| linux.mount_label().as_deref()) else { return };
    for mount in rootfs {
        mount.options.push(format!("context=\"{label}\""));
    }
}

#[cfg(test)]
mod tests {
    use containerd_client::services::v1::GetResponse;
    use oci_spec::runtime::Linux;
    use tokio::time::timeout;

    use super::*;
    use crate::{
        effects::kinds::tests::start,
        runtime::fake::{Ending, Fake, LONG},
    };

    /// Only what a shim has deleted need not be looked for in it.
    #[tokio::test]
    async fn a_task_is_deleted_by_its_shim_or_by_nobody() {
        // Fits each of the calls, and does not tell how the task is.
        let answer = [GetResponse::default()];
        let id = ContainerId::from_known("c1");
        for (ending, expected) in [
            (Ending::Whole, Some(Deleted::ByShim)),
            (Ending::NotFound, Some(Deleted::ByNobody)),
            // Containerd does not reach it.
            (Ending::Refused, Some(Deleted::ByNobody)),
            (Ending::Reset, None),
            (Ending::Stalls, None),
        ] {
            let messages = if ending == Ending::Whole { &answer[..] } else { &[] };
            let fake = Fake::answering(messages, ending).await;
            let removed = timeout(LONG, remove(&fake.containerd, &id)).await.expect("an end");
            assert_eq!(removed.ok(), expected, "{ending:?}");
        }
    }

    #[test]
    fn a_root_file_system_has_the_label_of_its_containers_mounts() {
        let label = "system_u:object_r:container_file_t:s0:c1,c2";
        for (label, expected) in [
            (None, &["ro"][..]),
            (Some(label.to_owned()), &["ro", "context=\"system_u:object_r:container_file_t:s0:c1,c2\""]),
        ] {
            let mut request = start();
            let mut linux = Linux::default();
            linux.set_mount_label(label);
            request.plan.spec.set_linux(Some(linux));
            let rootfs = vec![Mount { options: vec!["ro".to_owned()], ..Mount::default() }];
            let stdio = Stdio { input: "in".to_owned(), output: "out".to_owned() };
            let asked = asked(&request, rootfs, stdio, String::new());
            assert_eq!(asked.rootfs[0].options, expected);
            assert_eq!(
                (asked.stdin.as_str(), asked.stdout.as_str(), asked.stderr.as_str()),
                ("in", "out", "out")
            );
        }
    }

    #[test]
    fn writable_overlays_are_volatile_and_other_mounts_are_left() {
        let mut overlay = Mount {
            r#type: "overlay".to_owned(),
            source: "overlay".to_owned(),
            options: vec!["workdir=/s/7/work".to_owned(), "lowerdir=/a".to_owned()],
            ..Mount::default()
        };
        // As `ovl_create_volatile_dirty` of the kernel leaves it.
        assert_eq!(make_volatile(&mut overlay).as_deref(), Some("/s/7/work/work/incompat/volatile"));
        assert_eq!(overlay.options.last().map(String::as_str), Some("volatile"));

        let mut bind =
            Mount { r#type: "bind".to_owned(), options: vec!["rbind".to_owned()], ..Mount::default() };
        assert_eq!(make_volatile(&mut bind), None);
        assert_eq!(bind.options, ["rbind"]);
    }
}
