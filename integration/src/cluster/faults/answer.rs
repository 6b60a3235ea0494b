//! Answers: as they come, cut, or made up.

use std::io;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::Response;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::NOW;
use super::request::Verb;

/// Pieces that wait for their reader.
const PIECES_MAX: usize = 64;
/// A piece of what has no end.
const PIECE_BYTES: usize = 64 << 10;
/// Where the version is in an event, as the API server and `serde_json` write it.
const VERSION: &str = "\"resourceVersion\":\"";

pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;
type Piece = io::Result<Bytes>;

fn failure(why: impl ToString) -> io::Error {
    io::Error::other(why.to_string())
}

fn broken() -> io::Error {
    failure("the connection is reset")
}

fn json_of(code: u16, value: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(value.to_string())).map_err(|never| match never {});
    let mut answer = Response::new(body.boxed_unsync());
    // A code that is none is a mistake of the test, which sees it.
    *answer.status_mut() = code.try_into().unwrap_or_default();
    answer.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    answer
}

fn status(code: u16, message: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message })
}

/// The server refuses.
pub(super) fn refusal(code: u16, retry_after: Option<u32>) -> Response<Body> {
    let mut answer = json_of(code, &status(code, &format!("refused with {code} by the test")));
    if let Some(seconds) = retry_after {
        answer.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    answer
}

/// The server does not answer.
pub(super) fn unavailable(failure: &anyhow::Error) -> Response<Body> {
    json_of(503, &status(503, &format!("the API server does not answer: {failure:#}")))
}

/// A body of pieces that somebody sends for as long as it is read.
fn streamed<F: Future<Output = ()> + Send + 'static>(send: impl FnOnce(mpsc::Sender<Piece>) -> F) -> Body {
    let (sender, mut pieces) = mpsc::channel(PIECES_MAX);
    tokio::spawn(send(sender));
    let pieces = futures::stream::poll_fn(move |context| pieces.poll_recv(context));
    StreamBody::new(futures::StreamExt::map(pieces, |piece| piece.map(Frame::data))).boxed_unsync()
}

/// As it comes.
pub(super) fn same(body: Incoming) -> Body {
    body.map_err(failure).boxed_unsync()
}

/// As it comes, until so many bytes.
pub(super) fn reset(mut body: Incoming, bytes: usize) -> Body {
    streamed(move |sender| async move {
        let mut left = bytes;
        while left > 0
            && let Some(Ok(frame)) = body.frame().await
        {
            let Ok(mut piece) = frame.into_data() else { continue };
            piece.truncate(left);
            left -= piece.len();
            if sender.send(Ok(piece)).await.is_err() {
                return;
            }
        }
        // What was sent goes out before the end does.
        sleep(Duration::from_millis(20)).await;
        drop(sender.send(Err(broken())).await);
    })
}

/// Events as they come, and those that are told; where it is to end after so many, these lines are the last ones.
pub(super) fn lines(
    mut body: Incoming,
    mut told: mpsc::Receiver<String>,
    mut version: String,
    end: Option<(usize, Vec<String>)>,
) -> Body {
    streamed(move |sender| async move {
        let mut rest = Vec::new();
        let (mut left, last) = end.map_or((usize::MAX, Vec::new()), |(events, last)| (events, last));
        'passing: while left > 0 {
            let more = tokio::select! {
                // Nothing that happens after the test has ended it is told.
                biased;
                line = told.recv() => match line {
                    Some(line) => {
                        let now = format!("{VERSION}{NOW}\"");
                        Bytes::from(format!("{}\n", line.replace(&now, &format!("{VERSION}{version}\""))))
                    }
                    None => return,
                },
                frame = body.frame() => match frame {
                    Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                    Some(Err(_)) => return drop(sender.send(Err(broken())).await),
                    None => return,
                },
                () = sender.closed() => return,
            };
            rest.extend_from_slice(&more);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                version = version_of(&line).unwrap_or(version);
                if sender.send(Ok(Bytes::from(line))).await.is_err() {
                    return;
                }
                left -= usize::from(left != usize::MAX);
                if left == 0 {
                    break 'passing;
                }
            }
        }
        for line in last {
            drop(sender.send(Ok(Bytes::from(format!("{line}\n")))).await);
        }
    })
}

/// The version of an event's object.
fn version_of(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line);
    let (_, rest) = text.split_once(VERSION)?;
    Some(rest.split_once('"')?.0.to_owned())
}

/// What a server that is behind says of its list.
pub(super) fn stale(verb: Verb, list: &Value) -> Response<Body> {
    let lines = match verb {
        Verb::StreamedList => as_stream(list),
        Verb::Watch => Vec::new(),
        _ => return json_of(200, list),
    };
    let body = streamed(move |sender| async move {
        for line in lines {
            drop(sender.send(Ok(Bytes::from(format!("{line}\n")))).await);
        }
        sender.closed().await;
    });
    Response::new(body)
}

/// The events by which a list comes as a stream.
fn as_stream(list: &Value) -> Vec<Value> {
    let kind = list["kind"].as_str().and_then(|kind| kind.strip_suffix("List")).unwrap_or_default();
    let typed = |mut object: Value| {
        object["kind"] = json!(kind);
        object["apiVersion"] = list["apiVersion"].clone();
        object
    };
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let mark = typed(json!({ "metadata": { "resourceVersion": list["metadata"]["resourceVersion"],
        "annotations": { "k8s.io/initial-events-end": "true" } } }));
    let added = items.into_iter().map(|item| json!({ "type": "ADDED", "object": typed(item) }));
    added.chain([json!({ "type": "BOOKMARK", "object": mark })]).collect()
}

/// A line that has no end.
pub(super) fn endless() -> Response<Body> {
    Response::new(streamed(|sender| async move {
        let piece = Bytes::from(vec![b'x'; PIECE_BYTES]);
        while sender.send(Ok(piece.clone())).await.is_ok() {}
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_told_as_a_stream() {
        let list = json!({ "kind": "PodList", "apiVersion": "v1", "metadata": { "resourceVersion": "7" },
            "items": [{ "metadata": { "name": "a" } }] });
        let told = as_stream(&list);
        assert_eq!(told[0]["object"]["kind"], "Pod");
        assert_eq!(told[0]["object"]["metadata"]["name"], "a");
        assert_eq!(told[1]["type"], "BOOKMARK");
        assert_eq!(told[1]["object"]["metadata"]["resourceVersion"], "7");
        assert_eq!(version_of(told[1].to_string().as_bytes()).as_deref(), Some("7"));
    }
}
