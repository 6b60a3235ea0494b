//! A further process in a container under a shim of ours, with its streams.

use std::time::Duration;

use berth_core::{
    id::{ContainerId, SandboxId},
    oci::{ConfigError, ExecTerminal, exec_process},
};
use berth_proto::{
    EXEC_BY_COMMAND,
    client::{AttachReceiver, AttachSender, CallError},
    shim::ExecStart,
};
use oci_spec::runtime::Spec;
use tokio::time::timeout;

use super::{Containerd, Shims, recorded_spec};

/// How long containerd may take to tell the spec of a container: who asks holds a place meanwhile.
const SPEC_WITHIN: Duration = Duration::from_secs(10);

/// Who tells how a container's own process runs.
pub trait Specs: Send + Sync + 'static {
    /// The OCI spec that a container was created with.
    fn spec(&self, id: &ContainerId) -> impl Future<Output = Result<Spec, String>> + Send;
}

impl Specs for Containerd {
    async fn spec(&self, id: &ContainerId) -> Result<Spec, String> {
        recorded_spec(self, id).await
    }
}

/// What to run where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exec {
    /// The sandbox of the pod.
    pub sandbox: SandboxId,
    /// The container.
    pub container: ContainerId,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Whether it reads what the caller sends.
    pub stdin: bool,
    /// Whether it gets a terminal.
    pub tty: bool,
}

/// Why a process was not started. Reads behind "failed to".
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// There is nothing to run.
    #[error("describe the process")]
    Describe(#[from] ConfigError),
    /// The shim does not answer.
    #[error("ask the shim")]
    Ask(#[source] CallError),
    /// An old shim has to be told how the container runs, and nobody says it.
    #[error("read the spec of the container: {0}")]
    Spec(String),
    /// The process has no form that a shim reads.
    #[error("write the process")]
    Write(#[from] serde_json::Error),
    /// The shim was not asked for it.
    #[error("start the process")]
    Start(#[source] CallError),
}

impl Exec {
    /// Starts the process. That it could not be started is told by the receiver. When both halves are dropped, it loses its
    /// streams.
    ///
    /// # Errors
    /// See [`ExecError`].
    pub async fn start<S: Specs>(
        &self,
        shims: &Shims,
        specs: &S,
    ) -> Result<(AttachSender, AttachReceiver), ExecError> {
        if self.command.is_empty() {
            return Err(ConfigError::NoCommand.into());
        }
        let container_id = self.container.to_string();
        let start = ExecStart { container_id, stdin: self.stdin, ..ExecStart::default() };
        let protocol = shims.protocol(&self.sandbox).await.map_err(ExecError::Ask)?;
        let start = if protocol >= EXEC_BY_COMMAND {
            ExecStart { command: self.command.clone(), terminal: self.tty, ..start }
        } else {
            ExecStart { process: self.process(specs).await?, ..start }
        };
        shims.exec(&self.sandbox, start).await.map_err(ExecError::Start)
    }

    /// The process as JSON, for a shim that does not know how the container's own runs.
    async fn process<S: Specs>(&self, specs: &S) -> Result<Vec<u8>, ExecError> {
        let spec = timeout(SPEC_WITHIN, specs.spec(&self.container)).await;
        let spec = spec.unwrap_or_else(|_elapsed| Err("containerd does not answer: see to it".to_owned()));
        let terminal = if self.tty { ExecTerminal::Own } else { ExecTerminal::None };
        let process = exec_process(&spec.map_err(ExecError::Spec)?, &self.command, terminal)?;
        Ok(serde_json::to_vec(&process)?)
    }
}
