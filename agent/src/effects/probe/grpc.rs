//! gRPC probes: `grpc.health.v1.Health/Check` over HTTP/2 without TLS. Source: `pkg/probe/grpc/grpc.go`; which code stands for
//! an HTTP status is in grpc's `doc/http-grpc-status-mapping.md`.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use berth_core::{
    id::PodUid,
    pod::{
        go_duration,
        port::probe::{ProbeAnswer, redial_after},
    },
};
use berth_proto::health::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_service,
};
use h2::client::{Builder, Connection, SendRequest};
use http::{HeaderMap, Request, StatusCode};
use prost::{Message, bytes::Bytes};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    USER_AGENT,
    socket::{self, DialError, ProbeStream},
    url::authority,
};
use crate::percent;

/// Bytes of an answer: it needs two.
const ANSWER_BYTES_MAX: usize = 4 << 10;

/// Bytes of its headers.
const HEADER_BYTES_MAX: u32 = 16 << 10;

/// Streams that the server lets be open, before it has said so: more than it can say, and another number than where it says nothing.
const STREAMS_UNTOLD: usize = usize::MAX - 1;

/// How long making a connection may take, if not as long as the pause after it (`minConnectTimeout` of grpc-go's `clientconn.go`).
const CONNECT_WITHIN: Duration = Duration::from_secs(20);

/// Codes of gRPC that are told in words of their own.
const OK: u32 = 0;
const UNIMPLEMENTED: u32 = 12;

/// Names of all codes, by number (`codes.Code.String`).
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];
const UNKNOWN: u32 = 2;
const INTERNAL: u32 = 13;
const UNAVAILABLE: u32 = 14;

/// A call that failed.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    code: u32,
    message: String,
}

/// Who asks, and what has to be driven meanwhile.
type Connected = (SendRequest<Bytes>, Connection<ProbeStream, Bytes>);

/// Why nobody can be asked.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    /// There is no connection.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// It is none of HTTP/2, or is lost.
    #[error(transparent)]
    Http2(#[from] h2::Error),
    /// The server has ended it and told no settings.
    #[error("error reading server preface: EOF")]
    Ended,
}

/// Asks whether a service is healthy. When it cannot be connected to, that is the answer.
pub(super) async fn ask(pod: &PodUid, host: &str, port: u16, service: &str, within: Duration) -> ProbeAnswer {
    ask_by(connect(pod, host, port), &authority(host, port), service, within).await
}

/// The same, but a connection that fails is tried again while there is time: a server that begins just now is asked yet.
pub(super) async fn ask_again(
    pod: &PodUid,
    host: &str,
    port: u16,
    service: &str,
    within: Duration,
) -> ProbeAnswer {
    ask_by(connect_again(pod, host, port), &authority(host, port), service, within).await
}

async fn ask_by(
    connecting: impl Future<Output = Result<Connected, ConnectError>>,
    address: &str,
    service: &str,
    within: Duration,
) -> ProbeAnswer {
    let deadline = Instant::now() + within;
    let (sender, connection) = match timeout_at(deadline, connecting).await {
        Ok(Ok(connected)) => connected,
        Ok(Err(error)) => {
            let failed = |why: String| format!("error: failed to connect service at {address:?}: {why}");
            return match error {
                ConnectError::Dial(error) => error.told(failed),
                ConnectError::Http2(_) | ConnectError::Ended => {
                    ProbeAnswer::Failure(failed(error.to_string()))
                }
            };
        }
        Err(_elapsed) => return late_connection(address, within),
    };
    let mut connection = pin!(connection);
    let mut check = pin!(timeout_at(deadline, check(sender, address, service)));
    let mut is_driven = true;
    let checked = loop {
        tokio::select! {
            biased;
            checked = &mut check => break checked,
            // Whatever ended it, the call learns of it.
            _ended = &mut connection, if is_driven => is_driven = false,
        }
    };
    match checked {
        Ok(Ok(ServingStatus::Serving)) => ProbeAnswer::Success,
        Ok(Ok(status)) => {
            let status = status.as_str_name();
            ProbeAnswer::Failure(format!("service unhealthy (responded with {status:?})"))
        }
        Ok(Err(Status { code: UNIMPLEMENTED, message })) => ProbeAnswer::Failure(format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
        )),
        Ok(Err(status)) => {
            let code = usize::try_from(status.code).ok().and_then(|code| CODES.get(code));
            let code = code.map_or_else(|| format!("Code({})", status.code), |name| (*name).to_owned());
            let message = status.message;
            ProbeAnswer::Failure(format!(
                "error: health rpc probe failed: rpc error: code = {code} desc = {message}"
            ))
        }
        Err(_elapsed) => {
            let within = go_duration(within);
            ProbeAnswer::Failure(format!("timeout: health rpc did not complete within {within}"))
        }
    }
}

