//! A request, from its head to its answer: what it means, who asks, whether they may, what is answered. Source: `InstallAuthFilter` of
//! `pkg/kubelet/server/server.go`.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use berth_core::{
    server::{Endpoint, RequestKind, Route, Verdict, forbidden, questions, route, undecided},
    short::short,
    time::Mono,
};
use http::{Method, Request, StatusCode, Version, header};
use hyper::body::{Body as _, Incoming};
use tracing::Instrument as _;

use super::{
    Response,
    answer::{self, text},
    authenticate::Authenticator,
    authorize::Authorizer,
    bearer_protocol,
    connection::{Asker, Peer, Port},
    held::hold,
};
use crate::{causes::with_causes, clock};

/// Bytes of a body. No endpoint reads one; the API server passes on what somebody sends along.
pub(super) const BODY_MAX: u64 = 64 << 10;
/// Between two lines about requests that were refused.
const TOLD_EACH: Duration = Duration::from_secs(10);
/// Bytes of a path or a name that are logged.
const LOGGED_MAX: usize = 256;

/// Answers what is allowed.
pub(super) trait Answers: Send + Sync + 'static {
    /// Answers a request of which everything was checked but what it asks for in particular.
    fn answer(&self, endpoint: Endpoint, request: Request<Incoming>)
    -> impl Future<Output = Response> + Send;
}

/// Who may.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) authenticator: Authenticator,
    pub(super) authorizer: Authorizer,
}

/// Answers a request.
pub(super) async fn answer<A: Answers>(
    port: &Port<A>,
    peer: &Peer,
    mut request: Request<Incoming>,
) -> Response {
    let busy = peer.state.begin();
    // Nobody else leaves the body out there.
    let is_bare_head = request.method() == Method::HEAD && request.version() == Version::HTTP_2;
    let (method, path) = (request.method().as_str(), request.uri().path());
    let kind = RequestKind::of(method, path, port.server_type).where_there_is(port.debugging);
    let under_way = port.requests.begin(kind);
    let span = tracing::debug_span!("request", peer = %peer.address, method, path = short(path.to_owned(), LOGGED_MAX));
    // A session has it, which lasts longer than its answer.
    request.extensions_mut().insert(under_way.clone());
    let response = allowed(port, peer, request).instrument(span).await;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        busy.stays();
        return response;
    }
    let response = if is_bare_head { without_body(response) } else { response };
    hold(response, peer, port.times, (busy, under_way))
}

/// The head of an answer alone. Source: RFC 9110, section 9.3.2.
fn without_body(response: Response) -> Response {
    let (mut head, body) = response.into_parts();
    if let Some(bytes) = body.size_hint().exact() {
        head.headers.entry(header::CONTENT_LENGTH).or_insert(bytes.into());
    }
    Response::from_parts(head, answer::empty())
}

