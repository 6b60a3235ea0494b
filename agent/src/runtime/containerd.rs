//! Calls to containerd's gRPC API: in our namespace, with a deadline, with errors that say what was tried.

use std::{path::Path, time::Duration};

use berth_core::failure::{Failure, FailureKind};
use containerd_client::services::v1::{
    GetRequest, GetResponse,
    containers_client::ContainersClient,
    content_client::ContentClient,
    diff_client::DiffClient,
    events_client::EventsClient,
    images_client::ImagesClient,
    introspection_client::IntrospectionClient,
    leases_client::LeasesClient,
    sandbox::{ControllerStatusRequest, controller_client::ControllerClient, store_client::StoreClient},
    snapshots::snapshots_client::SnapshotsClient,
    streaming_client::StreamingClient,
    tasks_client::TasksClient,
    transfer_client::TransferClient,
    version_client::VersionClient,
};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::{
    Code, Response, Status,
    metadata::{Ascii, MetadataValue, errors::InvalidMetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use super::snapshotter::Shifting;
use crate::absent::Absence;

/// What containerd accepts and sends at most (`defaults.DefaultMaxRecvMsgSize`); tonic's own bound is 4 MiB.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Longest error that is taken: it comes in headers, of which hyper takes 16 KiB. As much as of a message, as by clients in Go (`defaultClientMaxHeaderListSize`
/// of `internal/transport/http2_client.go` of grpc-go).
const HEADERS_BYTES_MAX: u32 = 16 << 20;

/// Longest wait for the socket to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// First version that has the sandbox API as it is used here.
const MAJOR_MIN: u32 = 2;

/// A channel that names the namespace with every request.
pub type Service = InterceptedService<Channel, Namespace>;

/// Containerd. Clones share the connection, which is made anew when it is lost.
#[derive(Debug, Clone)]
pub struct Containerd {
    channel: Channel,
    namespace: Namespace,
    timeout: Duration,
    /// What is known of its snapshotters.
    shifting: Shifting,
}

/// Adds the `containerd-namespace` header.
#[derive(Debug, Clone)]
pub struct Namespace(MetadataValue<Ascii>);

impl Interceptor for Namespace {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
        request.metadata_mut().insert("containerd-namespace", self.0.clone());
        Ok(request)
    }
}

/// Why containerd cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The namespace cannot be a header.
    #[error("use containerd namespace {0:?}")]
    Namespace(String, #[source] InvalidMetadataValue),
    /// Nobody answers.
    #[error("reach containerd at {0} (is it running, and is containerRuntimeEndpoint its socket?)")]
    Unreachable(String, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// Too old.
    #[error(
        "use containerd {0}: Berth needs {MAJOR_MIN}.0 or later, for its sandbox API; 2.3 LTS is recommended"
    )]
    TooOld(String),
    /// Its sandbox service is not there.
    #[error(
        "use containerd {0}: its sandbox service did not start (`ctr plugins ls -d` shows which plugin failed, \
         and why); up to 2.1 that takes the plugins io.containerd.podsandbox.controller.v1.podsandbox, \
         io.containerd.cri.v1.runtime and .images, so disable io.containerd.grpc.v1.cri alone"
    )]
    NoSandboxes(String),
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[error("{act}{}{target} in containerd", if .target.is_empty() { "" } else { " " })]
pub struct CallError {
    act: &'static str,
    target: String,
    #[source]
    cause: Cause,
}

/// What came instead of an answer.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// Containerd's own word.
    #[error("{message}")]
    Refused {
        /// For decisions.
        code: Code,
        /// For people.
        message: String,
    },
    /// The connection is lost.
    #[error("containerd is not there: {0}")]
    Unreachable(String),
    /// No answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// An answer that lacks what it must have.
    #[error("the answer has no {0}")]
    Incomplete(&'static str),
}

macro_rules! clients {
    ($($(#[$doc:meta])* $name:ident: $client:ident;)*) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(&self) -> $client<Service> {
            $client::with_interceptor(self.channel.clone(), self.namespace.clone())
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
        })*
    };
}

