//! From HTTP to another protocol.

use std::time::Duration;

use berth_core::server::streaming::{Refusal, Upgrade, UpgradeRequest};
use berth_stream::negotiation;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Version, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::{
    causes::with_causes,
    server::{Response, answer::empty, requests::UnderWay},
};

/// How long the answer may take to be written, after which the connection has the other protocol.
const SWITCH_WITHIN: Duration = Duration::from_secs(30);

/// What a request asks to upgrade to.
///
/// # Errors
/// What the client is told in place of it.
pub(super) fn asked<B: hyper::body::Body>(request: &Request<B>) -> Result<Upgrade, Refusal> {
    let can_switch = request.extensions().get::<OnUpgrade>().is_some();
    Upgrade::of(UpgradeRequest {
        method: request.method().as_str(),
        connection: &values(request.headers(), &header::CONNECTION),
        upgrade: value(request.headers(), &header::UPGRADE),
        key: value(request.headers(), &header::SEC_WEBSOCKET_KEY),
        version: value(request.headers(), &header::SEC_WEBSOCKET_VERSION),
        is_whole: can_switch && request.version() == Version::HTTP_11 && request.body().is_end_stream(),
    })
}

/// Whether a request asks for a WebSocket, however well.
pub(super) fn is_web_socket<B>(request: &Request<B>) -> bool {
    Upgrade::is_web_socket(
        &values(request.headers(), &header::CONNECTION),
        value(request.headers(), &header::UPGRADE),
    )
}

/// What of a protocol is offered: the values of a header.
pub(super) fn offered<'r, B>(request: &'r Request<B>, name: &'static str) -> Vec<&'r str> {
    values(request.headers(), &HeaderName::from_static(name))
}

fn values<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Vec<&'h str> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect()
}

fn value<'h>(headers: &'h HeaderMap, name: &HeaderName) -> &'h str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Answers with 101, and serves the connection from then on. Until its end the request is under way: `ServeHTTP` of
/// `pkg/kubelet/server/server.go` comes back with the end of the session.
pub(super) fn switch<B, F>(
    request: Request<B>,
    to: Upgrade,
    protocol: Option<&'static str>,
    serve: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static,
) -> Response
where
    B: Send + 'static,
    F: Future<Output = ()> + Send,
{
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    let name = match to {
        Upgrade::Spdy => {
            headers.insert(header::UPGRADE, HeaderValue::from_static(negotiation::SPDY));
            negotiation::PROTOCOL_VERSION
        }
        Upgrade::WebSocket => {
            headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            let key = derive_accept_key(value(request.headers(), &header::SEC_WEBSOCKET_KEY).as_bytes());
            if let Ok(key) = HeaderValue::from_str(&key) {
                headers.insert(header::SEC_WEBSOCKET_ACCEPT, key);
            }
            negotiation::WEB_SOCKET_PROTOCOL
        }
    };
    if let Some(protocol) = protocol {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(protocol));
    }
    let under_way = request.extensions().get::<UnderWay>().cloned();
    tokio::spawn(async move {
        let _under_way = under_way;
        match timeout(SWITCH_WITHIN, hyper::upgrade::on(request)).await {
            Ok(Ok(upgraded)) => serve(TokioIo::new(upgraded)).await,
            Ok(Err(error)) => tracing::debug!(error = with_causes(&error), "a connection was not upgraded"),
            Err(_elapsed) => tracing::debug!("a client does not take the answer to its upgrade"),
        }
    });
    response
}

/// A protocol that is not spoken here.
pub(super) fn not_spoken(refusal: &negotiation::Refusal) -> Refusal {
    let accepted = refusal.accepted().iter();
    accepted.fold(Refusal::new(refusal.status(), refusal.to_string()), |answer, name| {
        answer.with(negotiation::ACCEPTED_PROTOCOL_VERSIONS, name)
    })
}
