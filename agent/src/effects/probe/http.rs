//! HTTP probes: one connection, one request, as much of the answer as is needed. Source: `pkg/probe/http/http.go` and
//! `request.go`; how Go's client follows redirects is in `net/http/client.go`.

use std::{io::ErrorKind, pin::pin, time::Duration};

use berth_core::{
    id::PodUid,
    pod::port::probe::{HttpProbe, ProbeAnswer},
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::{
    body::{Body as _, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use prost::bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::rustls::pki_types::ServerName;

use super::{
    USER_AGENT,
    socket::{self, DialError, ProbeStream},
    tls,
    url::{ProbeUrl, is_absolute},
};

/// Bytes of a body that are read (`maxRespBodyLength`).
const BODY_BYTES_MAX: usize = 10 << 10;

/// Headers of an answer, and bytes that they may come in.
const HEADERS_MAX: usize = 512;
const HEADER_BYTES_MAX: usize = 256 << 10;

/// Redirects that are followed (`RedirectChecker`).
const REDIRECTS_MAX: usize = 10;

/// How long the other side has to close the connection, as it was asked to, and what it may still say: whoever closes first
/// keeps the port for a minute, unless that is reset.
const GOODBYE_BYTES_MAX: usize = 64 << 10;
const GOODBYE: Duration = Duration::from_millis(100);

/// What Go says when an answer takes too long, and when its body does.
const LATE: &str = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
const LATE_BODY: &str =
    "context deadline exceeded (Client.Timeout or context cancellation while reading body)";

/// How the kubelet names itself to hooks.
const LIFECYCLE: &str = "kube-lifecycle/1.36";

/// How long a hook may take, which ends with its container: only against a bug.
const HOOK: Duration = Duration::from_secs(7 * 24 * 3600);

/// How it is asked.
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// Who asks.
    agent: &'static str,
    deadline: Instant,
    /// Whether somebody is shown what is answered.
    is_shown: bool,
}

/// Why there is no answer.
enum Failed {
    /// None has begun: the container's failure.
    Answer(String),
    /// The server speaks HTTP, and was asked by HTTPS.
    WithoutTls,
    /// It was broken off.
    Body(String),
    /// There is no connection.
    Dial(DialError),
}

/// Why a whole exchange came to nothing.
#[derive(Debug, thiserror::Error)]
pub(in crate::effects) enum Unasked {
    /// The container's failure.
    #[error("Get {url:?}: {why}")]
    Answer { url: String, why: String },
    /// The server speaks HTTP, and was asked by HTTPS.
    #[error("Get {url:?}: http: server gave HTTP response to HTTPS client")]
    WithoutTls { url: String },
    /// An answer had begun.
    #[error("{0}")]
    Body(String),
    /// There is no connection.
    #[error("Get {url:?}: {error}")]
    Dial { url: String, error: DialError },
}

impl Unasked {
    /// Whether nobody was asked, for lack of room on the node.
    pub(in crate::effects) fn is_of_the_node(&self) -> bool {
        match self {
            Self::Dial { error: DialError::Busy { .. }, .. } => true,
            Self::Dial { .. } | Self::Answer { .. } | Self::WithoutTls { .. } | Self::Body(_) => false,
        }
    }
}

impl Failed {
    fn of(self, url: &ProbeUrl) -> Unasked {
        let url = url.to_string();
        match self {
            Self::Answer(why) => Unasked::Answer { url, why },
            Self::WithoutTls => Unasked::WithoutTls { url },
            Self::Body(why) => Unasked::Body(why),
            Self::Dial(error) => Unasked::Dial { url, error },
        }
    }
}

/// The beginning of an answer.
struct Answer {
    status: StatusCode,
    location: Option<String>,
    body: Vec<u8>,
}

/// Asks, and judges the answer.
pub(super) async fn ask(pod: &PodUid, probe: &HttpProbe, within: Duration) -> ProbeAnswer {
    let terms = Terms { agent: USER_AGENT, deadline: Instant::now() + within, is_shown: true };
    match follow(pod, probe, terms).await {
        Ok(answer) => judged(&answer),
        Err(Unasked::Body(message)) => ProbeAnswer::Errored { state: "failure", message },
        Err(Unasked::Dial { url, error }) => error.told(|why| format!("Get \"{url}\": {why}")),
        Err(failed @ (Unasked::Answer { .. } | Unasked::WithoutTls { .. })) => {
            ProbeAnswer::Failure(failed.to_string())
        }
    }
}

/// Asks for a hook: whatever is answered is an answer.
pub(in crate::effects) async fn call(pod: &PodUid, get: &HttpProbe) -> Result<(), Unasked> {
    let terms = Terms { agent: LIFECYCLE, deadline: Instant::now() + HOOK, is_shown: false };
    match follow(pod, get, terms).await {
        Ok(_) | Err(Unasked::Body(_)) => Ok(()),
        Err(failed) => Err(failed),
    }
}

/// Who is asked, as events name it.
pub(in crate::effects) fn server(get: &HttpProbe) -> String {
    ProbeUrl::new(get.tls, &get.host, get.port, &get.path).authority()
}

/// Asks, and follows redirects to the same host.
async fn follow(pod: &PodUid, probe: &HttpProbe, terms: Terms) -> Result<Answer, Unasked> {
    let mut url = ProbeUrl::new(probe.tls, &probe.host, probe.port, &probe.path);
    let (headers, written_host) =
        headers(&probe.headers, terms.agent).map_err(|why| Failed::Answer(why).of(&url))?;
    let mut host = written_host;
    let failed = |url: &str, why: String| Unasked::Answer { url: url.to_owned(), why };
    let too_many = || format!("stopped after {REDIRECTS_MAX} redirects");
    for redirects in 0..=REDIRECTS_MAX {
        let answer = get(pod, &url, &headers, host.as_ref(), terms).await;
        let answer = answer.map_err(|why| why.of(&url))?;
        let Some(location) = answer.location.as_ref().filter(|_| is_redirect(answer.status)) else {
            return Ok(answer);
        };
        let next = url.redirected(location).map_err(|why| failed(location, why))?;
        if !next.host.eq_ignore_ascii_case(&probe.host) {
            return Ok(answer);
        }
        if redirects + 1 == REDIRECTS_MAX {
            return Err(failed(location, too_many()));
        }
        if is_absolute(location) {
            host = None;
        }
        url = next;
    }
    Err(failed(&url.to_string(), too_many()))
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Source: `DoHTTPProbe`. What a container answers is not shown when it fails, since it may be anything.
fn judged(answer: &Answer) -> ProbeAnswer {
    match answer.status.as_u16() {
        200..=299 => ProbeAnswer::Success,
        300..=399 => {
            let body = String::from_utf8_lossy(&answer.body);
            ProbeAnswer::Warning(format!("Probe terminated redirects, Response body: {body}"))
        }
        status => ProbeAnswer::Failure(format!("HTTP probe failed with statuscode: {status}")),
    }
}

/// The headers of a request and its `Host`, from those that are written. Source: `newProbeRequest`, and
/// `reqWriteExcludeHeader` of Go's `net/http/request.go`.
fn headers(
    written: &[(String, String)],
    agent: &'static str,
) -> Result<(HeaderMap, Option<HeaderValue>), String> {
    let mut headers = HeaderMap::new();
    let mut host = None;
    for (name, value) in written {
        let bad = || format!("net/http: invalid header field value for {name:?}");
        let header = HeaderName::try_from(name.as_str()).map_err(|_invalid| bad())?;
        let value = HeaderValue::try_from(value.trim()).map_err(|_invalid| bad())?;
        match header {
            header::HOST => {
                host.get_or_insert(value);
            }
            header::CONTENT_LENGTH | header::TRANSFER_ENCODING | header::TRAILER | header::CONNECTION => {}
            header => {
                headers.append(header, value);
            }
        }
    }
    for (name, default) in [(header::USER_AGENT, agent), (header::ACCEPT, "*/*")] {
        match headers.get(&name) {
            None => {
                headers.insert(name, HeaderValue::from_static(default));
            }
            Some(value) if value.is_empty() => {
                headers.remove(name);
            }
            Some(_) => {}
        }
    }
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    Ok((headers, host.filter(|host| !host.is_empty())))
}

async fn get(
    pod: &PodUid,
    url: &ProbeUrl,
    headers: &HeaderMap,
    host: Option<&HeaderValue>,
    terms: Terms,
) -> Result<Answer, Failed> {
    let late = |_elapsed| Failed::Answer(LATE.to_owned());
    let stream = timeout_at(terms.deadline, socket::connect(pod, &url.host, url.port)).await.map_err(late)?;
    let stream = stream.map_err(Failed::Dial)?;
    let own = HeaderValue::try_from(url.authority());
    let own = own.map_err(|_invalid| Failed::Answer("http: invalid Host header".to_owned()))?;
    let mut request = Request::get(url.target.as_str())
        .body(Empty::<Bytes>::new())
        .map_err(|error| Failed::Answer(error.to_string()))?;
    request.headers_mut().insert(header::HOST, host.cloned().unwrap_or(own));
    request.headers_mut().extend(headers.clone());
    if url.tls {
        let secured = timeout_at(terms.deadline, secure(stream, &url.host)).await.map_err(late)??;
        exchange(secured, request, terms).await
    } else {
        exchange(stream, request, terms).await
    }
}

async fn secure(
    stream: ProbeStream,
    host: &str,
) -> Result<tokio_rustls::client::TlsStream<ProbeStream>, Failed> {
    let failed = |why: String| Failed::Answer(why);
    let connector = tls::CONNECTOR.as_ref().ok_or_else(|| failed("tls: no cipher suites".to_owned()))?;
    let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(format!("tls: {error}")))?;
    connector.connect(name, stream).into_fallible().await.map_err(|(error, stream)| {
        if stream.is_http() { Failed::WithoutTls } else { failed(format!("tls: {}", socket::text(&error))) }
    })
}

/// One request and what is needed of its answer. The connection is driven here, so that it ends with the exchange.
async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    request: Request<Empty<Bytes>>,
    terms: Terms,
) -> Result<Answer, Failed> {
    let broken = |error: &hyper::Error| Failed::Answer(transport_error(error));
    let (mut sender, connection) = http1::Builder::new()
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEADER_BYTES_MAX)
        .title_case_headers(true)
        .allow_obsolete_multiline_headers_in_responses(true)
        .allow_spaces_after_header_name_in_responses(true)
        .ignore_invalid_headers_in_responses(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| broken(&error))?;
    let mut connection = Some(connection);
    let answer = {
        let mut driven = pin!(std::future::poll_fn(|cx| match &mut connection {
            Some(connection) => connection.poll_without_shutdown(cx),
            None => std::task::Poll::Pending,
        }));
        let mut is_driven = true;
        let mut asked = pin!(answer(&mut sender, request, terms));
        loop {
            tokio::select! {
                biased;
                answer = &mut asked => break answer,
                // Whatever ended it, the request learns of it.
                _ended = &mut driven, if is_driven => is_driven = false,
            }
        }
    };
    if let (Some(connection), Ok(_)) = (connection, &answer) {
        let stream = connection.into_parts().io.into_inner();
        let _closed = timeout(GOODBYE, goodbye(stream)).await.is_ok();
    }
    answer
}

