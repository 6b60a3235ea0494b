//! The machine's notices, as the events that containerd publishes (`api/events/task.proto`).

use berth_proto::event_service::ForwardRequest;
use berth_proto::events::{
    TaskCheckpointed, TaskCreate, TaskDelete, TaskExecAdded, TaskExecStarted, TaskExit, TaskIo, TaskOom,
    TaskPaused, TaskResumed, TaskStart,
};
use berth_proto::types::Envelope;
use berth_proto::{Any, pack};
use berth_shim_core::{Id, Notice, Process};

use crate::answer::timestamp;
use crate::container::Container;

/// The call that forwards a notice. `container` is the one that it is about.
pub(crate) fn forward(
    notice: Notice,
    container: Option<&Container>,
    namespace: &str,
    now_ns: i64,
) -> ForwardRequest {
    let (topic, event) = event(notice, container);
    let envelope = Envelope {
        timestamp: Some(timestamp(now_ns)),
        namespace: namespace.to_owned(),
        topic: topic.to_owned(),
        event: Some(event),
    };
    ForwardRequest { envelope: Some(envelope) }
}

fn event(notice: Notice, container: Option<&Container>) -> (&'static str, Any) {
    let text = |id: &Id| id.as_str().to_owned();
    match notice {
        Notice::Created { task, pid } => ("/tasks/create", pack(&create(&task, pid, container))),
        Notice::Started { task, pid } => {
            ("/tasks/start", pack(&TaskStart { container_id: text(&task), pid }))
        }
        Notice::ExecAdded { task, exec } => {
            let event = TaskExecAdded { container_id: text(&task), exec_id: text(&exec) };
            ("/tasks/exec-added", pack(&event))
        }
        Notice::ExecStarted { task, exec, pid } => {
            let event = TaskExecStarted { container_id: text(&task), exec_id: text(&exec), pid };
            ("/tasks/exec-started", pack(&event))
        }
        Notice::Exited { process, pid, exit } => {
            let (container_id, id) = names(&process);
            let exited_at = Some(timestamp(exit.at_ns));
            ("/tasks/exit", pack(&TaskExit { container_id, id, pid, exit_status: exit.code, exited_at }))
        }
        Notice::Deleted { task, pid, exit } => {
            let (container_id, id) = (text(&task), text(&task));
            let exited_at = Some(timestamp(exit.at_ns));
            ("/tasks/delete", pack(&TaskDelete { container_id, pid, exit_status: exit.code, exited_at, id }))
        }
        Notice::Oom(task) => ("/tasks/oom", pack(&TaskOom { container_id: text(&task) })),
        Notice::Paused(task) => ("/tasks/paused", pack(&TaskPaused { container_id: text(&task) })),
        Notice::Resumed(task) => ("/tasks/resumed", pack(&TaskResumed { container_id: text(&task) })),
        Notice::Checkpointed(task) => {
            let event = TaskCheckpointed { container_id: text(&task), checkpoint: String::new() };
            ("/tasks/checkpointed", pack(&event))
        }
    }
}

/// The container and the process; an init is named as its container.
fn names(process: &Process) -> (String, String) {
    let task = process.task.as_str().to_owned();
    let id = process.exec.as_ref().map_or_else(|| task.clone(), |exec| exec.as_str().to_owned());
    (task, id)
}

fn create(task: &Id, pid: u32, container: Option<&Container>) -> TaskCreate {
    let streams = container.map(|container| container.streams.clone()).unwrap_or_default();
    let restore = container.and_then(|container| container.restore.as_ref());
    TaskCreate {
        container_id: task.as_str().to_owned(),
        bundle: streams.bundle,
        rootfs: container.map(|container| container.rootfs.clone()).unwrap_or_default(),
        io: Some(TaskIo {
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
            terminal: streams.terminal,
        }),
        checkpoint: restore.map(|restore| restore.image.display().to_string()).unwrap_or_default(),
        pid,
    }
}
