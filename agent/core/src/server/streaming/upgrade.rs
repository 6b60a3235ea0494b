//! Which requests become a connection of another protocol. Every other is refused here: nothing else is ever answered with 101.

use super::Refusal;

/// What the head of a request says of an upgrade.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpgradeRequest<'a> {
    /// Its method.
    pub method: &'a str,
    /// Values of `Connection`.
    pub connection: &'a [&'a str],
    /// `Upgrade`.
    pub upgrade: &'a str,
    /// `Sec-WebSocket-Key`.
    pub key: &'a str,
    /// `Sec-WebSocket-Version`.
    pub version: &'a str,
    /// Whether nothing follows its head, and the connection can be given another protocol.
    pub is_whole: bool,
}

/// To what a connection is upgraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upgrade {
    /// SPDY/3.1.
    Spdy,
    /// WebSocket.
    WebSocket,
}

impl Upgrade {
    /// Whether a WebSocket is asked for, by the values of `Connection` and that of `Upgrade`. Whether it can be had is another
    /// question, which [`of`](Self::of) answers. Source: `IsWebSocketRequest` of `wsstream/conn.go`.
    #[must_use]
    pub fn is_web_socket(connection: &[&str], upgrade: &str) -> bool {
        wants_upgrade(connection) && upgrade.eq_ignore_ascii_case("websocket")
    }

    /// To what a request asks to upgrade.
    ///
    /// Source: `UpgradeResponse` of `httpstream/spdy/upgrade.go`, `IsWebSocketRequest` of `wsstream/conn.go`, RFC 6455, 4.2.1.
    ///
    /// # Errors
    /// What the client is told in place of it.
    pub fn of(request: UpgradeRequest<'_>) -> Result<Self, Refusal> {
        let UpgradeRequest { method, connection, upgrade, key, version, is_whole } = request;
        if !wants_upgrade(connection) {
            return Err(Refusal::new(500, "Upgrade request required"));
        }
        if !is_whole {
            return Err(Refusal::bad_request(
                "unable to upgrade: the request has a body, or is not of HTTP/1.1",
            ));
        }
        if upgrade.eq_ignore_ascii_case("websocket") {
            return match (method, version) {
                ("GET", "13") if is_key(key) => Ok(Self::WebSocket),
                ("GET", "13") => Err(Refusal::bad_request(
                    "unable to upgrade: Sec-WebSocket-Key is not 16 bytes in base64",
                )),
                ("GET", _) => {
                    let text = "unable to upgrade: only version 13 of WebSocket is spoken";
                    Err(Refusal::bad_request(text).with("sec-websocket-version", "13"))
                }
                _ => Err(Refusal::new(405, "unable to upgrade: a WebSocket is asked for by GET")),
            };
        }
        match method {
            "GET" | "POST" if upgrade.to_ascii_lowercase().contains("spdy/3.1") => Ok(Self::Spdy),
            "GET" | "POST" => {
                Err(Refusal::bad_request("unable to upgrade: missing upgrade headers in request"))
            }
            _ => Err(Refusal::new(405, "unable to upgrade: SPDY is asked for by GET or POST")),
        }
    }
}

fn wants_upgrade(connection: &[&str]) -> bool {
    connection.iter().any(|value| value.to_ascii_lowercase().contains("upgrade"))
}

/// 16 bytes in base64. Source: RFC 6455, 4.1.
fn is_key(text: &str) -> bool {
    let digits = text.strip_suffix("==").unwrap_or_default();
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    digits.len() == 22 && digits.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPDY: UpgradeRequest<'static> = UpgradeRequest {
        method: "POST",
        connection: &["Upgrade"],
        upgrade: "SPDY/3.1",
        key: "",
        version: "",
        is_whole: true,
    };
    const WEB_SOCKET: UpgradeRequest<'static> = UpgradeRequest {
        method: "GET",
        connection: &["keep-alive, upgrade"],
        upgrade: "WebSocket",
        key: "dGhlIHNhbXBsZSBub25jZQ==",
        version: "13",
        is_whole: true,
    };

    #[test]
    fn what_is_understood_is_upgraded() {
        for (request, expected) in [
            (SPDY, Upgrade::Spdy),
            (UpgradeRequest { method: "GET", upgrade: "spdy/3.1", ..SPDY }, Upgrade::Spdy),
            (UpgradeRequest { connection: &["close", "x,Upgrade"], ..SPDY }, Upgrade::Spdy),
            (WEB_SOCKET, Upgrade::WebSocket),
        ] {
            assert_eq!(Upgrade::of(request), Ok(expected), "{request:?}");
        }
    }

    /// A request that is not understood never becomes a connection through which others are reached.
    #[test]
    fn cve_2018_1002105_only_what_is_understood_is_upgraded() {
        for (request, status, text) in [
            (UpgradeRequest::default(), 500, "Upgrade request required"),
            (UpgradeRequest { connection: &["keep-alive"], ..SPDY }, 500, "Upgrade request required"),
            (
                UpgradeRequest { is_whole: false, ..SPDY },
                400,
                "unable to upgrade: the request has a body, or is not of HTTP/1.1",
            ),
            (
                UpgradeRequest { is_whole: false, ..WEB_SOCKET },
                400,
                "unable to upgrade: the request has a body, or is not of HTTP/1.1",
            ),
            (
                UpgradeRequest { upgrade: "h2c", ..SPDY },
                400,
                "unable to upgrade: missing upgrade headers in request",
            ),
            (
                UpgradeRequest { upgrade: "", ..SPDY },
                400,
                "unable to upgrade: missing upgrade headers in request",
            ),
            (
                UpgradeRequest { method: "PUT", ..SPDY },
                405,
                "unable to upgrade: SPDY is asked for by GET or POST",
            ),
            (
                UpgradeRequest { method: "POST", ..WEB_SOCKET },
                405,
                "unable to upgrade: a WebSocket is asked for by GET",
            ),
            (
                UpgradeRequest { version: "8", ..WEB_SOCKET },
                400,
                "unable to upgrade: only version 13 of WebSocket is spoken",
            ),
            (
                UpgradeRequest { key: "", ..WEB_SOCKET },
                400,
                "unable to upgrade: Sec-WebSocket-Key is not 16 bytes in base64",
            ),
            (
                UpgradeRequest { key: "dGhlIHNhbXBsZSBub25jZ\r\n==", ..WEB_SOCKET },
                400,
                "unable to upgrade: Sec-WebSocket-Key is not 16 bytes in base64",
            ),
        ] {
            let refusal = Upgrade::of(request).unwrap_err();
            assert_eq!((refusal.status, refusal.text.as_str()), (status, text), "{request:?}");
        }
        let refusal = Upgrade::of(UpgradeRequest { version: "", ..WEB_SOCKET }).unwrap_err();
        assert_eq!(refusal.headers, [("sec-websocket-version", "13".to_owned())]);
    }
}
