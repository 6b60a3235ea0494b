//! Flow-controlled streams that share a connection, against a shim that does what a test says.

use super::*;
use crate::shim::{AttachInput, ExecStart, ExecSyncRequest, shim_service};

/// What the first message of each stream grants.
const WINDOW: usize = 64 << 10;

async fn shared() -> (ShimClient, Peer) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shim.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (shim, accepted) = tokio::join!(ShimClient::connect(&path), listener.accept());
    (shim.unwrap().share(), Peer { socket: accepted.unwrap().0, server: Server::default() })
}

impl Peer {
    /// The next message of any stream.
    async fn heard(&mut self) -> (u32, AttachInput) {
        match self.next().await {
            Some(Event::Data { stream, payload }) => (stream, AttachInput::decode(&*payload).unwrap()),
            other => panic!("expected a message, found {other:?}"),
        }
    }

    /// Takes the next exec; its stream.
    async fn exec(&mut self) -> u32 {
        let (stream, request) = self.call().await;
        assert_eq!(request.method, shim_service::EXEC);
        let (of, first) = self.heard().await;
        assert_eq!((of, first.window), (stream, u64::try_from(WINDOW).unwrap()));
        stream
    }

    async fn says(&mut self, stream: u32, message: AttachOutput) {
        self.server.send(stream, &message.encode_to_vec()).unwrap();
        self.flush().await;
    }

    async fn writes(&mut self, stream: u32, bytes: usize) {
        self.says(stream, attach_output::What::Stdout(vec![b'x'; bytes]).into()).await;
    }

    async fn grants(&mut self, stream: u32, window: u64) {
        self.says(stream, AttachOutput { what: None, window }).await;
    }

    async fn exits(&mut self, stream: u32, code: u32) {
        self.server
            .send(stream, &AttachOutput::from(attach_output::What::ExitCode(code)).encode_to_vec())
            .unwrap();
        self.server.finish(stream);
        self.flush().await;
    }
}

fn start() -> ExecStart {
    ExecStart { container_id: "c1".to_owned(), stdin: true, ..ExecStart::default() }
}

fn stdin(bytes: usize) -> AttachInput {
    attach_input::What::Stdin(vec![b'i'; bytes]).into()
}

/// The code with which a process has ended.
async fn exit_code(receiver: &mut AttachReceiver) -> u32 {
    loop {
        match receiver.recv().await.unwrap().expect("an exit code").what {
            Some(attach_output::What::ExitCode(code)) => return code,
            other => assert!(other.is_some(), "grants are no messages for the application"),
        }
    }
}

#[tokio::test]
async fn who_does_not_read_holds_up_nobody_on_the_same_connection() {
    let (shim, mut peer) = shared().await;
    let (_first, mut unread) = shim.exec(start()).await.unwrap();
    let (_second, mut read) = shim.exec(start()).await.unwrap();
    let (one, two) = (peer.exec().await, peer.exec().await);
    // More messages than any queue has places.
    for _ in 0..1024 {
        peer.writes(one, WINDOW / 1024).await;
    }
    peer.writes(two, 5).await;
    peer.exits(two, 7).await;
    assert_eq!(exit_code(&mut read).await, 7);
    assert_eq!(read.recv().await.unwrap(), None);
    let mut bytes = 0;
    while bytes < WINDOW {
        match unread.recv().await.unwrap().unwrap().what {
            Some(attach_output::What::Stdout(part)) => bytes += part.len(),
            other => panic!("{other:?}"),
        }
    }
    let granted = peer.heard().await;
    assert_eq!(granted, (one, AttachInput { what: None, window: u64::try_from(WINDOW / 2).unwrap() }));
}

