//! A token that a WebSocket shows as one of its protocols, which is all that a browser lets a page say.
//!
//! Source: `pkg/authentication/request/websocket/protocol.go` of `k8s.io/apiserver`, which the kubelet asks after the `Authorization` header
//! (`pkg/authentication/authenticatorfactory/delegating.go`).

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use berth_core::server::streaming::Upgrade;
use http::{HeaderMap, HeaderValue, header};

const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// What a request shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shown {
    /// No token.
    Nothing,
    /// Something that is none, several, or one without a protocol to be spoken.
    Bad,
    /// A token.
    Token(String),
}

/// The token among the protocols of a request.
pub(super) fn shown(headers: &HeaderMap) -> Shown {
    if !asks_for_web_socket(headers) {
        return Shown::Nothing;
    }
    let (tokens, others): (Vec<&str>, Vec<&str>) =
        protocols(headers).partition(|protocol| protocol.starts_with(PREFIX));
    let [token] = tokens[..] else {
        return if tokens.is_empty() { Shown::Nothing } else { Shown::Bad };
    };
    let decoded = URL_SAFE_NO_PAD.decode(token.trim_start_matches(PREFIX)).ok();
    match decoded.and_then(|bytes| String::from_utf8(bytes).ok()) {
        None => Shown::Bad,
        Some(token) if token.is_empty() => Shown::Nothing,
        Some(_unspoken) if others.is_empty() => Shown::Bad,
        Some(token) => Shown::Token(token),
    }
}

/// Takes tokens out of the protocols, if there are others: nobody beyond who asked for them is to know them.
pub(super) fn forget(headers: &mut HeaderMap) {
    let others: Vec<&str> = protocols(headers).filter(|protocol| !protocol.starts_with(PREFIX)).collect();
    if others.is_empty() || others.len() == protocols(headers).count() {
        return;
    }
    if let Ok(others) = HeaderValue::from_str(&others.join(",")) {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, others);
    }
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}

fn asks_for_web_socket(headers: &HeaderMap) -> bool {
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let connection: Vec<String> = headers.get_all(header::CONNECTION).iter().filter_map(text).collect();
    let connection: Vec<&str> = connection.iter().map(String::as_str).collect();
    let upgrade = headers.get(header::UPGRADE).and_then(text).unwrap_or_default();
    Upgrade::is_web_socket(&connection, &upgrade)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(upgrade: &'static str, protocols: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static(upgrade));
        for protocol in protocols {
            headers.append(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(protocol).unwrap());
        }
        headers
    }

    #[test]
    fn a_token_is_one_of_the_protocols() {
        let token = |text: &str| format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(text));
        let (a, b) = (token("a?~"), token("b"));
        for (upgrade, protocols, expected) in [
            ("WebSocket", &[&*a, "v4.channel.k8s.io"][..], Shown::Token("a?~".to_owned())),
            ("websocket", &[&format!("v4.channel.k8s.io , {a}")], Shown::Token("a?~".to_owned())),
            ("SPDY/3.1", &[&a, "v4.channel.k8s.io"], Shown::Nothing),
            ("websocket", &["v4.channel.k8s.io"], Shown::Nothing),
            ("websocket", &[], Shown::Nothing),
            ("websocket", &[PREFIX], Shown::Nothing),
            ("websocket", &[&a], Shown::Bad),
            ("websocket", &[&a, &b, "v4.channel.k8s.io"], Shown::Bad),
            ("websocket", &[&format!("{PREFIX}=="), "v4.channel.k8s.io"], Shown::Bad),
            ("websocket", &[&format!("{PREFIX}_w"), "v4.channel.k8s.io"], Shown::Bad),
        ] {
            assert_eq!(shown(&headers(upgrade, protocols)), expected, "{upgrade} {protocols:?}");
        }
    }

    #[test]
    fn it_is_forgotten_where_something_else_is_left() {
        let token = format!("{PREFIX}YQ");
        for (protocols, expected) in [
            (&[&*format!("{token}, a"), "b"][..], &["a,b"][..]),
            (&["a", "b"], &["a", "b"]),
            (&[&token], &[&*token]),
            (&[], &[]),
        ] {
            let mut headers = headers("websocket", protocols);
            forget(&mut headers);
            let left: Vec<_> = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().collect();
            assert_eq!(left, expected, "{protocols:?}");
        }
    }
}
