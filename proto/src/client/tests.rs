//! The client against a server of ours over a socket pair, which does to it what a test says.

mod attach;

use std::time::Duration;

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::*;
use crate::events::TaskOom;
use crate::shim::{AttachOutput, AttachStart, attach_input, attach_output};
use crate::ttrpc::{self, Code, Event, Server, Status};

/// Bound of every wait: far more than any step takes, and never slept through.
const WITHIN: Option<Duration> = Some(Duration::from_secs(30));

fn text(text: &str) -> TaskOom {
    TaskOom { container_id: text.to_owned() }
}

/// The far end: a protocol state and its socket.
struct Peer {
    socket: UnixStream,
    server: Server,
}

impl Peer {
    fn pair() -> (Client, Peer) {
        let (near, far) = UnixStream::pair().unwrap();
        (Client::over(near), Peer { socket: far, server: Server::default() })
    }

    /// The next event; `None` when the client has gone.
    async fn next(&mut self) -> Option<Event> {
        let mut buffer = [0; 4096];
        loop {
            self.flush().await;
            if let Some(event) = self.server.poll() {
                return Some(event);
            }
            match self.socket.read(&mut buffer).await.unwrap() {
                0 => return None,
                len => self.server.feed(&buffer[..len]),
            }
        }
    }

    async fn call(&mut self) -> (u32, ttrpc::Request) {
        match self.next().await {
            Some(Event::Call { stream, request, .. }) => (stream, request),
            other => panic!("expected a call, found {other:?}"),
        }
    }

    async fn flush(&mut self) {
        let bytes = self.server.output().take();
        self.socket.write_all(&bytes).await.unwrap();
    }

    async fn respond(&mut self, stream: u32, result: Result<Vec<u8>, Status>) {
        self.server.respond(stream, result);
        self.flush().await;
    }
}

fn echo(client: &Client, id: &str) -> impl Future<Output = Result<TaskOom, CallError>> + use<> {
    let (client, message) = (client.clone(), text(id));
    async move { client.call("test.Echo", "Unary", &message, WITHIN).await }
}

#[tokio::test]
async fn answers_reach_their_calls_in_any_order() {
    let (client, mut peer) = Peer::pair();
    let (first, second) = (tokio::spawn(echo(&client, "1")), tokio::spawn(echo(&client, "2")));
    let calls = [peer.call().await, peer.call().await];
    for (stream, request) in calls.into_iter().rev() {
        peer.respond(stream, Ok(request.payload)).await;
    }
    assert_eq!(first.await.unwrap().unwrap(), text("1"));
    assert_eq!(second.await.unwrap().unwrap(), text("2"));
}

#[tokio::test]
async fn a_failure_is_a_status() {
    let (client, mut peer) = Peer::pair();
    let call = tokio::spawn(echo(&client, "1"));
    let (stream, _) = peer.call().await;
    peer.respond(stream, Err(Status::new(Code::NotFound, "no 1"))).await;
    let Err(CallError::Status(status)) = call.await.unwrap() else { panic!("a status") };
    assert_eq!(status, Status::new(Code::NotFound, "no 1"));
}

#[tokio::test]
async fn an_answer_that_is_no_such_message_is_an_error() {
    let (client, mut peer) = Peer::pair();
    let call = tokio::spawn(echo(&client, "1"));
    let (stream, _) = peer.call().await;
    peer.respond(stream, Ok(vec![0xff])).await;
    assert!(matches!(call.await.unwrap(), Err(CallError::Decode(_))));
}

#[tokio::test]
async fn a_lost_connection_fails_everything_that_waits() {
    let (client, mut peer) = Peer::pair();
    let call = tokio::spawn(echo(&client, "1"));
    let (_sender, mut receiver) = client.stream::<TaskOom, TaskOom>("test.Echo", "Both").await.unwrap();
    peer.call().await;
    peer.call().await;
    drop(peer);
    assert!(matches!(call.await.unwrap(), Err(CallError::Lost(_))));
    assert!(matches!(receiver.recv().await, Err(CallError::Lost(_))));
    assert!(matches!(receiver.recv().await, Ok(None)));
    assert!(matches!(client.closed().await, CallError::Lost(_)));
    assert!(matches!(echo(&client, "2").await, Err(CallError::Lost(_))));
}

