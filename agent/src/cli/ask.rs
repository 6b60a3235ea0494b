//! Asking the agent, and what to say when that fails.

use std::{path::Path, process::ExitCode};

use crate::{
    causes::with_causes,
    control::{
        Client, ClientError, Overview, PodObject,
        protocol::{Answer, Request},
    },
};

/// Why a command ended otherwise than well.
#[derive(Debug)]
pub(super) enum Failure {
    /// Exit code 1.
    Failed(String),
    /// Exit code 2.
    Usage(String),
    /// Exit code 3.
    NotRunning(String),
    /// Exit code 4.
    NotFound(String),
    /// The reader of the output has gone: nothing more to say.
    OutputClosed,
}

impl Failure {
    /// What to tell, and the exit code.
    pub(super) fn into_parts(self) -> (Option<String>, ExitCode) {
        match self {
            Self::Failed(message) => (Some(message), ExitCode::from(1)),
            Self::Usage(message) => (Some(message), ExitCode::from(2)),
            Self::NotRunning(message) => (Some(message), ExitCode::from(3)),
            Self::NotFound(message) => (Some(message), ExitCode::from(4)),
            Self::OutputClosed => (None, ExitCode::SUCCESS),
        }
    }

    /// A failure with the causes of an error.
    pub(super) fn from_error(error: &dyn std::error::Error) -> Self {
        Self::Failed(format!("failed to {}", with_causes(error)))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::OutputClosed;
        }
        Self::Failed(format!("failed to write the output: {error}"))
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let message = format!("failed to {}", with_causes(&error));
        match error {
            ClientError::NotRunning(_) => Self::NotRunning(message),
            ClientError::Forbidden(_)
            | ClientError::Connect { .. }
            | ClientError::Talk(_)
            | ClientError::NoAnswer => Self::Failed(message),
        }
    }
}

impl From<Answer> for Failure {
    /// An answer that is not the wanted one.
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::NotFound { message } => {
                Self::NotFound(format!("{message}; `berth pods` shows what is there"))
            }
            Answer::Failed { message } => Self::Failed(message),
            Answer::Pods(_) | Answer::Pod(_) | Answer::Exited { .. } | Answer::Left | Answer::Forwarded => {
                Self::Failed(
                    "the agent answered something else than was asked: are both of one version?".to_owned(),
                )
            }
        }
    }
}

/// All pods.
pub(super) async fn overview(socket: &Path) -> Result<Overview, Failure> {
    match Client::connect(socket).await?.ask(Request::Pods).await? {
        Answer::Pods(overview) => Ok(*overview),
        other => Err(other.into()),
    }
}

/// Which pod is meant.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub(super) struct PodName {
    /// Name of the pod, or namespace/name
    pod: String,
    /// Namespace of the pod
    #[arg(short, long, default_value = "default")]
    namespace: String,
}

/// Which container is meant.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub(super) struct ContainerName {
    #[command(flatten)]
    pub(super) pod: PodName,
    /// Container; the first when not given
    #[arg(short, long)]
    pub(super) container: Option<String>,
}

impl PodName {
    /// Asks for the pod. A static pod may be named without the node at the end.
    pub(super) async fn object(&self, socket: &Path) -> Result<PodObject, Failure> {
        let (namespace, name) = self.pod.split_once('/').unwrap_or((&self.namespace, &self.pod));
        let request = Request::Pod { namespace: namespace.to_owned(), name: name.to_owned() };
        let missing = match Client::connect(socket).await?.ask(request).await? {
            Answer::Pod(pod) => return Ok(*pod),
            answer @ Answer::NotFound { .. } => answer,
            other => return Err(other.into()),
        };
        let all = overview(socket).await?.pods;
        all.into_iter().find(|pod| is_static_name(pod, namespace, name)).ok_or_else(|| missing.into())
    }
}

fn is_static_name(object: &PodObject, namespace: &str, name: &str) -> bool {
    let metadata = &object.pod.metadata;
    let node = object.pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    metadata.namespace.as_deref() == Some(namespace)
        && metadata.name.as_deref().is_some_and(|full| full == format!("{name}-{node}"))
}
