//! Clients that go while their input waits for a process that reads nothing.

use std::{sync::atomic::Ordering, time::Duration};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::{net::TcpStream, time::timeout};

use super::{
    client::{WebSocket, spdy},
    world::{GONE, LONG, World},
};
use crate::server::streaming::places::POD_MAX;

const DEAF: &str = "/exec/shop/web/app?command=deaf&input=1&output=1";
const V4: &str = "v4.channel.k8s.io";
/// What takes as long is held.
const HELD: Duration = Duration::from_secs(1);
/// Shorter than what a session may be idle.
const SOON: Duration = Duration::from_secs(60);

/// What the client has sent is dropped with it, as where its machine is gone: the end would be behind it otherwise.
fn reset(client: &TcpStream) {
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(client, sockopt::Linger, &linger).unwrap();
}

/// Lets a client go whose input is held, of whom the session lasts as long as it is there.
async fn goes(world: &World, client: impl Sized) {
    let pod = world.streaming.view.pods().remove(0);
    let is_left = || (0..POD_MAX).map_while(|_| world.streaming.place(&pod).ok()).count() == POD_MAX;
    tokio::time::sleep(3 * GONE).await;
    assert_eq!(world.seen.running.load(Ordering::SeqCst), 1, "the client is there");
    drop(client);
    let gone = async {
        while world.seen.running.load(Ordering::SeqCst) > 0 || !is_left() {
            tokio::time::sleep(GONE / 10).await;
        }
    };
    timeout(SOON, gone).await.expect("the end of the session");
}

#[tokio::test]
async fn a_session_over_websocket_ends_with_a_client_whose_input_is_held() {
    let world = World::start().await;
    let mut client = timeout(LONG, WebSocket::open(world.address, DEAF, V4)).await.unwrap();
    while timeout(HELD, client.send(&[0; 32 << 10])).await.is_ok() {}
    reset(client.0.get_ref());
    goes(&world, client).await;
}

#[tokio::test]
async fn a_session_over_spdy_ends_with_a_client_whose_input_is_held() {
    let world = World::start().await;
    let mut client = timeout(LONG, spdy(world.address, DEAF, V4)).await.unwrap();
    client.open(&[("streamtype", "error")]).await;
    let stdin = client.open(&[("streamtype", "stdin")]).await;
    client.open(&[("streamtype", "stdout")]).await;
    while timeout(HELD, client.data(stdin, &[0; 32 << 10], false)).await.is_ok() {}
    reset(&client.io);
    goes(&world, client).await;
}
