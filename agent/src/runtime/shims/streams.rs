//! Processes of a pod's containers, as its shim runs and streams them, on one connection where that holds up nobody.

use berth_core::id::SandboxId;
use berth_proto::{
    client::{AttachReceiver, AttachSender, CallError, ShimClient},
    shim::{AttachStart, ExecStart, ExecSyncRequest, ExecSyncResponse},
};

use super::Shims;

impl Shims {
    /// The version of the protocol that a sandbox's shim speaks, which never changes while it lives.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn protocol(&self, sandbox: &SandboxId) -> Result<u32, CallError> {
        self.0.connections.version(sandbox, &self.socket(sandbox)).await
    }

    /// Runs a process in a container with its streams here. When both halves are dropped, it ends.
    ///
    /// # Errors
    /// See [`CallError`]. That the process could not be started comes out of the receiver.
    pub async fn exec(
        &self,
        sandbox: &SandboxId,
        start: ExecStart,
    ) -> Result<(AttachSender, AttachReceiver), CallError> {
        self.reach(sandbox).await?.exec(start).await
    }

    /// Connects to the streams of a container's own process: what it writes from now on. When both halves are dropped, the
    /// shim knows that this client has gone.
    ///
    /// # Errors
    /// See [`CallError`]. That there is no such container, or that it has ended, comes out of the receiver.
    pub async fn attach(
        &self,
        sandbox: &SandboxId,
        start: AttachStart,
    ) -> Result<(AttachSender, AttachReceiver), CallError> {
        self.reach(sandbox).await?.attach(start).await
    }

    /// Runs a process in a container to its end. When the future is dropped, it ends.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn exec_sync(
        &self,
        sandbox: &SandboxId,
        request: &ExecSyncRequest,
    ) -> Result<ExecSyncResponse, CallError> {
        self.reach(sandbox).await?.exec_sync(request).await
    }

    /// The connection that all share where the shim knows flow control, or one of its own.
    async fn reach(&self, sandbox: &SandboxId) -> Result<ShimClient, CallError> {
        let socket = self.socket(sandbox);
        match self.0.connections.shared(sandbox, &socket).await {
            Some(shared) => Ok(shared),
            None => ShimClient::connect(&socket).await,
        }
    }
}
