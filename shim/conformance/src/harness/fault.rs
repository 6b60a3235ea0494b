//! Shims that are wrong on purpose: one thing that a right shim does is done otherwise, between it and the suite.

use berth_proto::TASK_V3;
use berth_proto::sandbox::{
    CreateSandboxRequest, PlatformResponse, SandboxMetricsResponse, SandboxStatusResponse,
    WaitSandboxResponse, sandbox_service,
};
use berth_proto::task::{ConnectResponse, StateResponse, WaitResponse, task_service};
use berth_proto::ttrpc::{Code, Request, Status};
use prost::Message;

/// What a shim does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Errors of `StartSandbox` carry no code.
    StartErrorsUncoded,
    /// `PingSandbox` takes any sandbox for its own.
    PingsAnySandbox,
    /// `SandboxStatus` tells no time.
    StatusWithoutTime,
    /// `SandboxStatus` tells no process.
    StatusWithoutProcess,
    /// `SandboxStatus` never says that the sandbox is ready.
    StatusNeverReady,
    /// `WaitSandbox` tells no time.
    WaitWithoutTime,
    /// `StopSandbox` does nothing and says that it did.
    StopDoesNothing,
    /// `StopSandbox` is refused.
    StopRefused,
    /// `CreateSandbox` does not look at the network namespace.
    NetworkIgnored,
    /// `Shutdown` of the task service is not answered with success.
    TaskShutdownRefused,
    /// `ShutdownSandbox` is refused.
    ShutdownRefused,
    /// `Connect` tells no task.
    ConnectWithoutTask,
    /// `Platform` is another.
    PlatformOfAnother,
    /// `SandboxMetrics` is empty.
    MetricsEmpty,
    /// A sandbox that is given no network has one of its own.
    NetworkUnasked,
    /// Members have every namespace for themselves.
    NothingShared,
    /// A member whose spec does not name the network has one of its own.
    NetworkUnshared,
    /// `Wait` tells 0, however a task ended.
    ExitsAllWell,
    /// `State` of every task says that it has stopped.
    TasksAllStopped,
    /// `Delete` does nothing and says that it did.
    DeleteDoesNothing,
    /// The program's `delete` tells 0.
    CleanupTellsSuccess,
}

impl Fault {
    /// The call as such a shim takes it.
    pub(super) fn asked(self, mut request: Request) -> Request {
        let is = |service: &str, method: &str| request.service == service && request.method == method;
        match self {
            Self::NetworkIgnored if is(sandbox_service::NAME, sandbox_service::CREATE_SANDBOX) => {
                let asked = CreateSandboxRequest::decode(request.payload.as_slice()).unwrap();
                request.payload = CreateSandboxRequest { netns_path: String::new(), ..asked }.encode_to_vec();
            }
            // The sandbox has the same place in both, and the task in these.
            Self::StopDoesNothing if is(sandbox_service::NAME, sandbox_service::STOP_SANDBOX) => {
                request.method = sandbox_service::PING_SANDBOX.to_owned();
            }
            Self::DeleteDoesNothing if is(TASK_V3, task_service::DELETE) => {
                request.method = task_service::CONNECT.to_owned();
            }
            _ => {}
        }
        request
    }

    /// The answer of such a shim to a call, made from that of a right one.
    pub(super) fn answered(
        self,
        service: &str,
        method: &str,
        result: Result<Vec<u8>, Status>,
    ) -> Result<Vec<u8>, Status> {
        let is_sandbox = service == sandbox_service::NAME;
        let is_task = service == TASK_V3;
        match (self, method) {
            (Self::StartErrorsUncoded, sandbox_service::START_SANDBOX) if is_sandbox => {
                result.map_err(|status| Status::new(Code::Unknown, status.message))
            }
            (Self::PingsAnySandbox, sandbox_service::PING_SANDBOX) if is_sandbox => Ok(Vec::new()),
            (Self::StatusWithoutTime, sandbox_service::SANDBOX_STATUS) if is_sandbox => {
                altered(result, |status: &mut SandboxStatusResponse| status.created_at = None)
            }
            (Self::StatusWithoutProcess, sandbox_service::SANDBOX_STATUS) if is_sandbox => {
                altered(result, |status: &mut SandboxStatusResponse| status.pid = 0)
            }
            (Self::StatusNeverReady, sandbox_service::SANDBOX_STATUS) if is_sandbox => {
                altered(result, |status: &mut SandboxStatusResponse| {
                    status.state = "SANDBOX_NOTREADY".to_owned();
                })
            }
            (Self::WaitWithoutTime, sandbox_service::WAIT_SANDBOX) if is_sandbox => {
                altered(result, |end: &mut WaitSandboxResponse| end.exited_at = None)
            }
            (Self::StopRefused, sandbox_service::STOP_SANDBOX)
            | (Self::ShutdownRefused, sandbox_service::SHUTDOWN_SANDBOX)
                if is_sandbox =>
            {
                result.and_then(|_| Err(Status::new(Code::FailedPrecondition, "not now")))
            }
            (Self::TaskShutdownRefused, task_service::SHUTDOWN) if is_task => {
                result.and_then(|_| Err(Status::new(Code::FailedPrecondition, "not now")))
            }
            (Self::ConnectWithoutTask, task_service::CONNECT) if is_task => {
                altered(result, |told: &mut ConnectResponse| told.task_pid = 0)
            }
            (Self::PlatformOfAnother, sandbox_service::PLATFORM) if is_sandbox => {
                altered(result, |told: &mut PlatformResponse| {
                    if let Some(platform) = &mut told.platform {
                        platform.architecture = "pdp11".to_owned();
                    }
                })
            }
            (Self::MetricsEmpty, sandbox_service::SANDBOX_METRICS) if is_sandbox => {
                altered(result, |told: &mut SandboxMetricsResponse| told.metrics = None)
            }
            (Self::ExitsAllWell, task_service::WAIT) if is_task => {
                altered(result, |end: &mut WaitResponse| end.exit_status = 0)
            }
            (Self::TasksAllStopped, task_service::STATE) if is_task => {
                altered(result, |told: &mut StateResponse| {
                    told.set_status(berth_proto::process::Status::Stopped);
                })
            }
            (Self::DeleteDoesNothing, task_service::CONNECT) if is_task => result.map(|_| Vec::new()),
            _ => result,
        }
    }
}

fn altered<M: Message + Default>(
    result: Result<Vec<u8>, Status>,
    alter: impl FnOnce(&mut M),
) -> Result<Vec<u8>, Status> {
    let mut message = M::decode(result?.as_slice()).unwrap();
    alter(&mut message);
    Ok(message.encode_to_vec())
}