#[tokio::test]
async fn a_call_without_an_answer_times_out_and_the_connection_goes_on() {
    let (client, mut peer) = Peer::pair();
    let late =
        client.call::<_, TaskOom>("test.Echo", "Hangs", &text("1"), Some(Duration::from_millis(20))).await;
    assert!(matches!(late, Err(CallError::Timeout { method, .. }) if method == "Hangs"));
    let (stream, request) = peer.call().await;
    assert_eq!(request.timeout_nano, 20_000_000);
    peer.respond(stream, Ok(Vec::new())).await;
    let call = tokio::spawn(echo(&client, "2"));
    let (stream, request) = peer.call().await;
    peer.respond(stream, Ok(request.payload)).await;
    assert_eq!(call.await.unwrap().unwrap(), text("2"));
}

#[tokio::test]
async fn an_oversized_answer_fails_its_call_only() {
    let (client, mut peer) = Peer::pair();
    let (first, second) = (tokio::spawn(echo(&client, "1")), tokio::spawn(echo(&client, "2")));
    let ((one, request), (two, _)) = (peer.call().await, peer.call().await);
    let oversized = if request.payload == text("1").encode_to_vec() { one } else { two };
    let len = ttrpc::MESSAGE_LEN_MAX + 1;
    let header = [&u32::try_from(len).unwrap().to_be_bytes()[..], &oversized.to_be_bytes(), &[2, 0]].concat();
    peer.socket.write_all(&header).await.unwrap();
    peer.socket.write_all(&vec![0; len]).await.unwrap();
    peer.respond(one + two - oversized, Ok(text("2").encode_to_vec())).await;
    let Err(CallError::Status(status)) = first.await.unwrap() else { panic!("a status") };
    assert_eq!(status.code, Code::ResourceExhausted);
    assert_eq!(second.await.unwrap().unwrap(), text("2"));
}

#[tokio::test]
async fn a_request_that_does_not_fit_is_not_sent() {
    let (client, _peer) = Peer::pair();
    let large = "x".repeat(ttrpc::MESSAGE_LEN_MAX);
    assert!(matches!(echo(&client, &large).await, Err(CallError::NotSent(_))));
    let (sender, _receiver) = client.stream::<TaskOom, TaskOom>("test.Echo", "Both").await.unwrap();
    assert!(matches!(sender.send(&text(&large)).await, Err(CallError::NotSent(_))));
}

#[tokio::test]
async fn a_stream_carries_messages_both_ways() {
    let (client, mut peer) = Peer::pair();
    let (sender, mut receiver) = client.stream::<TaskOom, TaskOom>("test.Echo", "Both").await.unwrap();
    let (stream, _) = peer.call().await;
    sender.send(&text("in")).await.unwrap();
    assert_eq!(peer.next().await, Some(Event::Data { stream, payload: text("in").encode_to_vec() }));
    sender.close().await.unwrap();
    assert_eq!(peer.next().await, Some(Event::HalfClosed { stream }));
    peer.server.send(stream, &text("out").encode_to_vec()).unwrap();
    peer.server.finish(stream);
    peer.flush().await;
    assert_eq!(receiver.recv().await.unwrap(), Some(text("out")));
    assert_eq!(receiver.recv().await.unwrap(), None);
    assert_eq!(receiver.recv().await.unwrap(), None);
}

#[tokio::test]
async fn a_stream_that_fails_says_why() {
    let (client, mut peer) = Peer::pair();
    let (_sender, mut receiver) = client.stream::<TaskOom, TaskOom>("test.Echo", "Both").await.unwrap();
    let (stream, _) = peer.call().await;
    peer.respond(stream, Err(Status::new(Code::NotFound, "gone"))).await;
    assert!(matches!(receiver.recv().await, Err(CallError::Status(status)) if status.code == Code::NotFound));
}

#[tokio::test]
async fn a_slow_receiver_gets_every_message_in_order() {
    let (client, mut peer) = Peer::pair();
    let (_sender, mut receiver) = client.stream::<TaskOom, TaskOom>("test.Echo", "Both").await.unwrap();
    let (stream, _) = peer.call().await;
    let count = 500;
    let writer = tokio::spawn(async move {
        for number in 0..count {
            let message = text(&format!("{number}:{}", "x".repeat(5000)));
            peer.server.send(stream, &message.encode_to_vec()).unwrap();
            peer.flush().await;
        }
        peer.server.finish(stream);
        peer.flush().await;
        peer
    });
    for number in 0..count {
        let message = receiver.recv().await.unwrap().unwrap();
        assert!(message.container_id.starts_with(&format!("{number}:")));
    }
    assert_eq!(receiver.recv().await.unwrap(), None);
    drop(writer.await.unwrap());
}

