use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use futures::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// As long as any of these tests may take.
const LONG: Duration = Duration::from_secs(60);

/// Bytes that come at once.
const FRAME: usize = 64 << 10;

/// What an answer without end comes to, and how often a server answers: far more than a client takes and asks. One that has no bound finds
/// the server silent then, else a test whose clock stands still meanwhile would never fail.
const ENDLESS_BYTES: usize = 256 << 20;
const ANSWERS_MAX: usize = 2000;

/// What a request is answered with.
#[derive(Clone)]
enum Reply {
    /// These lines; then it ends.
    Ends(Vec<String>),
    /// These lines; then nothing more.
    Stays(Vec<String>),
    /// A whole answer.
    Whole(u16, Value),
    /// The same after a while.
    Late(Duration, Value),
    /// This, for ever.
    Endless(&'static str),
    /// These lines; then this one again and again.
    Trickles(Vec<String>, String),
}

/// How often a line comes that says nothing.
const TRICKLE: Duration = Duration::from_secs(20);

/// A server that answers each request with the next of its replies, and the last one to all that follow.
#[derive(Clone)]
struct Server(Arc<Mutex<Talk>>);

struct Talk {
    replies: VecDeque<Reply>,
    /// What was asked, and when.
    asked: Vec<(String, Instant)>,
}

impl Server {
    fn of(replies: Vec<Reply>) -> Self {
        Self(Arc::new(Mutex::new(Talk { replies: replies.into(), asked: Vec::new() })))
    }

    fn watched(&self) -> Watched<ConfigMap> {
        watched(&Clients::new(self.client()))
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let query = request.uri().query().unwrap_or_default().to_owned();
                Ok::<_, Infallible>(server.answer(&query).await)
            }
        });
        Client::new(crate::cluster::answers::Bounded(service), "default")
    }

    /// What was asked: whether for a list as a stream, in pages, or a watch, and from which version.
    fn asked(&self) -> Vec<String> {
        self.0.lock().unwrap().asked.iter().map(|(what, _)| what.clone()).collect()
    }

    /// Whole seconds from a request to the next one.
    fn pause_after(&self, request: usize) -> u64 {
        let talk = self.0.lock().unwrap();
        (talk.asked[request + 1].1 - talk.asked[request].1).as_secs()
    }

    async fn answer(&self, query: &str) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
        if self.0.lock().unwrap().asked.len() >= ANSWERS_MAX {
            return std::future::pending().await;
        }
        let reply = {
            let mut talk = self.0.lock().unwrap();
            talk.asked.push((asked(query), Instant::now()));
            if talk.replies.len() > 1 { talk.replies.pop_front().unwrap() } else { talk.replies[0].clone() }
        };
        // As a connection brings them.
        let pieces = |lines: Vec<String>| {
            lines.into_iter().flat_map(|line| {
                let whole = Bytes::from(format!("{line}\n"));
                let starts = (0..whole.len()).step_by(FRAME);
                starts.map(move |at| whole.slice(at..whole.len().min(at + FRAME)))
            })
        };
        let (code, pieces) = match reply {
            Reply::Ends(lines) => (200, stream::iter(pieces(lines)).boxed()),
            Reply::Stays(lines) => (200, stream::iter(pieces(lines)).chain(stream::pending()).boxed()),
            Reply::Whole(code, value) => (code, stream::iter(pieces(vec![value.to_string()])).boxed()),
            Reply::Late(after, value) => {
                tokio::time::sleep(after).await;
                (200, stream::iter(pieces(vec![value.to_string()])).boxed())
            }
            Reply::Endless(piece) => {
                let pieces = stream::repeat(Bytes::from(piece)).take(ENDLESS_BYTES / piece.len());
                (200, pieces.chain(stream::pending()).boxed())
            }
            Reply::Trickles(lines, again) => {
                let trickle = stream::repeat(Bytes::from(format!("{again}\n"))).then(|line| async move {
                    tokio::time::sleep(TRICKLE).await;
                    line
                });
                (200, stream::iter(pieces(lines)).chain(trickle).boxed())
            }
        };
        let body = StreamBody::new(pieces.map(|piece| Ok(Frame::data(piece)))).boxed_unsync();
        Response::builder().status(code).body(body).unwrap()
    }
}

