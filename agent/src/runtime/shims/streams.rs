//! Processes of a pod's containers, as its shim runs and streams them.

use berth_core::id::SandboxId;
use berth_proto::{
    client::{AttachReceiver, AttachSender, CallError, ShimClient},
    shim::{AttachStart, ExecStart, ExecSyncRequest, ExecSyncResponse},
    shim_protocol,
};

use super::Shims;

impl Shims {
    /// The version of the protocol that a sandbox's shim speaks, which never changes while it lives.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn protocol(&self, sandbox: &SandboxId) -> Result<u32, CallError> {
        let shim = ShimClient::connect(&self.socket(sandbox)).await?;
        Ok(shim_protocol(&shim.state().await?))
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
        ShimClient::connect(&self.socket(sandbox)).await?.exec(start).await
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
        ShimClient::connect(&self.socket(sandbox)).await?.attach(start).await
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
        ShimClient::connect(&self.socket(sandbox)).await?.exec_sync(request).await
    }
}
