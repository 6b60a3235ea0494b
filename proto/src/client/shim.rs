//! The shim service, typed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use prost::Message;

use super::attach::{self, AttachReceiver, AttachSender};
use super::call::{CallError, Client};
use crate::shim::{
    AttachStart, Event, EventsRequest, EventsResponse, ExecStart, ExecSyncRequest, ExecSyncResponse,
    ReopenLogRequest, ReopenLogResponse, StateRequest, StateResponse, StatsRequest, StatsResponse,
    attach_input::What, shim_service,
};

/// Longest wait for an answer that needs no more than a look at the shim's own state.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What an answer to ExecSync may take beyond the time that the process may take.
const EXEC_SYNC_GRACE: Duration = Duration::from_secs(120);

/// A connected shim. Clones share the connection.
#[derive(Debug, Clone)]
pub struct ShimClient {
    path: PathBuf,
    client: Client,
    /// Whether streams are on this connection too; otherwise each has one of its own, which ends with it.
    shares: bool,
}

impl ShimClient {
    /// Connects to a shim's socket.
    ///
    /// # Errors
    /// [`CallError::Connect`].
    pub async fn connect(path: &Path) -> Result<ShimClient, CallError> {
        Ok(ShimClient { path: path.to_owned(), client: Client::connect(path).await?, shares: false })
    }

    /// Has the streams to come be on this connection, with flow control. For shims of version
    /// [`FLOW_CONTROL`](crate::FLOW_CONTROL) and later: with one before, who does not read would hold up all.
    #[must_use]
    pub fn share(self) -> ShimClient {
        ShimClient { shares: true, ..self }
    }

    /// Handles to the connection: its clones, and what uses it.
    pub fn handles(&self) -> usize {
        self.client.handles()
    }

    /// Whether both are one connection.
    pub fn is_same(&self, other: &ShimClient) -> bool {
        self.client.is_same(&other.client)
    }

    /// Everything the shim knows.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn state(&self) -> Result<StateResponse, CallError> {
        self.call(shim_service::STATE, &StateRequest {}, Some(ANSWER_TIMEOUT)).await
    }

    /// The events after `since`; `None` asks to read the state again. Waits until there is one, for ever.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn events(&self, since: u64) -> Result<Option<Vec<Event>>, CallError> {
        let answer: EventsResponse = self.call(shim_service::EVENTS, &EventsRequest { since }, None).await?;
        Ok((!answer.resync).then_some(answer.events))
    }

    /// Runs a process in a container to its end. Dropping the future has it killed.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn exec_sync(&self, request: &ExecSyncRequest) -> Result<ExecSyncResponse, CallError> {
        let timeout = (request.timeout_ms > 0)
            .then(|| Duration::from_millis(request.timeout_ms).saturating_add(EXEC_SYNC_GRACE));
        self.call(shim_service::EXEC_SYNC, request, timeout).await
    }

    /// Connects to the streams of a container's init process.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn attach(&self, start: AttachStart) -> Result<(AttachSender, AttachReceiver), CallError> {
        self.stream(shim_service::ATTACH, What::Attach(start)).await
    }

    /// Runs a process in a container with its streams here.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn exec(&self, start: ExecStart) -> Result<(AttachSender, AttachReceiver), CallError> {
        self.stream(shim_service::EXEC, What::Exec(start)).await
    }

    /// Resource use of every running container.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn stats(&self) -> Result<StatsResponse, CallError> {
        self.call(shim_service::STATS, &StatsRequest {}, Some(ANSWER_TIMEOUT)).await
    }

    /// Closes and opens a container's log file again.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn reopen_log(&self, container_id: &str) -> Result<(), CallError> {
        let request = ReopenLogRequest { container_id: container_id.to_owned() };
        let ReopenLogResponse {} =
            self.call(shim_service::REOPEN_LOG, &request, Some(ANSWER_TIMEOUT)).await?;
        Ok(())
    }

    /// Waits until the connection is lost, which is how a shim's death shows, and returns why.
    pub async fn closed(&self) -> CallError {
        self.client.closed().await
    }

    /// Whether the connection is lost already.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    async fn call<Req: Message, Resp: Message + Default>(
        &self,
        method: &str,
        request: &Req,
        timeout: Option<Duration>,
    ) -> Result<Resp, CallError> {
        self.client.call(shim_service::NAME, method, request, timeout).await
    }

    async fn stream(&self, method: &str, first: What) -> Result<(AttachSender, AttachReceiver), CallError> {
        if self.shares {
            return attach::open_shared(&self.client, method, first).await;
        }
        attach::open_alone(&Client::connect(&self.path).await?, method, first).await
    }
}
