//! Tokens among the protocols of a WebSocket, and how requests are counted.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use berth_core::server::{RequestKind, ServerType};

use super::{
    client::{ask, request},
    world::{Decides, Settings, World},
};

#[tokio::test]
async fn a_token_among_the_protocols_is_as_good_as_another() {
    let world = World::start(Settings { anonymous: true, ..Settings::default() }).await;
    let with = |upgrade: &str, token: &str, others: &str| {
        let token = URL_SAFE_NO_PAD.encode(token);
        format!(
            "Connection: Upgrade\r\nUpgrade: {upgrade}\r\nSec-WebSocket-Protocol: \
             base64url.bearer.authorization.k8s.io.{token}{others}\r\n"
        )
    };
    let v4 = ",v4.channel.k8s.io";
    for (headers, expected) in [
        (with("websocket", "good-admin", v4), 101),
        (format!("Authorization: Bearer bad\r\n{}", with("websocket", "good-admin", v4)), 101),
        (format!("Authorization: Bearer good-admin\r\n{}", with("websocket", "bad", v4)), 101),
        (with("websocket", "good-somebody", v4), 403),
        (with("websocket", "bad", v4), 401),
        (with("websocket", "good-admin", ""), 401),
        (with("SPDY/3.1", "good-admin", v4), 403),
    ] {
        let answer = world.ask(None, "GET", "/exec/ns/p/c", &headers).await;
        assert_eq!(answer.status, expected, "{headers}");
    }
}

#[tokio::test]
async fn each_request_is_counted_once_and_a_session_to_its_end() {
    let world = World::start(Settings::default()).await;
    let admin = world.authority.client("admin");
    let counts = |method: &str, path: &str| {
        world.requests.counts(RequestKind::of(method, path, ServerType::ReadWrite))
    };
    assert_eq!(world.status(Some(&admin), "/pods").await, 200);
    assert_eq!(world.status(None, "/configz").await, 401);
    let ended = async || {
        while counts("GET", "/pods").1 > 0 || counts("GET", "/configz").1 > 0 {
            tokio::task::yield_now().await;
        }
    };
    ended().await;
    assert_eq!([counts("GET", "/pods"), counts("GET", "/configz")], [(1, 0, 1); 2]);
    let mut stream = world.connect(Some(&admin)).await;
    let upgrade = request("POST", "/exec/ns/p/c", "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n");
    assert_eq!(ask(&mut stream, &upgrade).await.unwrap().status, 101);
    assert_eq!(counts("POST", "/exec/ns/p/c").0, 1);
    assert_eq!(counts("GET", "/other"), (0, 0, 0));

    let world = World::start(Settings { decides: Decides::ReadOnly, ..Settings::default() }).await;
    let mut stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
    assert_eq!(ask(&mut stream, &request("GET", "/configz", "")).await.unwrap().status, 404);
    // Without endpoints for debugging there is no such path.
    for (path, server_type, count) in [
        ("/other", ServerType::ReadOnly, 1),
        ("/configz", ServerType::ReadOnly, 0),
        ("/other", ServerType::ReadWrite, 0),
    ] {
        assert_eq!(world.requests.counts(RequestKind::of("GET", path, server_type)).0, count, "{path}");
    }
}
