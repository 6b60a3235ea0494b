//! Tokens among the protocols of a WebSocket.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use super::world::{Settings, World};

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
