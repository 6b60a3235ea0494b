//! Wire requests, parsed into what the machine decides on and what the shell keeps to perform it.

use berth_proto::sandbox::{self as wire_sandbox, sandbox_service};
use berth_proto::shim::{self as wire, shim_service};
use berth_proto::task::{self as wire_task, task_service};
use berth_proto::ttrpc::{Code, Request as Wire, Status};
use berth_proto::{Any, TASK_V3, unpack};
use berth_shim_core::{ExecPurpose, Id, Origin, Process, Request, Scope};

use crate::container::ExecPlan;

/// Highest signal number of Linux.
const SIGNAL_MAX: u32 = 64;

/// What the shell needs of a request until it is answered.
#[derive(Debug)]
pub(crate) enum Call {
    /// Answered with a message without fields.
    Empty,
    Create(Box<wire_task::CreateTaskRequest>),
    Start,
    /// `Delete` and `Wait`: the end of a process.
    Exit,
    WaitExit,
    Exec(Box<ExecPlan>),
    State(Process),
    Resize {
        columns: u16,
        rows: u16,
    },
    CloseIo,
    Update(Vec<u8>),
    Checkpoint(Box<wire_task::CheckpointTaskRequest>),
    Pids,
    TaskStats,
    Connect,
    SandboxStart,
    SandboxStatus,
    SandboxWait,
    Truth,
    Events,
    ExecSync(Box<wire::ExecSyncRequest>),
    Attach(wire::AttachStart),
    ExecStream(Box<wire::ExecStart>),
    ReopenLog,
}

/// What a request comes to.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// The machine decides.
    Ask(Call, Request),
    /// The machine decides, once the shell has noted the sandbox.
    CreateSandbox(Box<wire_sandbox::CreateSandboxRequest>),
    /// About the sandbox of this name, which must be the shim's.
    OfSandbox(String, Box<Self>),
    /// Of a task, or of the sandbox itself.
    Pids(Id),
    /// The shell answers at once.
    Platform,
    Ping,
    SandboxMetrics,
    Stats,
    /// A stream whose first message says what it is.
    Stream,
}

/// Parses a call of any of the services.
pub(crate) fn parse(request: &Wire) -> Result<Parsed, Status> {
    let parsed = match request.service.as_str() {
        task_service::NAME | TASK_V3 => parse_task(request)?,
        sandbox_service::NAME => parse_sandbox(request)?,
        shim_service::NAME => parse_own(request)?,
        _ => None,
    };
    parsed.ok_or_else(|| Status::unimplemented(&request.service, &request.method))
}

/// Parses the first message of a stream.
pub(crate) fn parse_stream_start(input: wire::AttachInput) -> Result<(Call, Request), Status> {
    use wire::attach_input::What;
    match input.what {
        Some(What::Attach(start)) => {
            let process = Process::init(&id(&start.container_id)?);
            Ok((Call::Attach(start), Request::IfAlive(process)))
        }
        Some(What::Exec(start)) => {
            let task = id(&start.container_id)?;
            Ok((Call::ExecStream(Box::new(start)), Request::RunExec(task, ExecPurpose::Stream)))
        }
        Some(What::Stdin(_) | What::CloseStdin(_) | What::Resize(_)) | None => Err(Status::new(
            Code::InvalidArgument,
            "the first message of a stream must say what to stream with",
        )),
    }
}

