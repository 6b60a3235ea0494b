//! Processes.

use std::{net::SocketAddr, sync::atomic::Ordering};

use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    runtime::Handle,
    time::{Instant, timeout},
};

use super::{
    client::{Frame, SPDY, UPGRADE, WebSocket, ask, spdy},
    world::{LONG, World},
};
use crate::server::streaming::places::POD_MAX;

/// Tests with a shim of before flow control, in which each stream has a connection of its own, and with one whose streams share one.
macro_rules! with_each_shim {
    ($($test:ident,)*) => { $(
        mod $test {
            use super::World;

            #[tokio::test]
            async fn with_a_connection_of_its_own() {
                super::$test(World::with_shim(berth_proto::EXEC_BY_COMMAND).await).await;
            }

            #[tokio::test]
            async fn on_a_shared_connection() {
                super::$test(World::with_shim(berth_proto::FLOW_CONTROL).await).await;
            }
        }
    )* };
}

with_each_shim![
    a_websocket_carries_a_process_and_the_end_of_its_input,
    exit_codes_are_told_as_each_version_has_them,
    spdy_carries_a_process_and_the_end_of_its_input,
    a_command_ends_with_the_client_that_waits_for_it,
    a_terminal_has_the_size_of_the_clients,
    a_program_that_does_not_exist_is_told_on_the_error_channel,
    a_client_that_does_not_read_holds_its_own_process_and_nobody_else,
    a_thousand_clients_that_go_leave_nothing,
    what_a_command_has_written_is_the_answer,
];

/// Bytes that are taken of a process for a client that reads none: what is in queues here, and in sockets on both sides.
pub(super) const HELD_MAX: usize = 4 << 20;
const V4: &str = "v4.channel.k8s.io";
const V5: &str = "v5.channel.k8s.io";
const CAT: &str = "/exec/shop/web/app?command=cat&input=1&output=1&error=1";

pub(super) fn status(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(text)))
}

pub(super) fn success() -> Value {
    json!({ "metadata": {}, "status": "Success" })
}

async fn a_websocket_carries_a_process_and_the_end_of_its_input(world: World) {
    let talk = async {
        let mut client = WebSocket::open(world.address, CAT, V5).await;
        assert_eq!(client.next().await.unwrap(), [1], "the connection is there");
        client.send(b"\0hello ").await;
        assert_eq!(client.next().await.unwrap(), b"\x01hello ");
        client.send(&[b"\0".as_slice(), &[b'x'; 200_000]].concat()).await;
        client.send(b"\xff\0").await;
        let said = client.rest().await;
        assert_eq!(said[&1], [b'x'; 200_000]);
        assert_eq!(status(&said[&3]), success());
        assert_eq!(said.len(), 2);
    };
    timeout(LONG, talk).await.unwrap();
}

async fn exit_codes_are_told_as_each_version_has_them(world: World) {
    let target = "/exec/shop/web/app?command=fail&command=3&command=err&output=1&error=1";
    let talk = async {
        for (protocol, digit, is_base64) in [
            ("", 0, false),
            ("channel.k8s.io", 0, false),
            ("base64.channel.k8s.io", b'0', true),
            (V4, 0, false),
            (V5, 0, false),
        ] {
            let said = WebSocket::open(world.address, target, protocol).await.rest().await;
            let [out, err, last] = [1, 2, 3].map(|channel| said[&(channel + digit)].clone());
            if is_base64 {
                assert_eq!((out.as_slice(), err.as_slice()), (&b"b3V0"[..], &b"ZXJy"[..]));
                continue;
            }
            assert_eq!((out.as_slice(), err.as_slice()), (&b"out"[..], &b"err"[..]), "{protocol}");
            if protocol == V4 || protocol == V5 {
                let last = status(&last);
                assert_eq!(last["reason"], "NonZeroExitCode");
                assert_eq!(last["details"]["causes"], json!([{ "reason": "ExitCode", "message": "3" }]));
            } else {
                assert_eq!(last, b"command terminated with non-zero exit code: 3");
            }
        }
    };
    timeout(LONG, talk).await.unwrap();
}

async fn spdy_carries_a_process_and_the_end_of_its_input(world: World) {
    let talk = async {
        let mut client = spdy(world.address, CAT, V4).await;
        let mut streams = Vec::new();
        for kind in ["error", "stdin", "stdout", "stderr"] {
            streams.push(client.open(&[("streamtype", kind)]).await);
        }
        let [error, stdin, stdout, stderr] = streams[..] else { panic!("{streams:?}") };
        client.data(stdin, b"hello ", false).await;
        client.data(stdin, &[b'x'; 200_000], true).await;
        let said = client.rest(&[error, stdout, stderr]).await;
        assert_eq!(said[&stdout], [b"hello ".as_slice(), &[b'x'; 200_000]].concat());
        assert_eq!(status(&said[&error]), success());
        assert_eq!(said[&stderr], b"");
        // Then the connection is closed.
        client.rest(&[]).await;
    };
    timeout(LONG, talk).await.unwrap();
}