/// A connection whose server has told its settings: before that it may be none of HTTP/2 (`NewHTTP2Client` of grpc-go's
/// `internal/transport/http2_client.go`).
async fn connect(pod: &PodUid, host: &str, port: u16) -> Result<Connected, ConnectError> {
    let stream = socket::connect(pod, host, port).await?;
    let builder = Builder::new()
        .enable_push(false)
        .max_header_list_size(HEADER_BYTES_MAX)
        .initial_window_size(65_535)
        .initial_max_send_streams(STREAMS_UNTOLD)
        .handshake::<_, Bytes>(stream);
    let (sender, mut connection) = builder.await?;
    poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
        Poll::Ready(Err(error)) => Poll::Ready(Err(ConnectError::Http2(error))),
        Poll::Ready(Ok(())) => Poll::Ready(Err(ConnectError::Ended)),
        Poll::Pending if connection.max_concurrent_send_streams() == STREAMS_UNTOLD => Poll::Pending,
        Poll::Pending => Poll::Ready(Ok(())),
    })
    .await?;
    Ok((sender, connection))
}

/// Goes on until there is one, or until nobody waits for it. That nobody could be asked for a name is no failure of the connection.
async fn connect_again(pod: &PodUid, host: &str, port: u16) -> Result<Connected, ConnectError> {
    let mut failures = 0;
    loop {
        let pause = redial_after(pod, failures);
        let why = match timeout(CONNECT_WITHIN.max(pause), connect(pod, host, port)).await {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(ConnectError::Dial(busy @ DialError::Busy { .. }))) => return Err(busy.into()),
            Ok(Err(error)) => error.to_string(),
            Err(elapsed) => elapsed.to_string(),
        };
        tracing::debug!(host, port, why, "a gRPC probe is not connected and tries again");
        sleep(pause).await;
        failures += 1;
    }
}

fn late_connection(address: &str, within: Duration) -> ProbeAnswer {
    let within = go_duration(within);
    ProbeAnswer::Failure(format!(
        "timeout: failed to connect service {address:?} within {within}: context deadline exceeded"
    ))
}

async fn check(sender: SendRequest<Bytes>, address: &str, service: &str) -> Result<ServingStatus, Status> {
    let transport = |error: h2::Error| Status { code: UNAVAILABLE, message: error.to_string() };
    let internal = |message: String| Status { code: INTERNAL, message };
    let mut sender = sender.ready().await.map_err(transport)?;
    let request =
        Request::post(format!("http://{address}/{}/{}", health_service::NAME, health_service::CHECK))
            .header("content-type", "application/grpc")
            .header("user-agent", USER_AGENT)
            .header("te", "trailers")
            .body(())
            .map_err(|error| internal(error.to_string()))?;
    let (response, mut stream) = sender.send_request(request, false).map_err(transport)?;
    stream.send_data(framed(service), true).map_err(transport)?;
    let (head, mut body) = response.await.map_err(transport)?.into_parts();
    if head.status != StatusCode::OK {
        return Err(of_http(head.status));
    }
    let mut answer = Vec::new();
    while let Some(bytes) = body.data().await {
        let bytes = bytes.map_err(transport)?;
        // What does not fit gets no more room to come.
        if answer.len() + bytes.len() > ANSWER_BYTES_MAX {
            return Err(internal(format!("the answer has more than {ANSWER_BYTES_MAX} bytes")));
        }
        let _closed = body.flow_control().release_capacity(bytes.len()).is_err();
        answer.extend_from_slice(&bytes);
    }
    let trailers = body.trailers().await.map_err(transport)?;
    status(&head.headers)
        .or_else(|| trailers.as_ref().and_then(status))
        .unwrap_or_else(|| Err(internal("server closed the stream without sending trailers".to_owned())))?;
    let message = unframed(&answer).ok_or_else(|| internal("the answer is no message".to_owned()))?;
    let response = HealthCheckResponse::decode(message).map_err(|error| internal(error.to_string()))?;
    Ok(response.status())
}

fn framed(service: &str) -> Bytes {
    let message = HealthCheckRequest { service: service.to_owned() }.encode_to_vec();
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0], len.as_slice(), &message].concat().into()
}

/// The message of an answer that has one, not compressed.
fn unframed(answer: &[u8]) -> Option<&[u8]> {
    let (prefix, message) = answer.split_first_chunk::<5>()?;
    let [flag, len @ ..] = prefix;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    (*flag == 0 && len == message.len()).then_some(message)
}

/// What headers or trailers say of the call.
fn status(headers: &HeaderMap) -> Option<Result<(), Status>> {
    let code =
        headers.get("grpc-status")?.to_str().ok().and_then(|code| code.parse().ok()).unwrap_or(UNKNOWN);
    if code == OK {
        return Some(Ok(()));
    }
    let message =
        headers.get("grpc-message").map(|message| percent::decoded(message.as_bytes())).unwrap_or_default();
    Some(Err(Status { code, message }))
}

fn of_http(status: StatusCode) -> Status {
    let code = match status.as_u16() {
        400 => INTERNAL,
        401 => 16,
        403 => 7,
        404 => UNIMPLEMENTED,
        429 | 502 | 503 | 504 => UNAVAILABLE,
        _ => UNKNOWN,
    };
    let reason = status.canonical_reason().unwrap_or_default();
    let message = format!("unexpected HTTP status code received from server: {} ({reason})", status.as_u16());
    Status { code, message }
}