#[tokio::test]
async fn a_receiver_that_goes_away_does_not_stop_the_connection() {
    let (client, mut peer) = Peer::pair();
    let (_sender, receiver) = client.stream::<TaskOom, TaskOom>("test.Echo", "Both").await.unwrap();
    let (stream, _) = peer.call().await;
    drop(receiver);
    for _ in 0..100 {
        peer.server.send(stream, &text("nobody").encode_to_vec()).unwrap();
    }
    peer.flush().await;
    let call = tokio::spawn(echo(&client, "1"));
    let (stream, request) = peer.call().await;
    peer.respond(stream, Ok(request.payload)).await;
    assert_eq!(call.await.unwrap().unwrap(), text("1"));
}

#[tokio::test]
async fn abandoned_calls_make_room_for_others() {
    let (client, mut peer) = Peer::pair();
    let reader = tokio::spawn(async move {
        for _ in 0..ttrpc::STREAMS_MAX {
            peer.call().await;
        }
        peer
    });
    for _ in 0..ttrpc::STREAMS_MAX {
        drop(client.stream::<TaskOom, TaskOom>("test.Echo", "Hangs").await.unwrap());
    }
    let opened = client.stream::<TaskOom, TaskOom>("test.Echo", "Both").await;
    drop(opened.unwrap());
    drop(reader.await.unwrap());
}

#[tokio::test]
async fn the_connection_ends_with_its_last_handle() {
    let (client, mut peer) = Peer::pair();
    let (sender, receiver) = client.stream::<TaskOom, TaskOom>("test.Echo", "Both").await.unwrap();
    sender.send(&text("last words")).await.unwrap();
    drop((client, sender, receiver));
    peer.call().await;
    assert!(matches!(peer.next().await, Some(Event::Data { .. })), "what was queued is written");
    assert_eq!(peer.next().await, None);
}

#[tokio::test]
async fn noise_on_the_wire_breaks_nothing() {
    let (client, mut peer) = Peer::pair();
    let call = tokio::spawn(echo(&client, "1"));
    let (stream, request) = peer.call().await;
    let noise: [&[u8]; 4] = [
        &[0, 0, 0, 0, 0, 0, 0, 99, 2, 0],
        &[0, 0, 0, 1, 0, 0, 0, 99, 3, 0xff, 7],
        &[0, 0, 0, 2, 0, 0, 0, 1, 77, 0, 1, 2],
        &[0, 0, 0, 0, 0, 0, 0, 0, 1, 0],
    ];
    for frame in noise {
        peer.socket.write_all(frame).await.unwrap();
    }
    peer.respond(stream, Ok(request.payload)).await;
    assert_eq!(call.await.unwrap().unwrap(), text("1"));
}

#[tokio::test]
async fn a_shim_stream_has_its_own_connection() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shim.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let shim = ShimClient::connect(&path).await.unwrap();
    let (_first, _) = listener.accept().await.unwrap();
    let start = AttachStart { container_id: "c1".to_owned(), stdin: true, ..AttachStart::default() };
    let attach = shim.attach(start.clone());
    let serve = async {
        let (socket, _) = listener.accept().await.unwrap();
        let mut peer = Peer { socket, server: Server::default() };
        let (stream, request) = peer.call().await;
        assert_eq!((request.service.as_str(), request.method.as_str()), ("berth.shim.v1.Shim", "Attach"));
        let Some(Event::Data { payload, .. }) = peer.next().await else { panic!("the start") };
        let first = crate::shim::AttachInput::decode(payload.as_slice()).unwrap();
        assert_eq!(first.what, Some(attach_input::What::Attach(start.clone())));
        let exit = AttachOutput::from(attach_output::What::ExitCode(7));
        peer.server.send(stream, &exit.encode_to_vec()).unwrap();
        peer.server.finish(stream);
        peer.flush().await;
        assert_eq!(peer.next().await, None, "the connection ends with the stream's handles");
    };
    let read = async {
        let (_sender, mut receiver) = attach.await.unwrap();
        let exit = receiver.recv().await.unwrap().unwrap();
        assert_eq!(exit.what, Some(attach_output::What::ExitCode(7)));
        assert_eq!(receiver.recv().await.unwrap(), None);
    };
    tokio::join!(serve, read);
}

#[tokio::test]
async fn nobody_at_the_socket_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let error = Client::connect(&dir.path().join("none.sock")).await.unwrap_err();
    assert!(error.to_string().ends_with("none.sock"), "{error}");
}