impl Containerd {
    /// Connects and checks the version.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(socket: &Path, namespace: &str, timeout: Duration) -> Result<Self, ConnectError> {
        let value =
            namespace.parse().map_err(|error| ConnectError::Namespace(namespace.to_owned(), error))?;
        let unreachable = |error: Box<dyn std::error::Error + Send + Sync>| {
            ConnectError::Unreachable(socket.display().to_string(), error)
        };
        let channel = tokio::time::timeout(CONNECT_TIMEOUT, channel(socket))
            .await
            .map_err(|elapsed| unreachable(elapsed.into()))?
            .map_err(|error| unreachable(error.into()))?;
        let containerd =
            Self { channel, namespace: Namespace(value), timeout, shifting: Shifting::default() };
        let version = containerd.version().await.map_err(|error| unreachable(error.into()))?;
        if major(&version).is_some_and(|major| major < MAJOR_MIN) {
            return Err(ConnectError::TooOld(version));
        }
        if !containerd.has_sandboxes().await.map_err(|error| unreachable(error.into()))? {
            return Err(ConnectError::NoSandboxes(version));
        }
        tracing::info!(socket = %socket.display(), version, "connected to containerd");
        Ok(containerd)
    }

    pub(super) fn shifting(&self) -> &Shifting {
        &self.shifting
    }

    /// The version it calls itself.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn version(&self) -> Result<String, CallError> {
        let mut client = VersionClient::new(self.channel.clone());
        Ok(self.call("ask the version of", "", client.version(())).await?.version)
    }

    /// Whether its sandbox service answers, which depends on other plugins.
    async fn has_sandboxes(&self) -> Result<bool, CallError> {
        // The service itself refuses a sandbox without a name.
        let nothing = ControllerStatusRequest::default();
        match self.call("ask the sandbox service of", "", self.sandboxes().status(nothing)).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(Code::Unimplemented) => Ok(false),
            Err(error) if error.code().is_some() => Ok(true),
            Err(error) => Err(error),
        }
    }

    clients! {
        /// Container records.
        containers: ContainersClient;
        /// Blobs.
        content: ContentClient;
        /// Layers to file systems.
        diff: DiffClient;
        /// What happens.
        events: EventsClient;
        /// Image records.
        images: ImagesClient;
        /// What plugins it has.
        introspection: IntrospectionClient;
        /// What garbage collection leaves alone.
        leases: LeasesClient;
        /// Shims of sandboxes.
        sandboxes: ControllerClient;
        /// Sandbox records.
        sandbox_store: StoreClient;
        /// File systems of containers.
        snapshots: SnapshotsClient;
        /// Streams beside calls.
        streams: StreamingClient;
        /// Tasks.
        tasks: TasksClient;
        /// Pulls.
        transfers: TransferClient;
    }

    /// Waits for an answer, at most as long as the configuration allows.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call<T>(
        &self,
        act: &'static str,
        target: &str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CallError> {
        self.call_within(self.timeout, act, target, answer).await
    }

    /// Waits for an answer that is not worth as long a wait as the configuration allows.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call_within<T>(
        &self,
        limit: Duration,
        act: &'static str,
        target: &str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CallError> {
        let limit = limit.min(self.timeout);
        let cause = match tokio::time::timeout(limit, answer).await {
            Ok(Ok(response)) => return Ok(response.into_inner()),
            Ok(Err(status)) => Cause::from(status),
            Err(_elapsed) => Cause::Timeout(limit),
        };
        Err(CallError { act, target: target.to_owned(), cause })
    }

    /// Looks at a task; none when there is none, or its shim has died, though it is in containerd's books until that has cleaned up.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn task(&self, id: &str) -> Result<Option<GetResponse>, CallError> {
        let get = GetRequest { container_id: id.to_owned(), exec_id: String::new() };
        let mut client = self.tasks();
        match self.call("look at task", id, client.get(get)).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.is_shim_gone() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for the next message of an answer that comes in several, each at most as long as the configuration allows.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn next<T>(
        &self,
        act: &'static str,
        target: &str,
        message: impl Future<Output = Result<Option<T>, Status>>,
    ) -> Result<Option<T>, CallError> {
        self.call(act, target, async { message.await.map(Response::new) }).await
    }
}

/// A connection by a socket, whose address nobody looks at.
pub(super) async fn channel(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let socket = socket.to_owned();
    let connect = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://[::]").http2_max_header_list_size(HEADERS_BYTES_MAX);
    endpoint.connect_with_connector(connect).await
}

#[cfg(test)]
impl Containerd {
    /// One that is not asked anything before it is used.
    pub(super) fn unasked(channel: Channel, timeout: Duration) -> Self {
        let namespace = Namespace(MetadataValue::from_static("test"));
        Self { channel, namespace, timeout, shifting: Shifting::default() }
    }
}

impl From<Status> for Cause {
    fn from(status: Status) -> Self {
        // What containerd itself answers has no source; what tonic makes of a broken connection has.
        match std::error::Error::source(&status) {
            Some(source) => Self::Unreachable(crate::causes::with_causes(source)),
            None => Self::Refused { code: status.code(), message: status.message().to_owned() },
        }
    }
}