fn watched(clients: &Clients) -> Watched<ConfigMap> {
    Watched::new(clients.clone(), Api::all, "metadata.name=m")
}

fn asked(query: &str) -> String {
    let value = |key: &str| {
        query
            .split('&')
            .filter_map(|part| part.split_once('='))
            .find(|(name, _)| *name == key)
            .map(|part| part.1)
    };
    let kind = match (value("watch"), value("sendInitialEvents")) {
        (Some(_), Some(_)) => "stream",
        (Some(_), None) => "watch",
        (None, _) => "pages",
    };
    let from = value("resourceVersion").unwrap_or_default();
    let is_bounded = value("resourceVersionMatch") == Some("NotOlderThan");
    assert_eq!(is_bounded, kind == "stream" || (kind == "pages" && !from.is_empty()), "{query}");
    let by = value("limit")
        .filter(|limit| *limit != "500")
        .map_or_else(String::new, |limit| format!(" by {limit}"));
    format!("{kind}{by} {}", value("continue").unwrap_or(from)).trim_end().to_owned()
}

fn map(name: &str, version: u64) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "a", "resourceVersion": version.to_string()}})
}

fn line(kind: &str, object: &Value) -> String {
    json!({"type": kind, "object": object}).to_string()
}

fn mark(version: u64, ends_list: bool) -> String {
    let annotations = if ends_list { json!({"k8s.io/initial-events-end": "true"}) } else { json!({}) };
    let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
    line("BOOKMARK", &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}))
}

fn failure(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": format!("no: {code}")})
}

fn list(version: u64, names: &[(&str, u64)], next: &str) -> Value {
    let items: Vec<Value> = names.iter().map(|(name, version)| map(name, *version)).collect();
    json!({"apiVersion": "v1", "kind": "ConfigMapList", "items": items,
        "metadata": {"resourceVersion": version.to_string(), "continue": next}})
}

/// A list as a stream.
fn listed(version: u64, names: &[(&str, u64)]) -> Vec<String> {
    let objects = names.iter().map(|(name, version)| line("ADDED", &map(name, *version)));
    objects.chain([mark(version, true)]).collect()
}

fn told(seen: Seen<ConfigMap>) -> String {
    let one = |object: ConfigMap| format!("{} {}", object.name_any(), object.resource_version().unwrap());
    match seen {
        Seen::Whole { objects, unread, .. } => {
            let unread = unread.into_iter().map(|one| format!("unread {}", one.name));
            format!("all {}", objects.into_iter().map(one).chain(unread).collect::<Vec<_>>().join(", "))
        }
        Seen::Unread(object) => format!("unread {} {} {}", object.namespace, object.name, object.bytes),
        Seen::Applied(object) => format!("is {}", one(object)),
        Seen::Gone(object) => format!("gone {}", one(object)),
        Seen::Failed(error) => format!("failed: {error}"),
    }
}

/// What is seen, and what was asked for it. A test of large answers has a clock of its own: how long they take to read here tells
/// nothing of the server.
async fn lives(replies: Vec<Reply>, count: usize) -> (Vec<String>, Vec<String>) {
    let server = Server::of(replies);
    let mut watched = server.watched();
    let mut seen = Vec::new();
    for _ in 0..count {
        let next = tokio::time::timeout(LONG, watched.next()).await;
        seen.push(told(next.unwrap_or_else(|_late| panic!("after {seen:?}: asked {:?}", server.asked()))));
    }
    (seen, server.asked())
}

