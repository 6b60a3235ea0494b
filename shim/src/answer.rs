//! The machine's answers, as the messages that each call is answered with.

use std::collections::BTreeMap;

use berth_proto::shim as wire;
use berth_proto::ttrpc::{Code as WireCode, Status};
use berth_proto::{Timestamp, process, sandbox, task};
use berth_shim_core::{
    Code, Exit, Failure, FeedEvent, FeedItem, Id, ProcessView, Reply, SandboxView, Status as Life, TaskView,
    Truth,
};
use prost::Message;

use crate::call::Call;
use crate::io::{Capture, ProcessIo, Writer};

/// Facts of the shell that some answers carry.
#[derive(Debug, Default)]
pub(crate) struct Facts<'a> {
    pub(crate) sandbox_id: &'a str,
    pub(crate) netns_path: &'a str,
    /// How logs are doing, by container.
    pub(crate) logs: BTreeMap<String, LogFacts>,
    /// Where the process's streams lead, and its bundle.
    pub(crate) streams: Streams,
    pub(crate) capture: Option<Capture>,
}

/// How the log of a container is doing.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct LogFacts {
    dropped_bytes: u64,
    stalled_since: Option<i64>,
}

impl LogFacts {
    pub(crate) fn of(io: &ProcessIo) -> Self {
        Self {
            dropped_bytes: io.writers().map(Writer::dropped_bytes).sum(),
            stalled_since: io.writers().filter_map(Writer::stalled_since).min(),
        }
    }
}

/// What `State` says about a process besides its life.
#[derive(Debug, Default, Clone)]
pub(crate) struct Streams {
    pub(crate) bundle: String,
    pub(crate) stdin: String,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) terminal: bool,
}

/// The message that answers `call`. A reply that does not fit the call is a mistake of the shim, and says so.
pub(crate) fn encode(call: &Call, reply: Reply, facts: Facts<'_>) -> Result<Vec<u8>, Status> {
    let bytes = match (call, reply) {
        (Call::Create(_), Reply::Pid(pid)) => task::CreateTaskResponse { pid }.encode_to_vec(),
        (Call::Start, Reply::Pid(pid)) => task::StartResponse { pid }.encode_to_vec(),
        (Call::Connect, Reply::Pid(pid)) => {
            let version = env!("CARGO_PKG_VERSION").to_owned();
            task::ConnectResponse { shim_pid: std::process::id(), task_pid: pid, version }.encode_to_vec()
        }
        (Call::Exit, Reply::Exited { pid, exit }) => {
            let exited_at = Some(timestamp(exit.at_ns));
            task::DeleteResponse { pid, exit_status: exit.code, exited_at }.encode_to_vec()
        }
        (Call::WaitExit, Reply::Exited { exit, .. }) => {
            task::WaitResponse { exit_status: exit.code, exited_at: Some(timestamp(exit.at_ns)) }
                .encode_to_vec()
        }
        (Call::State(process), Reply::State(view)) => state(process, &view, facts.streams).encode_to_vec(),
        (Call::SandboxStart, Reply::Sandbox(view)) => {
            let created_at = Some(timestamp(view.created_at_ns));
            sandbox::StartSandboxResponse { pid: view.pid, created_at, spec: None }.encode_to_vec()
        }
        (Call::SandboxStatus, Reply::Sandbox(view)) => sandbox_status(&view, &facts).encode_to_vec(),
        (Call::SandboxWait, Reply::SandboxExited { at_ns }) => {
            sandbox::WaitSandboxResponse { exit_status: 0, exited_at: Some(timestamp(at_ns)) }.encode_to_vec()
        }
        (Call::Truth, Reply::Truth(truth)) => whole_truth(truth, &facts).encode_to_vec(),
        (Call::Events, Reply::Events(items)) => {
            let events = items.into_iter().map(event).collect();
            wire::EventsResponse { events, resync: false }.encode_to_vec()
        }
        (Call::Events, Reply::Resync) => {
            wire::EventsResponse { events: Vec::new(), resync: true }.encode_to_vec()
        }
        (Call::ExecSync(_), Reply::ExecDone { code, timed_out, .. }) => {
            let Capture { stdout, stderr, .. } = facts.capture.unwrap_or_else(|| Capture::new(0));
            wire::ExecSyncResponse { exit_code: code, stdout, stderr, timed_out }.encode_to_vec()
        }
        (_, Reply::Empty) => Vec::new(),
        (call, reply) => {
            let text = format!("the shim answered {call:?} with {reply:?}, which does not fit");
            return Err(Status::new(WireCode::Internal, text));
        }
    };
    Ok(bytes)
}

/// A failure as it goes over the wire.
pub(crate) fn status(failure: Failure) -> Status {
    let code = match failure.code {
        Code::InvalidArgument => WireCode::InvalidArgument,
        Code::NotFound => WireCode::NotFound,
        Code::AlreadyExists => WireCode::AlreadyExists,
        Code::FailedPrecondition => WireCode::FailedPrecondition,
        Code::Unimplemented => WireCode::Unimplemented,
        Code::ResourceExhausted => WireCode::ResourceExhausted,
        Code::Internal => WireCode::Internal,
    };
    Status::new(code, failure.message)
}

/// A moment as protobuf writes it.
pub(crate) fn timestamp(ns: i64) -> Timestamp {
    let nanos = i32::try_from(ns.rem_euclid(1_000_000_000)).unwrap_or(0);
    Timestamp { seconds: ns.div_euclid(1_000_000_000), nanos }
}