impl Absence for CallError {
    fn is_absence(&self) -> bool {
        self.is_not_found()
    }
}

impl CallError {
    /// An error about an answer that was looked into by the caller.
    #[must_use]
    pub fn new(act: &'static str, target: &str, cause: Cause) -> Self {
        Self { act, target: target.to_owned(), cause }
    }

    /// There is no such thing.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(Code::NotFound)
    }

    /// It is there already.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.code() == Some(Code::AlreadyExists)
    }

    /// Containerd does not reach the shim, or the shim has ended.
    #[must_use]
    pub fn is_shim_gone(&self) -> bool {
        matches!(self.code(), Some(Code::NotFound | Code::Unavailable))
    }

    /// Containerd's code, when it answered.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self.cause {
            Cause::Refused { code, .. } => Some(code),
            Cause::Unreachable(_) | Cause::Timeout(_) | Cause::Incomplete(_) => None,
        }
    }

    /// What came instead of an answer.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// What the core does about it.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        match self.cause {
            Cause::Unreachable(_) => FailureKind::RuntimeDown,
            // Containerd's own patience with a shim ended.
            Cause::Timeout(_) | Cause::Refused { code: Code::DeadlineExceeded, .. } => FailureKind::Unknown,
            Cause::Refused { .. } | Cause::Incomplete(_) => FailureKind::Transient,
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self { kind: error.kind(), message: crate::causes::with_causes(&error) }
    }
}

/// The first number of a version such as `v2.3.4` or `2.0.0-rc.1`; `None` for builds that have none.
fn major(version: &str) -> Option<u32> {
    version.trim_start_matches('v').split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use containerd_client::services::v1::GetResponse;

    use super::*;
    use crate::runtime::fake::{Ending, Fake, LENGTH};

    #[test]
    fn versions_as_containerd_writes_them() {
        let cases = [
            ("v2.3.4", Some(2)),
            ("1.7.30", Some(1)),
            ("2.0.0-rc.1+unknown", Some(2)),
            ("dev", None),
            ("", None),
        ];
        for (version, expected) in cases {
            assert_eq!(major(version), expected, "{version}");
        }
    }

    #[test]
    fn the_kind_of_a_failure_follows_from_what_came() {
        let failed = |cause| CallError::new("create task", "c1", cause).kind();
        assert_eq!(failed(Cause::Unreachable("gone".to_owned())), FailureKind::RuntimeDown);
        assert_eq!(failed(Cause::Timeout(Duration::from_secs(1))), FailureKind::Unknown);
        assert_eq!(failed(Cause::from(Status::unavailable("ttrpc: closed"))), FailureKind::Transient);
        assert_eq!(failed(Cause::from(Status::deadline_exceeded("context"))), FailureKind::Unknown);
    }

    /// As one has it that a registry has filled, or the path of a program.
    #[tokio::test]
    async fn a_long_word_of_containerd_is_no_loss_of_it() {
        let fake = Fake::answering(&[] as &[GetResponse], Ending::RefusedAtLength).await;
        let Containerd { channel, namespace, .. } = &fake.containerd;
        let mut client = VersionClient::with_interceptor(channel.clone(), namespace.clone());
        let error = fake.containerd.call("ask the version of", "", client.version(())).await.unwrap_err();
        let Cause::Refused { code, message } = error.cause() else { panic!("{error:?}") };
        assert_eq!((*code, message.len()), (Code::Unavailable, LENGTH));
    }

    #[tokio::test]
    async fn an_answer_is_waited_for_as_long_as_the_shorter_of_both_limits_says() {
        let [short, long] = [Duration::from_millis(1), Duration::from_secs(3600)];
        for (configured, limit) in [(short, long), (long, short)] {
            let channel = Endpoint::from_static("http://[::1]:1").connect_lazy();
            let containerd = Containerd::unasked(channel, configured);
            let nothing = std::future::pending::<Result<Response<()>, Status>>();
            let error = containerd.call_within(limit, "wait for", "c1", nothing).await.unwrap_err();
            assert!(matches!(error.cause(), Cause::Timeout(waited) if *waited == short), "{error:?}");
        }
    }

    #[tokio::test]
    async fn an_absent_containerd_is_named_with_advice() {
        let connected =
            Containerd::connect(Path::new("/nonexistent/c.sock"), "k8s.io", CONNECT_TIMEOUT).await;
        let error = connected.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("/nonexistent/c.sock") && error.contains("is it running"), "{error}");
    }
}