#[tokio::test]
async fn a_list_that_comes_as_a_stream_goes_on_and_is_resumed_where_it_ended() {
    let mut first = vec![
        line("ADDED", &map("m", 3)),
        line("ADDED", &map("gone", 4)),
        mark(5, false),
        line("DELETED", &map("gone", 6)),
        line("MODIFIED", &map("m", 7)),
    ];
    first.extend([mark(8, true), line("MODIFIED", &map("m", 9)), mark(20, false)]);
    let second = vec![line("DELETED", &map("m", 21)), line("ADDED", &map("m", 22))];
    let replies =
        vec![Reply::Ends(first), Reply::Ends(second), Reply::Stays(vec![line("MODIFIED", &map("m", 23))])];
    let (seen, asked) = lives(replies, 5).await;
    assert_eq!(seen, ["all m 7", "is m 9", "gone m 21", "is m 22", "is m 23"]);
    assert_eq!(asked, ["stream", "watch 20", "watch 22"]);
}

#[tokio::test]
async fn a_server_that_streams_no_lists_is_asked_for_pages() {
    let replies = vec![
        Reply::Whole(422, failure(422)),
        Reply::Whole(200, list(7, &[("a", 1), ("b", 2)], "token")),
        Reply::Whole(200, list(7, &[("c", 3)], "")),
        Reply::Stays(vec![line("MODIFIED", &map("a", 8))]),
    ];
    let (seen, asked) = lives(replies, 2).await;
    assert_eq!(seen, ["all a 1, b 2, c 3", "is a 8"]);
    assert_eq!(asked, ["stream", "pages", "pages token", "watch 7"]);
}

#[tokio::test]
async fn a_version_that_is_kept_no_more_is_listed_anew_and_nobody_is_told() {
    for expired in [Reply::Whole(410, failure(410)), Reply::Ends(vec![line("ERROR", &failure(410))])] {
        let replies = vec![
            Reply::Ends(listed(7, &[("m", 3)])),
            Reply::Ends(vec![mark(9, false)]),
            expired,
            Reply::Stays(listed(30, &[("m", 3), ("n", 12)])),
        ];
        let (seen, asked) = lives(replies, 2).await;
        assert_eq!(seen, ["all m 3", "all m 3, n 12"]);
        assert_eq!(asked, ["stream", "watch 7", "watch 9", "stream"]);
    }
}

#[tokio::test]
async fn a_list_that_is_older_than_what_was_seen_is_not_believed_in_either_form() {
    let refused = || Reply::Whole(400, failure(400));
    let stale = [
        (vec![Reply::Ends(listed(8, &[]))], vec!["stream 9"]),
        (vec![refused(), Reply::Whole(200, list(8, &[], ""))], vec!["stream 9", "pages 9"]),
    ];
    for (stale, asked_for_it) in stale {
        let mut replies =
            vec![Reply::Ends([listed(7, &[("m", 3)]), vec![mark(9, false), "x".to_owned()]].concat())];
        replies.extend(stale);
        replies.push(Reply::Stays(listed(9, &[("m", 3)])));
        let (seen, asked) = lives(replies, 4).await;
        assert_eq!(seen[0], "all m 3");
        assert!(seen[1].contains("cannot be understood"), "{seen:?}");
        assert!(seen[2].contains("as of version 8, and version 9 was seen"), "{seen:?}");
        assert_eq!(seen[3], "all m 3");
        assert_eq!(asked, [vec!["stream"], asked_for_it, vec!["stream 9"]].concat());
    }
}

#[tokio::test]
async fn a_server_whose_data_are_of_an_earlier_time_is_believed_once_it_has_said_so() {
    let mut too_new = failure(504);
    too_new["details"] = json!({"causes": [{"reason": "ResourceVersionTooLarge"}]});
    let replies = vec![
        Reply::Ends([listed(90, &[("m", 80)]), vec!["x".to_owned()]].concat()),
        Reply::Whole(504, too_new),
        Reply::Stays([listed(7, &[("m", 3)]), vec![line("MODIFIED", &map("m", 8))]].concat()),
    ];
    let (seen, asked) = lives(replies, 4).await;
    assert!(seen[1].starts_with("failed"), "{seen:?}");
    assert_eq!([&seen[0], &seen[2], &seen[3]], ["all m 80", "all m 3", "is m 8"]);
    assert_eq!(asked, ["stream", "stream 90", "stream"]);
}