/// The one that upstream begins with too: a process begins when all its streams are there.
#[tokio::test]
async fn streams_that_nobody_asked_for_are_refused() {
    let world = World::start().await;
    let talk = async {
        let target = "/exec/shop/web/app?command=fail&command=0&command=err&output=1";
        let mut client = spdy(world.address, target, V4).await;
        let other = client.open(&[("streamtype", "other")]).await;
        let error = client.open(&[("streamtype", "error")]).await;
        let twice = client.open(&[("streamtype", "error")]).await;
        let stdout = client.open(&[("streamtype", "stdout")]).await;
        let mut frames = Vec::new();
        while let Some(frame) = client.next().await {
            frames.push(frame);
        }
        for frame in [Frame::Reset(other), Frame::Reply(error), Frame::Reset(twice), Frame::Reply(stdout)] {
            assert!(frames.contains(&frame), "{frame:?} is not in {frames:?}");
        }
    };
    timeout(LONG, talk).await.unwrap();
}

#[tokio::test]
async fn a_session_that_has_all_its_streams_takes_no_more() {
    let world = World::start().await;
    let talk = async {
        let mut client = spdy(world.address, CAT, V4).await;
        for kind in ["error", "stdin", "stdout", "stderr"] {
            let stream = client.open(&[("streamtype", kind)]).await;
            assert_eq!(client.next().await, Some(Frame::Reply(stream)));
        }
        let late = client.open(&[("streamtype", "stdin")]).await;
        assert_eq!(client.next().await, Some(Frame::Reset(late)));
    };
    timeout(LONG, talk).await.unwrap();
}

/// The client's end is noticed while the answer is awaited: nothing is left of the process.
async fn a_command_ends_with_the_client_that_waits_for_it(world: World) {
    let talk = async {
        let mut client = TcpStream::connect(world.address).await.unwrap();
        let request = "POST /run/shop/web/app?cmd=cat HTTP/1.1\r\nhost: node\r\n\r\n";
        client.write_all(request.as_bytes()).await.unwrap();
        while world.seen.running.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        drop(client);
        while world.seen.running.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, talk).await.unwrap();
}

async fn a_terminal_has_the_size_of_the_clients(world: World) {
    let target = "/exec/shop/web/app?command=cat&input=1&output=1&tty=1";
    let talk = async {
        let mut client = WebSocket::open(world.address, target, V5).await;
        client.send(b"\x04{\"Width\":0,\"Height\":24}").await;
        client.send(b"\x04{\"Width\":80,\"Hei").await;
        client.send(b"\x04ght\":24}").await;
        assert_eq!(client.next().await.unwrap(), [1]);
        assert_eq!(client.next().await.unwrap(), b"\x0180x24\n");

        let mut client = spdy(world.address, target, V4).await;
        for kind in ["error", "stdin", "stdout"] {
            client.open(&[("streamtype", kind)]).await;
        }
        let resize = client.open(&[("streamtype", "resize")]).await;
        client.data(resize, b"{\"Width\":100,\"Height\":50}\n", false).await;
        let told = loop {
            if let Some(Frame::Data { bytes, .. }) = client.next().await {
                break bytes;
            }
        };
        assert_eq!(told, b"100x50\n");
    };
    timeout(LONG, talk).await.unwrap();
}

async fn a_program_that_does_not_exist_is_told_on_the_error_channel(world: World) {
    let talk = async {
        let target = "/exec/shop/web/app?command=none&output=1";
        let said = WebSocket::open(world.address, target, V4).await.rest().await;
        let last = status(&said[&3]);
        let message = last["message"].as_str().unwrap();
        assert!(
            message.starts_with(
                "Internal error occurred: error executing command in container: failed to exec in container: \
                 failed to start exec: "
            ),
            "{message}"
        );
        assert!(
            message.contains("OCI runtime exec failed: [\"none\"]: executable file not found in $PATH"),
            "{message}"
        );
        assert_eq!((&last["reason"], &last["code"]), (&json!("InternalError"), &json!(500)));
        let said = WebSocket::open(world.address, "/exec/shop/web/app?output=1", V4).await.rest().await;
        assert!(
            status(&said[&3])["message"].as_str().unwrap().contains("describe the process"),
            "no command"
        );
    };
    timeout(LONG, talk).await.unwrap();
}