#[tokio::test]
async fn input_waits_for_its_grant_while_output_is_not_read() {
    let (shim, mut peer) = shared().await;
    let (sender, _unread) = shim.exec(start()).await.unwrap();
    let stream = peer.exec().await;
    let sent = tokio::spawn(async move { sender.send(&stdin(10)).await.map(|()| sender) });
    peer.writes(stream, WINDOW).await;
    for (window, expected) in [(4, 4), (1, 1), (100, 5)] {
        peer.grants(stream, window).await;
        assert_eq!(peer.heard().await, (stream, stdin(expected)));
    }
    let sender = sent.await.unwrap().unwrap();
    let after = tokio::spawn(async move { sender.send(&stdin(200_000)).await });
    let mut received = 0;
    while received < 95 {
        received += match peer.heard().await.1.what {
            Some(attach_input::What::Stdin(bytes)) => bytes.len(),
            other => panic!("{other:?}"),
        };
    }
    assert_eq!(received, 95, "what was left of the grant");
    peer.exits(stream, 0).await;
    after.await.unwrap().expect("input of a process that has ended is dropped");
}

#[tokio::test]
async fn a_shim_that_sends_more_than_was_granted_loses_that_stream() {
    let (shim, mut peer) = shared().await;
    let (_sender, mut receiver) = shim.exec(start()).await.unwrap();
    let stream = peer.exec().await;
    peer.writes(stream, WINDOW).await;
    peer.writes(stream, 1).await;
    let error = loop {
        match receiver.recv().await {
            Ok(Some(_)) => {}
            other => break other.unwrap_err(),
        }
    };
    assert!(matches!(error, CallError::Status(status) if status.message.contains("1 bytes")));
    assert!(matches!(receiver.recv().await, Ok(None)));
    let call = tokio::spawn(async move { shim.stats().await });
    let (stream, _) = peer.call().await;
    peer.respond(stream, Ok(Vec::new())).await;
    call.await.unwrap().expect("the connection goes on");
}

#[tokio::test]
async fn dropping_both_halves_tells_the_shim_after_all_that_was_sent() {
    let (shim, mut peer) = shared().await;
    let (sender, receiver) = shim.exec(start()).await.unwrap();
    let stream = peer.exec().await;
    peer.grants(stream, 100).await;
    drop(receiver);
    sender.send(&stdin(3)).await.unwrap();
    sender.send(&attach_input::What::CloseStdin(true).into()).await.unwrap();
    drop(sender);
    assert_eq!(peer.heard().await, (stream, stdin(3)));
    assert_eq!(peer.heard().await, (stream, attach_input::What::CloseStdin(true).into()));
    assert_eq!(peer.next().await, Some(Event::HalfClosed { stream }));
    assert_eq!(peer.next().await, Some(Event::Aborted { stream }));
}

#[tokio::test]
async fn a_call_that_is_given_up_is_cancelled() {
    let (shim, mut peer) = shared().await;
    let asking = shim.clone();
    let call = tokio::spawn(async move { asking.exec_sync(&ExecSyncRequest::default()).await });
    let (stream, _) = peer.call().await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert_eq!(peer.next().await, Some(Event::Aborted { stream }));
}

#[tokio::test]
async fn a_thousand_that_come_and_go_leave_nothing() {
    let (shim, mut peer) = shared().await;
    for _ in 0..1000 {
        let (sender, receiver) = shim.exec(start()).await.unwrap();
        let stream = peer.exec().await;
        drop((sender, receiver));
        assert_eq!(peer.next().await, Some(Event::HalfClosed { stream }));
        assert_eq!(peer.next().await, Some(Event::Aborted { stream }));
    }
    assert_eq!((peer.server.open_streams().count(), shim.handles()), (0, 1));
}

#[tokio::test]
async fn a_lost_connection_ends_every_stream() {
    let (shim, mut peer) = shared().await;
    let (sender, mut receiver) = shim.exec(start()).await.unwrap();
    let stream = peer.exec().await;
    peer.writes(stream, 3).await;
    // So that it has come before the end.
    assert!(receiver.recv().await.unwrap().is_some());
    let waiting = tokio::spawn(async move { sender.send(&stdin(1)).await });
    drop(peer);
    assert!(matches!(receiver.recv().await, Err(CallError::Lost(_))));
    assert!(matches!(receiver.recv().await, Ok(None)));
    drop(waiting.await.unwrap());
}