#[tokio::test]
async fn a_watch_that_tells_what_is_older_is_not_believed() {
    let lines =
        vec![line("DELETED", &map("m", 6)), line("MODIFIED", &map("m", 5)), line("MODIFIED", &map("m", 8))];
    let (seen, _) = lives(vec![Reply::Stays([listed(7, &[("m", 3)]), lines].concat())], 2).await;
    assert_eq!(seen, ["all m 3", "is m 8"]);
}

#[tokio::test]
async fn what_is_no_event_ends_the_watch_and_all_is_listed_anew() {
    for garbage in
        ["\u{0}\u{1}", "{\"type\":\"MODIFIED\"", "{}", "[]", "{\"type\":\"OTHER\",\"object\":{}}", "null"]
    {
        let replies = vec![
            Reply::Stays(
                [listed(7, &[("m", 3)]), vec![garbage.to_owned(), line("MODIFIED", &map("m", 9))]].concat(),
            ),
            Reply::Stays(listed(9, &[("m", 9)])),
        ];
        let (seen, asked) = lives(replies, 3).await;
        assert!(seen[1].contains("cannot be understood") && !seen[1].contains("MODIFIED"), "{seen:?}");
        assert_eq!((seen[2].as_str(), asked), ("all m 9", vec!["stream".to_owned(), "stream 7".to_owned()]));
    }
}

#[tokio::test]
async fn an_error_in_a_watch_is_told_and_the_watch_goes_on_where_it_was() {
    let replies = vec![
        Reply::Stays([listed(7, &[("m", 3)]), vec![line("ERROR", &failure(500))]].concat()),
        Reply::Stays(vec![line("MODIFIED", &map("m", 9))]),
    ];
    let (seen, asked) = lives(replies, 3).await;
    assert_eq!(seen, ["all m 3", "failed: no: 500", "is m 9"]);
    assert_eq!(asked, ["stream", "watch 7"]);
}

#[tokio::test(start_paused = true)]
async fn answers_without_end_are_given_up() {
    let piece: &'static str = Box::leak("x".repeat(1 << 20).into_boxed_str());
    let (seen, _) = lives(vec![Reply::Endless(piece)], 1).await;
    assert_eq!(
        seen,
        ["failed: the answer of the API server is not used: one line of it is longer than 64 MiB"]
    );

    let event: &'static str =
        Box::leak(format!("{}\n", line("ADDED", &map(&"n".repeat(1 << 16), 3))).into_boxed_str());
    let (seen, _) = lives(vec![Reply::Endless(event)], 1).await;
    assert_eq!(seen, ["failed: the answer of the API server is not used: the list has no end"]);

    let page = Reply::Whole(200, list(7, &[], "more"));
    let (seen, asked) = lives(vec![Reply::Whole(400, failure(400)), page], 1).await;
    assert!(seen[0].contains("more than 500000 objects"), "{seen:?}");
    assert_eq!(asked.len(), 1001);
}

/// An object with so many bytes in it.
fn padded(name: &str, version: u64, bytes: usize) -> Value {
    let mut object = map(name, version);
    object["data"] = json!({ "padding": "x".repeat(bytes) });
    object
}

const MEBIBYTE: usize = 1 << 20;

