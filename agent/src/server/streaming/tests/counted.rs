//! What is counted of sessions, and what is not taken of them.

use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use tokio::{net::TcpListener, time::timeout};
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::frame::{
        Frame,
        coding::{CloseCode, Data as OpData, OpCode},
    },
};

use super::{
    client::{WebSocket, ask, spdy},
    world::{LONG, World},
};

const V4: &str = "v4.channel.k8s.io";
const V5: &str = "v5.channel.k8s.io";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

/// Each is one until its client goes.
#[tokio::test]
async fn a_session_is_a_request_under_way_to_its_end() {
    let world = World::start().await;
    let count = |path: &str, is_long: &str| {
        let labels = ["GET", path, "readwrite", is_long];
        let ended = world.requests.seconds.with_label_values(&labels).get_sample_count();
        (world.requests.under_way.with_label_values(&labels).get(), ended)
    };
    let until = async |path: &str, is_long: &str, expected| {
        while count(path, is_long) != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let talk = async {
        let target = "/exec/shop/web/app?command=cat&input=1&output=1";
        let mut socket = WebSocket::open(world.address, target, V5).await;
        socket.send(b"\0x").await;
        // The process is there, and has said something.
        while socket.next().await.is_some_and(|said| said.len() < 2) {}
        assert_eq!(count("exec", "true"), (1, 0));
        let other = WebSocket::open(world.address, target, V4).await;
        until("exec", "true", (2, 0)).await;
        drop(socket);
        until("exec", "true", (1, 1)).await;
        drop(other);
        until("exec", "true", (0, 2)).await;
        let ports = spdy(world.address, "/portForward/shop/web", "portforward.k8s.io").await;
        assert_eq!(count("portForward", "false"), (1, 0));
        drop(ports);
        until("portForward", "false", (0, 1)).await;
    };
    timeout(LONG, talk).await.unwrap();
}

/// A line of what is shown.
fn has(text: &str, family: &str, label: &str, count: u32) {
    let line = format!("{family}{{{label}}} {count}");
    assert!(text.lines().any(|other| other == line), "{line} is not in {text}");
}

#[tokio::test]
async fn sessions_are_operations_that_dashboards_know() {
    let world = World::start().await;
    let talk = async {
        let command = "/exec/shop/web/app?command=fail&command=3&command=err&output=1";
        for (target, protocol) in [
            (command, V5),
            (command, V4),
            // Of these the first has no command, and the second nothing to share.
            ("/exec/shop/web/app?output=1", V5),
            ("/attach/shop/web/closed?input=1", V5),
        ] {
            WebSocket::open(world.address, target, protocol).await.rest().await;
        }
        for code in [0, 3] {
            ask(world.address, "POST", &format!("/run/shop/web/app?cmd=fail+{code}+err"), &[]).await;
        }
        WebSocket::open(world.address, "/portForward/shop/web", TUNNEL).await;
        spdy(world.address, "/portForward/shop/web", "portforward.k8s.io").await;
    };
    timeout(LONG, talk).await.unwrap();
    let text = world.metrics.text();
    for (operation, total, errors) in
        [("attach", 1, 0), ("exec", 3, 1), ("exec_sync", 2, 1), ("port_forward", 2, 0)]
    {
        let label = format!("operation_type=\"{operation}\"");
        has(&text, "kubelet_runtime_operations_total", &label, total);
        has(&text, "kubelet_runtime_operations_duration_seconds_count", &label, total);
        let family = "kubelet_runtime_operations_errors_total";
        if errors > 0 {
            has(&text, family, &label, errors);
        } else {
            assert!(!text.contains(&format!("{family}{{{label}}}")), "{operation} did not fail:\n{text}");
        }
    }
    for (subresource, count) in [("attach", 1), ("exec", 2), ("portforward", 1)] {
        let label = format!("subresource=\"{subresource}\"");
        has(&text, "kubelet_websocket_streaming_requests_total", &label, count);
    }
}

#[tokio::test]
async fn an_operation_that_nobody_waits_for_has_failed() {
    let world = World::start().await;
    let for_ever = std::future::pending::<Result<(), ()>>();
    let mut counted = Box::pin(world.streaming.counted("exec_sync", for_ever));
    assert!(futures::poll!(counted.as_mut()).is_pending());
    drop(counted);
    let text = world.metrics.text();
    for family in ["kubelet_runtime_operations_total", "kubelet_runtime_operations_errors_total"] {
        has(&text, family, "operation_type=\"exec_sync\"", 1);
    }
}

/// What a session has its protocol end it with.
async fn code_of(mut client: WebSocket, messages: &[Message]) -> Option<CloseCode> {
    for message in messages {
        // It may end before all of it was sent.
        drop(client.0.send(message.clone()).await);
    }
    while let Some(Ok(message)) = client.0.next().await {
        if let Message::Close(frame) = message {
            return frame.map(|frame| frame.code);
        }
    }
    None
}

#[tokio::test]
async fn a_message_that_is_too_large_ends_a_session_of_each_sort() {
    let world = World::start().await;
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let of_port = format!("/portForward/shop/web?port={}", port.local_addr().unwrap().port());
    let piece = |data: OpData, is_last: bool| {
        Message::Frame(Frame::message(vec![0; 600 << 10], OpCode::Data(data), is_last))
    };
    let whole = [Message::binary(vec![0; (1 << 20) + 1])];
    let in_pieces = [piece(OpData::Binary, false), piece(OpData::Continue, true)];
    for (target, protocol) in [
        ("/exec/shop/web/app?command=cat&input=1&output=1", V5),
        ("/portForward/shop/web", TUNNEL),
        (&of_port, V4),
    ] {
        for messages in [&whole[..], &in_pieces] {
            let talk = async {
                let client = WebSocket::open(world.address, target, protocol).await;
                code_of(client, messages).await
            };
            assert_eq!(timeout(LONG, talk).await.unwrap(), Some(CloseCode::Size), "{target} {protocol}");
        }
    }
}
