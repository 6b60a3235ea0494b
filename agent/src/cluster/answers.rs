//! What every answer of the API server passes before anybody reads it: it is bounded, and when the server is to be asked again is in its
//! status object, where client-go reads it too (`k8s.io/client-go/rest/request.go` `retryAfterSeconds`).

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response, header::RETRY_AFTER, response::Parts};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, combinators::UnsyncBoxBody};
use hyper::body::{Body as HttpBody, Bytes};
use kube::{
    client::Body,
    core::{Status, response::StatusDetails},
};
use tower::{BoxError, Service};

/// Most bytes of an answer: a thousand pods of the usual size, or a few hundred of the largest.
pub(super) const BYTES_MAX: usize = 64 << 20;
/// Most bytes of a status object that is to be read.
const STATUS_BYTES_MAX: usize = 1 << 20;

/// An answer is too large.
#[derive(Debug, thiserror::Error)]
#[error("what the API server answers is larger than {} MiB", BYTES_MAX >> 20)]
pub(super) struct TooLarge;

/// An answer's body.
type Answer = UnsyncBoxBody<Bytes, BoxError>;

/// The service, with answers as they are read.
#[derive(Debug, Clone)]
pub(super) struct Bounded<S>(pub(super) S);

impl<S, B> Service<Request<Body>> for Bounded<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Answer>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_watch =
            request.uri().query().is_some_and(|query| query.split('&').any(|one| one == "watch=true"));
        let answer = self.0.call(request);
        Box::pin(async move {
            let (parts, body) = answer.await.map_err(Into::into)?.into_parts();
            if let Some(seconds) = retry_after(&parts) {
                let status = with_retry_after(&parts, body, seconds).await?;
                return Ok(Response::from_parts(parts, status));
            }
            // A watch has no end; whoever reads it bounds its lines.
            let is_endless = is_watch && parts.status.is_success();
            let body = if is_endless { body.map_err(Into::into).boxed_unsync() } else { bounded(body) };
            Ok(Response::from_parts(parts, body))
        })
    }
}

fn bounded<B>(body: B) -> Answer
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let told = |error: BoxError| if error.is::<LengthLimitError>() { TooLarge.into() } else { error };
    Limited::new(body, BYTES_MAX).map_err(told).boxed_unsync()
}

/// Seconds after which the server wants to be asked again: only one that has too much to do, or is broken, is left alone.
fn retry_after(parts: &Parts) -> Option<u32> {
    let is_for_later = parts.status.as_u16() == 429 || parts.status.is_server_error();
    let written = parts.headers.get(RETRY_AFTER).filter(|_| is_for_later)?;
    written.to_str().ok()?.trim().parse().ok()
}

/// The status object of an answer, with these seconds in it. Whoever answers for the server may write plain text.
async fn with_retry_after<B>(parts: &Parts, body: B, seconds: u32) -> Result<Answer, BoxError>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let bytes = Limited::new(body, STATUS_BYTES_MAX).collect().await?.to_bytes();
    let mut status = serde_json::from_slice::<Status>(&bytes).unwrap_or_else(|_plain| {
        let text = String::from_utf8_lossy(&bytes);
        Status::failure(text.trim(), "").with_code(parts.status.as_u16())
    });
    let details = status.details.get_or_insert_with(|| StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: Vec::new(),
        retry_after_seconds: 0,
    });
    details.retry_after_seconds = seconds;
    let text = serde_json::to_vec(&status)?;
    Ok(Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use k8s_openapi::api::core::v1::{Pod, Secret};
    use kube::{Api, Client};

    use super::*;
    use crate::cluster::ApiError;

    /// A client whose every request is answered so: with a piece of a body, so many times.
    fn client(code: u16, retry_after: Option<&'static str>, piece: &'static str, times: usize) -> Client {
        let service = tower::service_fn(move |_: Request<Body>| async move {
            let pieces =
                stream::iter((0..times).map(move |_| Ok::<_, Infallible>(Frame::data(Bytes::from(piece)))));
            let mut answer = Response::builder().status(code);
            if let Some(seconds) = retry_after {
                answer = answer.header(RETRY_AFTER, seconds);
            }
            Ok::<_, Infallible>(answer.body(StreamBody::new(pieces)).unwrap())
        });
        Client::new(Bounded(service), "default")
    }

    async fn get(client: Client) -> ApiError {
        Api::<Pod>::namespaced(client, "a").get("p").await.map_err(ApiError::from).unwrap_err()
    }

    #[tokio::test]
    async fn when_to_ask_again_is_read_of_the_header() {
        let json = r#"{"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "wait"}"#;
        for (code, header, body, seconds, message) in [
            (429, Some("3"), json, 3, "wait"),
            (429, Some(" 3 "), "Too many requests.\n", 3, "Too many requests."),
            (503, Some("2"), "", 2, "the API server answered with status 503"),
            (500, Some("7"), "x", 7, "x"),
            (429, Some("tomorrow"), json, 0, "wait"),
            (429, Some("-1"), json, 0, "wait"),
            (429, None, json, 0, "wait"),
            (404, Some("3"), "x", 0, "x"),
        ] {
            let error = get(client(code, header, body, 1)).await;
            assert_eq!((error.retry_after().as_secs(), error.to_string()), (seconds, message.to_owned()));
        }
    }

    #[tokio::test]
    async fn an_answer_without_end_is_given_up_and_said_so() {
        let piece: &'static str = Box::leak("x".repeat(1 << 20).into_boxed_str());
        for code in [200, 404] {
            let error = get(client(code, None, piece, usize::MAX)).await.to_string();
            assert!(error.contains("larger than 64 MiB"), "{error}");
        }
        let error = get(client(429, Some("1"), piece, usize::MAX)).await.to_string();
        assert!(error.contains("length limit"), "{error}");
    }

    #[tokio::test]
    async fn an_answer_that_is_too_deep_is_no_answer() {
        let deep: &'static str = Box::leak(format!("{}1", r#"{"data":"#.repeat(100_000)).into_boxed_str());
        let api = Api::<Secret>::namespaced(client(200, None, deep, 1), "a");
        let error = ApiError::from(api.get("s").await.unwrap_err()).to_string();
        assert!(error.contains("cannot be understood"), "{error}");
    }
}