async fn a_client_that_does_not_read_holds_its_own_process_and_nobody_else(world: World) {
    let talk = async {
        let target = "/exec/shop/web/app?command=flood&output=1";
        let mut slow = [
            WebSocket::open(world.address, target, V5).await,
            WebSocket::open(world.address, target, V5).await,
        ];
        let mut slow_spdy = spdy(world.address, target, V4).await;
        for kind in ["error", "stdout"] {
            slow_spdy.open(&[("streamtype", kind)]).await;
        }
        for _ in 0..50 {
            let mut other = WebSocket::open(world.address, CAT, V5).await;
            other.send(b"\0hello").await;
            other.send(b"\xff\0").await;
            assert_eq!(other.rest().await[&1], b"hello");
        }
        let flooded = world.seen.flooded.load(Ordering::SeqCst);
        assert!(flooded < 3 * HELD_MAX, "{flooded} bytes were taken for clients that read none");
        // Whoever reads gets on, and what was held is there.
        let mut count = 0;
        while count < 1 << 20 {
            count += slow[0].next().await.unwrap().len();
        }
        drop(slow);
    };
    timeout(LONG, talk).await.unwrap();
}

/// A client that begins a session of one kind or another, and goes in the middle of it.
async fn comes_and_goes(address: SocketAddr, round: u32) {
    let target = match round % 4 {
        0 => "/attach/shop/web/app?input=1&output=1",
        1 => CAT,
        2 => "/exec/shop/web/app?command=flood&output=1",
        _ => "/portForward/shop/web?port=1",
    };
    if round % 8 < 4 && round % 4 != 3 {
        let mut client = spdy(address, target, V4).await;
        for kind in ["error", "stdin", "stdout", "stderr"] {
            client.open(&[("streamtype", kind)]).await;
        }
    } else {
        drop(WebSocket::open(address, target, V4).await.next().await);
    }
}

/// Source: attach leaks of upstream; a session leaves no task, connection or place.
async fn a_thousand_clients_that_go_leave_nothing(world: World) {
    let talk = async {
        let alive = || Handle::current().metrics().num_alive_tasks();
        let nothing_is_left = || {
            // A shared connection is kept for some seconds.
            let connections = world.seen.connections.load(Ordering::SeqCst);
            let running = world.seen.running.load(Ordering::SeqCst);
            connections <= 1 && running == 0 && has_all_places(&world)
        };
        // What is made with the first of each kind, and kept, is no leak.
        for round in 0..8 {
            comes_and_goes(world.address, round).await;
        }
        while !nothing_is_left() {
            tokio::task::yield_now().await;
        }
        let before = alive();
        for round in 0..1000 {
            comes_and_goes(world.address, round).await;
        }
        while alive() > before || !nothing_is_left() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, talk).await.unwrap();
}

pub(super) fn for_spdy(version: &'static str) -> Vec<(&'static str, &'static str)> {
    vec![UPGRADE, SPDY, ("x-stream-protocol-version", version)]
}

pub(super) fn for_websocket(protocol: &'static str) -> Vec<(&'static str, &'static str)> {
    vec![
        UPGRADE,
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-protocol", protocol),
    ]
}

/// No request that is refused gets a connection, and none is sent elsewhere.
#[tokio::test]
async fn cve_2020_8559_no_answer_is_a_redirect_or_an_upgrade_without_a_session() {
    let world = World::start().await;
    let talk = async {
        for (method, target, headers, status, text) in [
            (
                "GET",
                "/exec/shop/web/app?command=cat",
                for_spdy(V4),
                400,
                "you must specify at least 1 of stdin, stdout, stderr",
            ),
            ("GET", "/exec/shop/none/app?output=1", for_spdy(V4), 404, "pod does not exist"),
            ("GET", "/exec/shop/web/none?output=1", for_spdy(V4), 500, "container not found (\"none\")"),
            ("GET", "/exec/shop/web/ended?output=1", for_spdy(V4), 500, "container not found (\"ended\")"),
            ("GET", "/attach/shop/web/u2/app?output=1", for_spdy(V4), 500, "pod web_shop not found"),
            (
                "GET",
                "/attach/shop/web/ended?output=1",
                for_spdy(V4),
                500,
                "container ended not found in pod web_shop",
            ),
            ("GET", "/exec/shop/web/app?output=1", vec![], 500, "Upgrade request required"),
            ("GET", "/exec/shop/web/app?output=1", vec![UPGRADE, SPDY], 400, ""),
            ("POST", "/exec/shop/web/app?output=1", for_spdy("v9.channel.k8s.io"), 403, ""),
            ("GET", "/exec/shop/web/app?output=1", for_websocket("v9.channel.k8s.io"), 403, ""),
            ("POST", "/exec/shop/web/app?output=1", for_websocket(V4), 405, ""),
            ("GET", "/portForward/shop/none", for_spdy("portforward.k8s.io"), 404, "pod does not exist"),
            ("GET", "/portForward/shop/web", for_spdy(V4), 403, ""),
            ("GET", "/portForward/shop/web", for_websocket(V4), 400, "query parameter \"port\" is required"),
            (
                "GET",
                "/portForward/shop/web",
                for_websocket("v9.channel.k8s.io"),
                400,
                "query parameter \"port\" is required",
            ),
            ("GET", "/portForward/shop/none", for_websocket(V4), 400, "query parameter \"port\" is required"),
            ("GET", "/portForward/shop/none?port=1", for_websocket(V4), 404, "pod does not exist"),
            ("GET", "/portForward/shop/none", vec![], 404, "pod does not exist"),
            ("GET", "/portForward/shop/none", vec![UPGRADE, SPDY], 404, "pod does not exist"),
            ("GET", "/portForward/shop/web?port=1", for_websocket("v9.channel.k8s.io"), 403, ""),
            ("GET", "/portForward/shop/web", for_websocket("SPDY/3.1+x.k8s.io"), 403, ""),
            ("GET", "/portForward/shop/web", vec![], 500, "Upgrade request required"),
        ] {
            let answer = ask(world.address, method, target, &headers).await;
            assert_eq!(answer.status, status, "{target} {headers:?}: {}", answer.head);
            assert!(!answer.head.to_ascii_lowercase().contains("location:"), "{}", answer.head);
            let said = answer.text().await;
            assert!(text.is_empty() || said == text, "{target}: {said}");
        }
        // A body would be read as the first bytes of the other protocol.
        let with_body = [for_spdy(V4), vec![("content-length", "5")]].concat();
        let answer = ask(world.address, "POST", "/exec/shop/web/app?output=1", &with_body).await;
        assert_eq!(answer.status, 400, "{}", answer.head);
    };
    timeout(LONG, talk).await.unwrap();
}