#[tokio::test(start_paused = true)]
async fn a_list_may_be_as_large_as_it_is() {
    let names: Vec<String> = (0..70).map(|number| format!("m{number:02}")).collect();
    let mut lines: Vec<String> = names.iter().map(|name| line("ADDED", &padded(name, 3, MEBIBYTE))).collect();
    lines.push(mark(9, true));
    let (seen, _) = lives(vec![Reply::Stays(lines)], 1).await;
    let all: Vec<String> = names.iter().map(|name| format!("{name} 3")).collect();
    assert_eq!(seen, [format!("all {}", all.join(", "))]);

    let page = |names: &[String], next: &str| {
        let mut page = list(9, &[], next);
        page["items"] = names.iter().map(|name| padded(name, 3, MEBIBYTE)).collect();
        Reply::Whole(200, page)
    };
    let replies = vec![
        Reply::Whole(400, failure(400)),
        page(&names, ""),
        page(&names[..40], "token"),
        page(&names[40..], ""),
        Reply::Stays(Vec::new()),
    ];
    let (seen, asked) = lives(replies, 1).await;
    assert_eq!(seen, [format!("all {}", all.join(", "))]);
    assert_eq!(asked[..4], ["stream", "pages", "pages by 50", "pages by 50 token"]);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_too_large_is_named_and_stops_no_other() {
    // In the order in which a server writes it.
    let object = |name: &str, version: u64, bytes: usize| {
        let (metadata, padding) = (&map(name, version)["metadata"], "x".repeat(bytes));
        format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{metadata},"data":{{"padding":"{padding}"}}}}"#
        )
    };
    let large = |kind: &str, name: &str, version| {
        format!(r#"{{"type":"{kind}","object":{}}}"#, object(name, version, 20 * MEBIBYTE))
    };
    let replies = vec![
        Reply::Ends(vec![
            line("ADDED", &map("a", 1)),
            large("ADDED", "m", 3),
            large("ADDED", "gone", 4),
            line("ADDED", &map("z", 5)),
            large("DELETED", "gone", 6),
            mark(7, true),
            large("MODIFIED", "m", 8),
            line("MODIFIED", &map("z", 9)),
            // What is gone may have been known: all is listed anew.
            large("DELETED", "a", 10),
        ]),
        Reply::Stays(listed(11, &[("z", 9)])),
    ];
    let (seen, asked) = lives(replies, 4).await;
    assert_eq!([&seen[0], &seen[2], &seen[3]], ["all a 1, z 5, unread m", "is z 9", "all z 9"]);
    assert!(seen[1].starts_with("unread a m 2097"), "{seen:?}");
    assert_eq!(asked, ["stream", "stream 9"]);

    let page = |item: String, next: &str| {
        let metadata = json!({ "resourceVersion": "7", "continue": next });
        Reply::Ends(vec![format!(
            r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{metadata},"items":[{item}]}}"#
        )])
    };
    let too_large = page(object("m", 3, 65 * MEBIBYTE), "behind");
    let replies = vec![
        Reply::Whole(400, failure(400)),
        page(object("a", 1, 0), "token"),
        too_large.clone(),
        too_large.clone(),
        too_large.clone(),
        too_large,
        page(object("z", 5, 0), ""),
        Reply::Stays(Vec::new()),
    ];
    let (seen, asked) = lives(replies, 1).await;
    assert_eq!(seen, ["all a 1, z 5, unread m"]);
    let by = |limit: &str| format!("pages{limit} token");
    assert_eq!(asked[2..6], [by(""), by(" by 50"), by(" by 5"), by(" by 1")]);
    assert_eq!(asked[6], "pages by 1 behind");
}

/// Whoever may write to an object says who wrote its fields, and when: the API server takes a time that we have no type for.
#[tokio::test]
async fn an_object_that_is_not_understood_stops_no_other() {
    let by = |fields: Value| {
        let at = "9999-12-31T23:59:59Z";
        json!([{ "manager": "x", "operation": "Update", "time": at, "fieldsType": "FieldsV1", "fieldsV1": fields }])
    };
    let with = |name: &str, version, key: &str, value: Value| {
        let mut object = map(name, version);
        object["metadata"][key] = value;
        object
    };
    let written = |name: &str, version| with(name, version, "managedFields", by(json!({})));
    let deep = (0..200).fold(json!({}), |inner, _| json!({ "f:x": inner }));
    let deep = with("deep", 5, "managedFields", by(deep));
    let broken = |name: &str, version| with(name, version, "creationTimestamp", json!("no time"));
    let replies = vec![Reply::Stays(vec![
        line("ADDED", &written("m", 3)),
        line("ADDED", &broken("odd", 4)),
        line("ADDED", &deep),
        line("ADDED", &map("z", 6)),
        mark(7, true),
        line("MODIFIED", &broken("odd", 8)),
        line("MODIFIED", &written("m", 9)),
    ])];
    let (seen, asked) = lives(replies, 3).await;
    assert_eq!(seen[0], "all m 3, z 6, unread deep, unread odd");
    assert!(seen[1].starts_with("unread a odd ") && seen[2] == "is m 9", "{seen:?}");
    assert_eq!(asked, ["stream"]);

    let mut page = list(7, &[("a", 1)], "");
    let more = [written("m", 3), broken("odd", 4), map("z", 6)];
    page["items"].as_array_mut().unwrap().extend(more);
    let replies = vec![Reply::Whole(400, failure(400)), Reply::Whole(200, page), Reply::Stays(Vec::new())];
    let (seen, _) = lives(replies, 1).await;
    assert_eq!(seen, ["all a 1, m 3, z 6, unread odd"]);
}