async fn allowed<A: Answers>(port: &Port<A>, peer: &Peer, mut request: Request<Incoming>) -> Response {
    let route = route(request.method().as_str(), request.uri().path(), port.debugging);
    let asker = port.asker(peer);
    let user = match &port.gate {
        Some(gate) => let_in(gate, peer, &request, &route, asker).await,
        None => Ok(asker.from.to_string()),
    };
    let user = match user {
        Ok(user) => user,
        Err(refused) => {
            port.refusals.tell(peer, &request, refused.status());
            return refused;
        }
    };
    let endpoint = match route.target {
        Ok(endpoint) => endpoint,
        Err(refusal) => return answer::refused(refusal),
    };
    peer.state.admit();
    if request.body().size_hint().lower() > BODY_MAX {
        return text(StatusCode::PAYLOAD_TOO_LARGE, "Request entity too large");
    }
    request.extensions_mut().insert(port.parts.of(&user));
    // Nobody beyond here is to know it.
    request.headers_mut().remove(header::AUTHORIZATION);
    bearer_protocol::forget(request.headers_mut());
    let is_upgrade = is_upgrade(&endpoint, &request);
    let response = port.answers.answer(endpoint, request).await;
    if is_passable(&response, is_upgrade) {
        return response;
    }
    tracing::error!(status = %response.status(), "an endpoint gave an answer that nobody is to have");
    text(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error")
}

/// The user's name, of one who may.
async fn let_in(
    gate: &Gate,
    peer: &Peer,
    request: &Request<Incoming>,
    route: &Route,
    asker: Asker,
) -> Result<String, Response> {
    let Some(_waits) = peer.waiting.enter(request, peer.state.is_admitted()) else {
        return Err(text(
            StatusCode::TOO_MANY_REQUESTS,
            "too many long requests wait for an answer about who asks",
        ));
    };
    let Some(user) = gate.authenticator.user(&peer.certificates, request.headers(), asker).await else {
        return Err(text(StatusCode::UNAUTHORIZED, "Unauthorized"));
    };
    for asked in questions(&user, route) {
        match gate.authorizer.verdict(&asked, asker).await {
            Ok(Verdict::Allowed) => return Ok(user.name.clone()),
            Ok(Verdict::Denied) => {}
            Err(error) => {
                tracing::warn!(
                    user = user.name,
                    error = with_causes(&error),
                    "nobody can say whether somebody may"
                );
                return Err(text(StatusCode::INTERNAL_SERVER_ERROR, &undecided(&asked)));
            }
        }
    }
    tracing::debug!(user = user.name, "not allowed");
    Err(text(StatusCode::FORBIDDEN, &forbidden(&user, route)))
}

/// Whether the connection may become a stream of something else.
fn is_upgrade(endpoint: &Endpoint, request: &Request<Incoming>) -> bool {
    let is_asked = request.headers().contains_key(header::UPGRADE);
    endpoint.kind().is_stream()
        && is_asked
        && request.version() == Version::HTTP_11
        && *request.method() != Method::CONNECT
}

/// Nobody is sent elsewhere, and no connection becomes a stream unasked: who passes answers on may believe them. From a directory of the
/// node's logs the way leads to the same with or without a slash.
fn is_passable(response: &Response, is_upgrade: bool) -> bool {
    let status = response.status();
    let is_elsewhere = match response.headers().get(header::LOCATION) {
        Some(to) => status != StatusCode::MOVED_PERMANENTLY || !is_beside(to.as_bytes()),
        None => status.is_redirection() && status != StatusCode::NOT_MODIFIED,
    };
    let is_stream = status == StatusCode::SWITCHING_PROTOCOLS;
    !is_elsewhere && (!is_stream || is_upgrade) && (is_stream || !status.is_informational())
}

/// Whether a location is the same directory or one below it: a path, relative, of this server.
fn is_beside(location: &[u8]) -> bool {
    let path = location.split(|byte| *byte == b'?').next().unwrap_or_default();
    let is_path = !path.iter().any(|byte| matches!(byte, b':' | b'\\' | b'#') || byte.is_ascii_control());
    is_path && !path.is_empty() && !path.starts_with(b"/") && !path.windows(2).any(|pair| pair == b"//")
}

/// Tells of those who were not let in, now and then.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Untold>);

#[derive(Debug, Default)]
struct Untold {
    count: u64,
    next: Mono,
}

impl Refusals {
    fn tell(&self, peer: &Peer, request: &Request<Incoming>, status: StatusCode) {
        let Some(meanwhile) = self.is_due(clock::mono()) else { return };
        let (method, path) = (request.method().as_str(), short(request.uri().path().to_owned(), LOGGED_MAX));
        tracing::info!(peer = %peer.address, method, path, %status, meanwhile, "somebody was not let in");
    }

    /// How many there were since it was told last, when it is to be told again.
    fn is_due(&self, now: Mono) -> Option<u64> {
        let mut untold = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        untold.count += 1;
        if now < untold.next {
            return None;
        }
        untold.next = now + TOLD_EACH;
        Some(std::mem::take(&mut untold.count) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::answer::of, *};

    #[test]
    fn who_is_not_let_in_is_told_now_and_then() {
        let (refusals, at) = (Refusals::default(), |seconds| Mono(Duration::from_secs(seconds)));
        let told = [100, 101, 109, 110, 111, 130].map(|seconds| refusals.is_due(at(seconds)));
        assert_eq!(told, [Some(0), None, None, Some(2), None, Some(1)]);
    }

    #[test]
    fn cve_2020_8559_nobody_is_sent_elsewhere() {
        let answer = |status: u16, location: &'static str| {
            let mut response = of(StatusCode::from_u16(status).unwrap(), "text/plain", "");
            if !location.is_empty() {
                response.headers_mut().insert(header::LOCATION, http::HeaderValue::from_static(location));
            }
            response
        };
        for (status, location, is_upgrade, expected) in [
            (200, "", false, true),
            (304, "", false, true),
            (404, "", true, true),
            (500, "", true, true),
            (101, "", true, true),
            (101, "", false, false),
            (101, "https://x/", true, false),
            (100, "", true, false),
            (103, "", false, false),
            (200, "https://x/", false, false),
            (200, "logs/", false, false),
            (301, "", false, false),
            (301, "logs/", false, true),
            (301, "../logs?x=https://y/", false, true),
            (301, "https://x/", false, false),
            (301, "https:x", false, false),
            (301, "//x/", false, false),
            (301, "/x", false, false),
            (301, "\\\\x", false, false),
            (301, "a//x", false, false),
            (301, "?x", false, false),
            (302, "logs/", true, false),
            (307, "", true, false),
        ] {
            assert_eq!(is_passable(&answer(status, location), is_upgrade), expected, "{status} {location}");
        }
    }
}