/// Says over TLS that this is the end, and waits for the other side's.
async fn goodbye<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let mut said = [0; 4096];
    let mut bytes = 0;
    let mut is_open = stream.shutdown().await.is_ok();
    while is_open && bytes < GOODBYE_BYTES_MAX {
        let read = stream.read(&mut said).await.unwrap_or_default();
        bytes += read;
        is_open = read > 0;
    }
}

async fn answer(
    sender: &mut http1::SendRequest<Empty<Bytes>>,
    request: Request<Empty<Bytes>>,
    terms: Terms,
) -> Result<Answer, Failed> {
    let response = timeout_at(terms.deadline, sender.send_request(request)).await;
    let response = response.map_err(|_elapsed| Failed::Answer(LATE.to_owned()))?;
    let response = response.map_err(|error| Failed::Answer(transport_error(&error)))?;
    let status = response.status();
    let location = response.headers().get(header::LOCATION);
    let location = location.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let location = location.filter(|location| !location.is_empty());
    let body = timeout_at(terms.deadline, body(response, terms.is_shown)).await;
    let body = body.map_err(|_elapsed| Failed::Body(LATE_BODY.to_owned()))??;
    Ok(Answer { status, location, body })
}

/// As much of it as is shown. For a hook nothing is shown: one that is announced to be longer is not waited for (`discardHTTPRespBody`).
async fn body(mut response: Response<Incoming>, is_shown: bool) -> Result<Vec<u8>, Failed> {
    let mut body = Vec::new();
    let announced = response.body().size_hint().exact();
    let most = u64::try_from(BODY_BYTES_MAX).unwrap_or(u64::MAX);
    if !is_shown && announced.is_some_and(|bytes| bytes > most) {
        return Ok(body);
    }
    while let Some(frame) = response.body_mut().frame().await {
        let frame = frame.map_err(|error| Failed::Body(body_error(&error)))?;
        if let Ok(bytes) = frame.into_data() {
            let room = BODY_BYTES_MAX.saturating_sub(body.len());
            body.extend_from_slice(&bytes[..bytes.len().min(room)]);
            if bytes.len() > room {
                break;
            }
        }
    }
    Ok(body)
}

fn body_error(error: &hyper::Error) -> String {
    let is_cut = io_error(error).is_some_and(|source| source.kind() == ErrorKind::UnexpectedEof);
    if is_cut || error.is_incomplete_message() { "unexpected EOF".to_owned() } else { transport_error(error) }
}

/// Why there is no answer, as Go says it where that is known.
fn transport_error(error: &hyper::Error) -> String {
    match io_error(error) {
        Some(source) if source.raw_os_error().is_some() => {
            format!("read tcp: read: {}", socket::text(source))
        }
        Some(source) => socket::text(source),
        None if error.is_incomplete_message() || error.is_closed() || error.is_canceled() => "EOF".to_owned(),
        None => {
            format!("net/http: HTTP/1.x transport connection broken: {}", crate::causes::with_causes(error))
        }
    }
}

fn io_error(error: &hyper::Error) -> Option<&std::io::Error> {
    std::error::Error::source(error)?.downcast_ref()
}