/// A server that answers from its cache may pass over the limit: then what is too large is not one object.
#[tokio::test(start_paused = true)]
async fn a_page_of_a_server_that_passes_over_the_limit_is_asked_for_without_a_version() {
    let mut all = list(9, &[], "");
    all["items"] = json!([padded("a", 3, 33 * MEBIBYTE), padded("b", 3, 33 * MEBIBYTE)]);
    let replies = vec![
        Reply::Ends([listed(7, &[("a", 3)]), vec!["x".to_owned()]].concat()),
        Reply::Whole(400, failure(400)),
        Reply::Whole(200, all.clone()),
        Reply::Whole(200, list(9, &[("a", 3), ("b", 3)], "")),
        Reply::Stays(Vec::new()),
    ];
    let (seen, asked) = lives(replies, 3).await;
    assert_eq!(seen[2], "all a 3, b 3");
    assert_eq!(asked[..4], ["stream", "stream 7", "pages 7", "pages"]);
    let replies = vec![Reply::Whole(400, failure(400)), Reply::Whole(200, all)];
    let (seen, asked) = lives(replies, 1).await;
    assert!(seen[0].contains("larger than 64 MiB"), "nothing is gone: {seen:?}");
    assert_eq!(asked.len(), 5);
}

#[tokio::test]
async fn a_slow_list_is_not_begun_anew_by_who_does_something_else_meanwhile() {
    let late = Reply::Late(Duration::from_millis(300), list(7, &[("m", 3)], ""));
    let server = Server::of(vec![Reply::Whole(400, failure(400)), late, Reply::Stays(Vec::new())]);
    let mut watched = server.watched();
    let seen = loop {
        // Whoever follows pods takes reports of the node meanwhile.
        match tokio::time::timeout(Duration::from_millis(20), watched.next()).await {
            Ok(seen) => break seen,
            Err(_elsewhere) => assert!(server.asked().len() <= 2, "{:?}", server.asked()),
        }
    };
    assert_eq!(told(seen), "all m 3");
}

/// A certificate that has come at last is not kept waiting by what was answered without it.
#[tokio::test]
async fn another_client_is_asked_at_once_however_long_the_one_before_is_to_be_left_alone() {
    let mut refused = failure(429);
    refused["details"] = json!({"retryAfterSeconds": 60});
    let server = Server::of(vec![Reply::Whole(429, refused)]);
    let other = Server::of(vec![Reply::Stays(listed(7, &[("m", 3)]))]);
    let clients = Clients::new(server.client());
    let mut watched = watched(&clients);
    assert!(told(watched.next().await).starts_with("failed"));
    let replaced = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        clients.replace(other.client().into());
    };
    let next = tokio::time::timeout(LONG / 2, watched.next());
    let (seen, ()) = tokio::join!(next, replaced);
    assert_eq!(told(seen.expect("it waits for the one before")), "all m 3");
    assert_eq!(server.asked(), ["stream"]);
}

#[tokio::test]
async fn nothing_is_watched_before_the_node_is_bootstrapped() {
    let server = Server::of(vec![Reply::Stays(listed(7, &[("m", 3)]))]);
    let clients = Clients::awaited();
    let mut watched = watched(&clients);
    tokio::time::timeout(Duration::from_millis(50), watched.next()).await.unwrap_err();
    clients.replace(server.client().into());
    assert_eq!(told(watched.next().await), "all m 3");
}