fn parse_task(wire: &Wire) -> Result<Option<Parsed>, Status> {
    let (call, request) = match wire.method.as_str() {
        task_service::CREATE => {
            let request: wire_task::CreateTaskRequest = wire.message()?;
            let task = id(&request.id)?;
            let origin = if request.checkpoint.is_empty() { Origin::Bundle } else { Origin::Checkpoint };
            (Call::Create(Box::new(request)), Request::Create(task, origin))
        }
        task_service::START => {
            let request: wire_task::StartRequest = wire.message()?;
            (Call::Start, Request::Start(process(&request.id, &request.exec_id)?))
        }
        task_service::DELETE => {
            let request: wire_task::DeleteRequest = wire.message()?;
            (Call::Exit, Request::Delete(process(&request.id, &request.exec_id)?))
        }
        task_service::WAIT => {
            let request: wire_task::WaitRequest = wire.message()?;
            (Call::WaitExit, Request::Wait(process(&request.id, &request.exec_id)?))
        }
        task_service::EXEC => {
            let request: wire_task::ExecProcessRequest = wire.message()?;
            let (task, exec) = (id(&request.id)?, id(&request.exec_id)?);
            let plan = ExecPlan::of(&request).map_err(crate::answer::status)?;
            (Call::Exec(Box::new(plan)), Request::AddExec(task, exec))
        }
        task_service::KILL => {
            let request: wire_task::KillRequest = wire.message()?;
            let process = process(&request.id, &request.exec_id)?;
            // As in the runc shim, `all` is said of containers (`process/exec.go`, `Kill`).
            let everything = request.all && process.exec.is_none();
            let scope = if everything { Scope::Container } else { Scope::Process };
            (Call::Empty, Request::Kill { process, signal: signal(request.signal)?, scope })
        }
        task_service::STATE => {
            let request: wire_task::StateRequest = wire.message()?;
            let process = process(&request.id, &request.exec_id)?;
            (Call::State(process.clone()), Request::State(process))
        }
        task_service::UPDATE => {
            let request: wire_task::UpdateTaskRequest = wire.message()?;
            let resources = resources(request.resources)?;
            (Call::Update(resources), Request::Update(id(&request.id)?))
        }
        task_service::CHECKPOINT => {
            let request: wire_task::CheckpointTaskRequest = wire.message()?;
            let task = id(&request.id)?;
            (Call::Checkpoint(Box::new(request)), Request::Checkpoint(task))
        }
        task_service::CONNECT => {
            let request: wire_task::ConnectRequest = wire.message()?;
            (Call::Connect, Request::Connect(id(&request.id).ok()))
        }
        task_service::SHUTDOWN => (Call::Empty, Request::Shutdown),
        _ => return parse_task_views(wire),
    };
    Ok(Some(Parsed::Ask(call, request)))
}

fn parse_task_views(wire: &Wire) -> Result<Option<Parsed>, Status> {
    let (call, request) = match wire.method.as_str() {
        task_service::PIDS => {
            let request: wire_task::PidsRequest = wire.message()?;
            return Ok(Some(Parsed::Pids(id(&request.id)?)));
        }
        task_service::STATS => {
            let request: wire_task::StatsRequest = wire.message()?;
            (Call::TaskStats, Request::IfCreated(Process::init(&id(&request.id)?)))
        }
        task_service::PAUSE => {
            let request: wire_task::PauseRequest = wire.message()?;
            (Call::Empty, Request::Pause(id(&request.id)?))
        }
        task_service::RESUME => {
            let request: wire_task::ResumeRequest = wire.message()?;
            (Call::Empty, Request::Resume(id(&request.id)?))
        }
        task_service::RESIZE_PTY => {
            let request: wire_task::ResizePtyRequest = wire.message()?;
            let (columns, rows) = size(request.width, request.height)?;
            (Call::Resize { columns, rows }, Request::IfNotExited(process(&request.id, &request.exec_id)?))
        }
        task_service::CLOSE_IO => {
            let request: wire_task::CloseIoRequest = wire.message()?;
            (Call::CloseIo, Request::IfCreated(process(&request.id, &request.exec_id)?))
        }
        _ => return Ok(None),
    };
    Ok(Some(Parsed::Ask(call, request)))
}

fn parse_sandbox(wire: &Wire) -> Result<Option<Parsed>, Status> {
    let (sandbox, parsed) = match wire.method.as_str() {
        sandbox_service::CREATE_SANDBOX => {
            let request: wire_sandbox::CreateSandboxRequest = wire.message()?;
            id(&request.sandbox_id)?;
            return Ok(Some(Parsed::CreateSandbox(Box::new(request))));
        }
        sandbox_service::START_SANDBOX => {
            let request: wire_sandbox::StartSandboxRequest = wire.message()?;
            (request.sandbox_id, Parsed::Ask(Call::SandboxStart, Request::StartSandbox))
        }
        sandbox_service::STOP_SANDBOX => {
            let request: wire_sandbox::StopSandboxRequest = wire.message()?;
            (request.sandbox_id, Parsed::Ask(Call::Empty, Request::StopSandbox))
        }
        sandbox_service::WAIT_SANDBOX => {
            let request: wire_sandbox::WaitSandboxRequest = wire.message()?;
            (request.sandbox_id, Parsed::Ask(Call::SandboxWait, Request::WaitSandbox))
        }
        sandbox_service::SANDBOX_STATUS => {
            let request: wire_sandbox::SandboxStatusRequest = wire.message()?;
            (request.sandbox_id, Parsed::Ask(Call::SandboxStatus, Request::SandboxStatus))
        }
        sandbox_service::SHUTDOWN_SANDBOX => {
            let request: wire_sandbox::ShutdownSandboxRequest = wire.message()?;
            (request.sandbox_id, Parsed::Ask(Call::Empty, Request::ShutdownSandbox))
        }
        sandbox_service::PLATFORM => return Ok(Some(Parsed::Platform)),
        sandbox_service::PING_SANDBOX => {
            let request: wire_sandbox::PingRequest = wire.message()?;
            (request.sandbox_id, Parsed::Ping)
        }
        sandbox_service::SANDBOX_METRICS => {
            let request: wire_sandbox::SandboxMetricsRequest = wire.message()?;
            (request.sandbox_id, Parsed::SandboxMetrics)
        }
        _ => return Ok(None),
    };
    Ok(Some(Parsed::OfSandbox(sandbox, Box::new(parsed))))
}

