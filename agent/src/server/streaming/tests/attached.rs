//! What the end of an attached client's input means.

use std::sync::atomic::Ordering;

use berth_proto::{EXEC_BY_COMMAND, FLOW_CONTROL};
use tokio::time::timeout;

use super::{
    client::{Frame, WebSocket, spdy},
    commands::{HELD_MAX, status, success},
    world::{LONG, World},
};

const V5: &str = "v5.channel.k8s.io";

/// An attachment to all streams of a container.
fn all_of(container: &str) -> String {
    format!("/attach/shop/web/{container}?input=1&output=1&error=1")
}

/// A node whose shim has a connection for each stream, and one whose streams share one.
async fn worlds() -> [World; 2] {
    [World::with_shim(EXEC_BY_COMMAND).await, World::with_shim(FLOW_CONTROL).await]
}

#[tokio::test]
async fn an_attached_client_leaves_when_its_input_ends() {
    let talk = async {
        for world in worlds().await {
            for container in ["app", "tty", "once-tty"] {
                let mut client = WebSocket::open(world.address, &all_of(container), V5).await;
                client.send(b"\0hello").await;
                assert_eq!(client.next().await.unwrap(), [1]);
                assert_eq!(client.next().await.unwrap(), b"\x01hello");
                client.send(b"\xff\0").await;
                assert_eq!(status(&client.rest().await[&3]), success(), "{container}");
                assert_eq!(world.seen.closed.load(Ordering::SeqCst), 0, "{container} reads on");
            }
            // The input of this one has an end, and its own end is no failure of the session.
            let mut client = WebSocket::open(world.address, &all_of("once"), V5).await;
            client.send(b"\xff\0").await;
            while world.seen.closed.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
            let mut client = WebSocket::open(world.address, &all_of("once"), V5).await;
            client.send(b"\0end\n").await;
            assert_eq!(status(&client.rest().await[&3]), success());
        }
    };
    timeout(LONG, talk).await.unwrap();
}

#[tokio::test]
async fn an_input_that_nobody_reads_ends_no_attachment() {
    let talk = async {
        for world in worlds().await {
            let mut client = WebSocket::open(world.address, &all_of("closed"), V5).await;
            client.send(&[b"\0".as_slice(), &[b'x'; 200_000]].concat()).await;
            client.send(b"\xff\0").await;
            let mut count = 0;
            while count < 2 * HELD_MAX {
                count += client.next().await.expect("the output goes on").len();
            }
        }
    };
    timeout(LONG, talk).await.unwrap();
}

#[tokio::test]
async fn an_attachment_without_output_ends_with_its_input() {
    let talk = async {
        for world in worlds().await {
            let mut client = WebSocket::open(world.address, "/attach/shop/web/once?input=1", V5).await;
            client.send(b"\xff\0").await;
            assert_eq!(status(&client.rest().await[&3]), success());
            while world.seen.closed.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
            // With nothing to share there is nothing to wait for.
            let mut client = WebSocket::open(world.address, "/attach/shop/web/closed?input=1", V5).await;
            assert_eq!(status(&client.rest().await[&3]), success());
        }
    };
    timeout(LONG, talk).await.unwrap();
}

/// As `kubectl attach` asks for it that is not at a terminal itself: the kubelet refuses it.
#[tokio::test]
async fn a_terminal_is_attached_to_by_a_request_that_says_nothing_of_it() {
    let talk = async {
        for world in worlds().await {
            let mut client = WebSocket::open(world.address, &all_of("tty"), V5).await;
            client.send(b"\x04{\"Width\":80,\"Height\":24}").await;
            assert_eq!(client.next().await.unwrap(), [1]);
            assert_eq!(client.next().await.unwrap(), b"\x0180x24\n");
            let mut client = spdy(world.address, &all_of("tty"), "v4.channel.k8s.io").await;
            let mut streams = Vec::new();
            for kind in ["error", "stdin", "stdout", "stderr"] {
                streams.push(client.open(&[("streamtype", kind)]).await);
            }
            client.data(streams[1], b"hello", false).await;
            let told = loop {
                if let Some(Frame::Data { bytes, .. }) = client.next().await {
                    break bytes;
                }
            };
            assert_eq!(told, b"hello");
        }
    };
    timeout(LONG, talk).await.unwrap();
}