#[tokio::test]
async fn a_server_that_ends_every_watch_at_once_is_not_asked_all_the_time() {
    let server = Server::of(vec![Reply::Ends(listed(7, &[])), Reply::Ends(Vec::new())]);
    let mut watched = server.watched();
    assert_eq!(told(watched.next().await), "all ");
    tokio::time::timeout(Duration::from_secs(3), watched.next()).await.unwrap_err();
    // At once, after 0.8 s at least, and after 1.6 s more at least.
    let asked = server.asked();
    assert!((2..=4).contains(&asked.len()) && asked[1..].iter().all(|one| one == "watch 7"), "{asked:?}");
}

/// Its own data being behind is a reason too, of which nobody is told.
#[tokio::test(start_paused = true)]
async fn a_server_is_left_alone_for_as_long_as_it_asks() {
    let asks = |code| {
        let mut asks = failure(code);
        asks["details"] = json!({"retryAfterSeconds": 17});
        asks
    };
    let busy = || Reply::Whole(429, asks(429));
    let told_so = || line("ERROR", &asks(500));
    let mut behind = asks(504);
    behind["details"]["causes"] = json!([{"reason": "ResourceVersionTooLarge"}]);
    let whole = || Reply::Stays(listed(7, &[("m", 3)]));
    let changed = || Reply::Stays(vec![line("MODIFIED", &map("m", 9))]);
    for (replies, asking) in [
        (vec![busy(), whole()], ["stream", "stream"]),
        (vec![Reply::Whole(400, failure(400)), busy(), whole()], ["pages", "stream"]),
        (vec![Reply::Ends(listed(7, &[])), busy(), changed()], ["watch 7", "watch 7"]),
        (vec![Reply::Stays(vec![told_so()]), whole()], ["stream", "stream"]),
        (vec![Reply::Stays([listed(7, &[]), vec![told_so()]].concat()), changed()], ["stream", "watch 7"]),
        (
            vec![
                Reply::Ends([listed(90, &[]), vec!["x".to_owned()]].concat()),
                Reply::Whole(504, behind),
                whole(),
            ],
            ["stream 90", "stream"],
        ),
    ] {
        let last = replies.len();
        let server = Server::of(replies);
        let mut watched = server.watched();
        while server.asked().len() < last {
            tokio::time::timeout(LONG, watched.next()).await.expect("something is seen");
        }
        assert_eq!(server.asked()[last - 2..], asking);
        assert_eq!(server.pause_after(last - 2), 17, "{asking:?}");
    }
}

/// A server that cannot stream a list may take the request for one, and nobody may pass on the end of a watch. That something comes
/// now and then changes nothing.
#[tokio::test(start_paused = true)]
async fn a_stream_that_does_not_end_in_time_is_given_up() {
    let begun = || vec![line("ADDED", &map("m", 3))];
    let whole = || listed(7, &[("m", 3)]);
    let page = || Reply::Whole(200, list(7, &[("m", 3)], ""));
    let changed = || Reply::Stays(vec![line("MODIFIED", &map("m", 12))]);
    let failed = "failed: no answer of the API server: the list came half-way";
    for (first, next, seen, asked, after) in [
        (Reply::Stays(begun()), page(), [failed, "all m 3"], "pages", 30..=31),
        (Reply::Trickles(begun(), mark(5, false)), page(), [failed, "all m 3"], "pages", 310..=311),
        (Reply::Stays(whole()), changed(), ["all m 3", "is m 12"], "watch 7", 310..=310),
        (Reply::Trickles(whole(), mark(9, false)), changed(), ["all m 3", "is m 12"], "watch 9", 310..=310),
    ] {
        let server = Server::of(vec![first, next]);
        let mut watched = server.watched();
        for seen in seen {
            let next = tokio::time::timeout(2 * WATCH_WITHIN, watched.next()).await;
            assert_eq!(told(next.expect("something is seen")), seen);
        }
        assert_eq!(server.asked()[..2], ["stream", asked]);
        let pause = server.pause_after(0);
        assert!(after.contains(&pause), "{asked}: after {pause} s");
    }
}