fn parse_own(wire: &Wire) -> Result<Option<Parsed>, Status> {
    let (call, request) = match wire.method.as_str() {
        shim_service::STATE => (Call::Truth, Request::Truth),
        shim_service::EVENTS => {
            let request: wire::EventsRequest = wire.message()?;
            (Call::Events, Request::Events { since: request.since })
        }
        shim_service::EXEC_SYNC => {
            let request: wire::ExecSyncRequest = wire.message()?;
            let timeout_ms = Some(request.timeout_ms).filter(|ms| *ms > 0);
            let ask = Request::RunExec(id(&request.container_id)?, ExecPurpose::Sync { timeout_ms });
            (Call::ExecSync(Box::new(request)), ask)
        }
        shim_service::REOPEN_LOG => {
            let request: wire::ReopenLogRequest = wire.message()?;
            (Call::ReopenLog, Request::IfCreated(Process::init(&id(&request.container_id)?)))
        }
        shim_service::STATS => return Ok(Some(Parsed::Stats)),
        shim_service::ATTACH | shim_service::EXEC => return Ok(Some(Parsed::Stream)),
        _ => return Ok(None),
    };
    Ok(Some(Parsed::Ask(call, request)))
}

fn id(name: &str) -> Result<Id, Status> {
    Id::parse(name).map_err(|error| Status::new(Code::InvalidArgument, format!("failed to {error}")))
}

fn process(task: &str, exec: &str) -> Result<Process, Status> {
    let exec = if exec.is_empty() { None } else { Some(id(exec)?) };
    Ok(Process { task: id(task)?, exec })
}

/// What an update changes: a JSON object, whose members are the runtime's to understand.
fn resources(any: Option<Any>) -> Result<Vec<u8>, Status> {
    let text = any.map(|any| any.value).unwrap_or_default();
    match serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&text) {
        Ok(_resources) => Ok(text),
        Err(error) => {
            Err(Status::new(Code::InvalidArgument, format!("failed to read the resources: {error}")))
        }
    }
}

fn signal(number: u32) -> Result<i32, Status> {
    let valid = number <= SIGNAL_MAX;
    let number = i32::try_from(number).ok().filter(|_| valid);
    number.ok_or_else(|| Status::new(Code::InvalidArgument, "signals are numbered up to 64"))
}

/// A terminal's size; the kernel has 16 bits for each side.
pub(crate) fn size(columns: u32, rows: u32) -> Result<(u16, u16), Status> {
    match (u16::try_from(columns), u16::try_from(rows)) {
        (Ok(columns), Ok(rows)) => Ok((columns, rows)),
        _ => Err(Status::new(
            Code::InvalidArgument,
            format!("a terminal cannot have {columns}x{rows} characters"),
        )),
    }
}

/// The agent's options of a sandbox; a plain client sends none, or another runtime's, which are none of ours.
pub(crate) fn sandbox_options(
    request: &wire_sandbox::CreateSandboxRequest,
) -> Result<Option<wire::SandboxOptions>, Status> {
    let Some(any) =
        request.options.as_ref().filter(|any| any.type_url.ends_with("berth.shim.v1.SandboxOptions"))
    else {
        return Ok(None);
    };
    unpack(any).map(Some).map_err(|error| Status::new(Code::InvalidArgument, crate::with_causes(&error)))
}

#[cfg(test)]
mod tests;
