//! Answers in the form of Go's server, which clients know.

use berth_core::server::Refusal;
use futures::{Stream, TryStreamExt as _};
use http::{HeaderName, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use serde::Serialize;
use tower::BoxError;

use crate::causes::with_causes;

/// What an answer carries.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// An answer.
pub type Response = http::Response<Body>;

/// A text. Source: `http.Error`, which ends it with a newline.
pub(super) fn error(status: StatusCode, text: &str) -> Response {
    let mut response = of(status, "text/plain; charset=utf-8", format!("{text}\n"));
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A text as it is.
pub(super) fn text(status: StatusCode, text: &str) -> Response {
    of(status, "text/plain; charset=utf-8", text.to_owned())
}

/// What is told in place of what was asked for: its text alone, as by `go-restful`.
pub(super) fn refused(refusal: Refusal) -> Response {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = of(status, "text/plain; charset=utf-8", refusal.text);
    for (name, value) in refusal.headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().append(HeaderName::from_static(name), value);
        }
    }
    response
}

/// JSON of a value.
pub(super) fn json<T: Serialize>(value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => of(StatusCode::OK, "application/json", bytes),
        Err(failure) => error(StatusCode::INTERNAL_SERVER_ERROR, &with_causes(&failure)),
    }
}

/// Bytes of a kind.
pub(super) fn of(status: StatusCode, kind: &'static str, bytes: impl Into<Bytes>) -> Response {
    let mut response = Response::new(whole(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Bytes of a kind that come piece by piece, each of which is sent as it comes. Nothing is made that nobody takes.
pub(super) fn streamed<S>(kind: &'static str, pieces: S) -> Response
where
    S: Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
{
    let mut response = Response::new(StreamBody::new(pieces.map_ok(Frame::data)).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A body that is there.
pub(super) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// No body.
pub(super) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}