#[tokio::test]
async fn a_pod_that_has_all_its_sessions_gets_no_more() {
    let world = World::start().await;
    let talk = async {
        let pod = world.streaming.view.pods().remove(0);
        let held: Vec<_> = (0..POD_MAX).map(|_| world.streaming.place(&pod).unwrap()).collect();
        let headers = [UPGRADE, SPDY, ("x-stream-protocol-version", V4)];
        let answer = ask(world.address, "POST", CAT, &headers).await;
        assert_eq!(answer.status, 429);
        assert!(answer.head.contains("retry-after: 10\r\n"), "{}", answer.head);
        assert!(answer.text().await.starts_with("the pod has 208 streaming sessions"));
        drop(held);
        spdy(world.address, CAT, V4).await;
    };
    timeout(LONG, talk).await.unwrap();
}

async fn what_a_command_has_written_is_the_answer(world: World) {
    let talk = async {
        let answer = ask(world.address, "POST", "/run/shop/web/app?cmd=fail+0+err", &[]).await;
        assert_eq!((answer.status, answer.text().await.as_str()), (200, "outerr"));
        let answer = ask(world.address, "POST", "/run/shop/web/app?cmd=fail+3+err", &[]).await;
        assert_eq!(answer.status, 500);
        assert_eq!(answer.text().await, "command 'fail 3 err' exited with 3: err");
        let answer = ask(world.address, "POST", "/run/shop/web/ended?cmd=ls", &[]).await;
        assert_eq!((answer.status, answer.text().await.as_str()), (500, "container not found (\"ended\")"));
    };
    timeout(LONG, talk).await.unwrap();
}

/// Whether a session has left its place.
pub(super) fn has_all_places(world: &World) -> bool {
    let pod = world.streaming.view.pods().remove(0);
    let places: Vec<_> = (0..POD_MAX).map(|_| world.streaming.place(&pod)).collect();
    places.iter().all(Result::is_ok)
}

#[tokio::test(start_paused = true)]
async fn a_session_on_which_nothing_happens_ends() {
    let world = World::start().await;
    let begun = Instant::now();
    let mut client = WebSocket::open(world.address, CAT, V5).await;
    client.send(b"\0hello").await;
    assert_eq!(client.next().await.unwrap(), [1]);
    assert_eq!(client.next().await.unwrap(), b"\x01hello");
    assert!(!has_all_places(&world));
    let end = client.0.next().await;
    assert!(!matches!(end, Some(Ok(_))), "{end:?}");
    assert!(begun.elapsed() >= LONG, "{:?}", begun.elapsed());
    assert!(has_all_places(&world));
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_streams_do_not_come_leaves_its_place() {
    let world = World::start().await;
    let begun = Instant::now();
    let mut client = spdy(world.address, CAT, V4).await;
    let error = client.open(&[("streamtype", "error")]).await;
    assert_eq!(client.next().await, Some(Frame::Reply(error)));
    client.rest(&[]).await;
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    assert!(has_all_places(&world));
}