fn state(process: &berth_shim_core::Process, view: &ProcessView, streams: Streams) -> task::StateResponse {
    let status = match view.status {
        Life::Created | Life::Starting => process::Status::Created,
        Life::Running => process::Status::Running,
        Life::Stopped => process::Status::Stopped,
        Life::Paused => process::Status::Paused,
        Life::Pausing => process::Status::Pausing,
    };
    let exec = process.exec.as_ref();
    task::StateResponse {
        id: process.task.as_str().to_owned(),
        bundle: streams.bundle,
        pid: view.pid,
        status: status.into(),
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
        terminal: streams.terminal,
        exit_status: view.exit.map_or(0, |exit| exit.code),
        exited_at: view.exit.map(|exit| timestamp(exit.at_ns)),
        exec_id: exec.map(|exec| exec.as_str().to_owned()).unwrap_or_default(),
    }
}

fn sandbox_status(view: &SandboxView, facts: &Facts<'_>) -> sandbox::SandboxStatusResponse {
    let mut info = BTreeMap::new();
    info.insert("netns_path".to_owned(), facts.netns_path.to_owned());
    info.insert("pid".to_owned(), view.pid.to_string());
    info.insert("state".to_owned(), view.state.as_str().to_owned());
    if view.pid != 0 {
        info.insert("namespaces".to_owned(), format!("/proc/{}/ns", view.pid));
    }
    sandbox::SandboxStatusResponse {
        sandbox_id: facts.sandbox_id.to_owned(),
        pid: view.pid,
        state: view.state.as_str().to_owned(),
        info,
        created_at: Some(timestamp(view.created_at_ns)),
        exited_at: view.exited_at_ns.map(timestamp),
        extra: None,
    }
}

fn whole_truth(truth: Truth, facts: &Facts<'_>) -> wire::StateResponse {
    let tasks = truth.tasks.into_iter().map(|view| {
        let log = facts.logs.get(view.id.as_str()).copied().unwrap_or_default();
        wire::Task {
            log_dropped_bytes: log.dropped_bytes,
            log_stalled_since: log.stalled_since.unwrap_or(0),
            ..own_task(view)
        }
    });
    wire::StateResponse {
        sandbox_id: facts.sandbox_id.to_owned(),
        sandbox_state: truth.sandbox.map(|view| view.state.as_str().to_owned()).unwrap_or_default(),
        shim_pid: std::process::id(),
        seq: truth.seq,
        tasks: tasks.collect(),
        protocol_version: berth_proto::SHIM_PROTOCOL,
    }
}

fn own_task(view: TaskView) -> wire::Task {
    let status = match view.init.status {
        Life::Created => wire::TaskStatus::Created,
        Life::Starting => wire::TaskStatus::Starting,
        Life::Running | Life::Pausing => wire::TaskStatus::Running,
        Life::Stopped => wire::TaskStatus::Stopped,
        Life::Paused => wire::TaskStatus::Paused,
    };
    let exit = |exit: Exit| wire::Exit { code: exit.code, exited_at: exit.at_ns, oom_kills: exit.oom_kills };
    wire::Task {
        id: view.id.as_str().to_owned(),
        pid: view.init.pid,
        status: status.into(),
        created_at: view.created_at_ns,
        started_at: view.started_at_ns.unwrap_or(0),
        exit: view.init.exit.map(exit),
        log_dropped_bytes: 0,
        log_stalled_since: 0,
    }
}

/// A task that has ended, as it is written down for an agent that the shim may not live to tell.
pub(crate) fn ended(id: &Id, pid: u32, exit: Exit) -> wire::Task {
    wire::Task {
        id: id.as_str().to_owned(),
        pid,
        status: wire::TaskStatus::Stopped.into(),
        exit: Some(wire::Exit { code: exit.code, exited_at: exit.at_ns, oom_kills: exit.oom_kills }),
        ..wire::Task::default()
    }
}

fn event(item: FeedItem) -> wire::Event {
    use wire::event::What;
    let what = match item.event {
        FeedEvent::Created(view) => What::Created(own_task(view)),
        FeedEvent::Started(view) => What::Started(own_task(view)),
        FeedEvent::Exited(view) => What::Exited(own_task(view)),
        FeedEvent::Paused(view) => What::Paused(own_task(view)),
        FeedEvent::Resumed(view) => What::Resumed(own_task(view)),
        FeedEvent::Deleted(id) => What::Deleted(id.as_str().to_owned()),
        FeedEvent::Oom { task, kills } => {
            What::Oom(wire::Oom { id: task.as_str().to_owned(), oom_kills: kills })
        }
        FeedEvent::SandboxStopped => What::SandboxStopped(wire::SandboxStopped {}),
    };
    wire::Event { seq: item.seq, what: Some(what) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_before_the_epoch_have_positive_nanoseconds() {
        assert_eq!(timestamp(1_500_000_000), Timestamp { seconds: 1, nanos: 500_000_000 });
        assert_eq!(timestamp(-1), Timestamp { seconds: -1, nanos: 999_999_999 });
    }

    #[test]
    fn to_containerd_what_is_being_started_is_created_and_to_the_agent_it_is_not() {
        let id = Id::parse("c").expect("an id");
        let init = ProcessView { pid: 10, status: Life::Starting, exit: None };
        let told = state(&berth_shim_core::Process::init(&id), &init, Streams::default());
        assert_eq!(told.status(), process::Status::Created);
        let view = TaskView { id, init, created_at_ns: 1, started_at_ns: None };
        assert_eq!(own_task(view).status(), wire::TaskStatus::Starting);
    }

    #[test]
    fn a_reply_that_does_not_fit_its_call_is_an_internal_error() {
        let status = encode(&Call::Start, Reply::Resync, Facts::default()).expect_err("does not fit");
        assert_eq!(status.code, WireCode::Internal);
    }
}
