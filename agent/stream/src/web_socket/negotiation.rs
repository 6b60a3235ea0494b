//! Which protocol is spoken in messages.

use super::codec::{Codec, Encoding};
use crate::negotiation::{Refusal, first, names};
use crate::port_forward;
use crate::remote_command::{Channel, Version};

/// Channels of exec and attach.
const CHANNELS: u8 = 5;

/// The version that a client gets which offers it, at whichever place.
const V5: &str = "v5.channel.k8s.io";

const PRE_V4: &str = "channel.k8s.io";
const PRE_V4_BASE64: &str = "base64.channel.k8s.io";
const V4: &str = "v4.channel.k8s.io";
const V4_BASE64: &str = "v4.base64.channel.k8s.io";

/// SPDY frames in messages, and which protocol they carry.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const TUNNEL_PREFIX: &str = "SPDY/3.1+";
const TUNNEL_SUFFIX: &str = ".k8s.io";

/// How exec and attach are spoken in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteCommand {
    /// What the answer has in [`WEB_SOCKET_PROTOCOL`](crate::negotiation::WEB_SOCKET_PROTOCOL). `None`: the client named
    /// nothing, and the answer has no such header.
    pub name: Option<&'static str>,
    /// What the last word is like. Sizes come in all versions.
    pub version: Version,
    /// What messages are like.
    pub codec: Codec,
}

impl RemoteCommand {
    /// Chooses by the values of [`WEB_SOCKET_PROTOCOL`](crate::negotiation::WEB_SOCKET_PROTOCOL).
    ///
    /// # Errors
    /// How the request is answered when none of the names is served.
    pub fn negotiate(values: &[&str]) -> Result<RemoteCommand, Refusal> {
        let of = |name, version, encoding| {
            let codec = Codec::new(encoding, CHANNELS, version == Version::V5);
            (name, RemoteCommand { name: Some(name), version, codec })
        };
        // A server without names for its oldest versions tells the last words of all of them as those of the first.
        let served = [
            of(V5, Version::V5, Encoding::Binary),
            of(V4, Version::V4, Encoding::Binary),
            of(V4_BASE64, Version::V4, Encoding::Base64),
            of(PRE_V4, Version::V3, Encoding::Binary),
            of(PRE_V4_BASE64, Version::V3, Encoding::Base64),
        ];
        let offered = names(values);
        let [(_, v5), .., (_, pre_v4), _] = served;
        if offered.is_empty() {
            return Ok(RemoteCommand { name: None, ..pre_v4 });
        }
        if offered.contains(&V5) {
            return Ok(v5);
        }
        first(&offered, &served)
    }

    /// The channel of a message that the client sent, if clients send on it.
    pub fn input(channel: u8) -> Option<Channel> {
        Channel::of_number(channel).filter(|channel| channel.is_input())
    }
}

/// How port-forward is spoken in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortForward {
    /// Data of binary messages, one after the other, is read by [`spdy::Connection`](crate::spdy::Connection), and its
    /// output is written in binary messages, cut anywhere. The ports are in the headers of streams.
    Tunnel {
        /// What the answer has in its header.
        name: &'static str,
    },
    /// Each port of the query has two channels ([`port_forward::Ports`]).
    Channels {
        /// What the answer has in its header, if it has one.
        name: Option<&'static str>,
        /// What messages are like.
        encoding: Encoding,
    },
}

impl PortForward {
    /// Whether a tunnel is offered, of whatever: its ports are not in the query.
    pub fn is_tunnel(values: &[&str]) -> bool {
        names(values).iter().any(|name| name.starts_with(TUNNEL_PREFIX) && name.ends_with(TUNNEL_SUFFIX))
    }

    /// Chooses by the values of [`WEB_SOCKET_PROTOCOL`](crate::negotiation::WEB_SOCKET_PROTOCOL).
    ///
    /// # Errors
    /// How the request is answered when none of the names is served.
    pub fn negotiate(values: &[&str]) -> Result<PortForward, Refusal> {
        let offered = names(values);
        let tunnel = [(TUNNEL, PortForward::Tunnel { name: TUNNEL })];
        // A client that offers a tunnel, of whatever, gets that or nothing.
        if Self::is_tunnel(values) {
            return first(&offered, &tunnel);
        }
        if offered.is_empty() {
            return Ok(PortForward::Channels { name: None, encoding: Encoding::Binary });
        }
        let of = |name, encoding| (name, PortForward::Channels { name: Some(name), encoding });
        let [tunnel] = tunnel;
        first(&offered, &[of(V4, Encoding::Binary), of(V4_BASE64, Encoding::Base64), tunnel])
    }

    /// The messages of a session with these ports in its query.
    pub fn codec(encoding: Encoding, ports: &port_forward::Ports) -> Codec {
        Codec::new(encoding, ports.channels(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_and_attach() {
        let table: [(&[&str], Option<&str>, Version, bool); 8] = [
            (&[], None, Version::V3, false),
            (&["v5.channel.k8s.io"], Some("v5.channel.k8s.io"), Version::V5, false),
            (&["v4.channel.k8s.io, v5.channel.k8s.io"], Some("v5.channel.k8s.io"), Version::V5, false),
            (&["v4.channel.k8s.io"], Some("v4.channel.k8s.io"), Version::V4, false),
            (&["channel.k8s.io", "v4.channel.k8s.io"], Some("channel.k8s.io"), Version::V3, false),
            (&["v4.base64.channel.k8s.io"], Some("v4.base64.channel.k8s.io"), Version::V4, true),
            (&["base64.channel.k8s.io"], Some("base64.channel.k8s.io"), Version::V3, true),
            (&["v3.channel.k8s.io,base64.channel.k8s.io"], Some("base64.channel.k8s.io"), Version::V3, true),
        ];
        for (values, name, version, is_text) in table {
            let chosen = RemoteCommand::negotiate(values).unwrap();
            assert_eq!((chosen.name, chosen.version), (name, version), "{values:?}");
            assert_eq!(chosen.codec.is_text(), is_text, "{values:?}");
            let close = chosen.codec.decode(b"\xff\0").unwrap();
            assert_eq!(close == super::super::Incoming::Closed { channel: 0 }, version == Version::V5);
        }
        // Versions 2 and 3 have names in SPDY only.
        for values in [["v3.channel.k8s.io"], ["SPDY/3.1+portforward.k8s.io"], ["binary.k8s.io"]] {
            assert_eq!(RemoteCommand::negotiate(&values).unwrap_err().status(), 403, "{values:?}");
        }
    }

    #[test]
    fn port_forward() {
        let channels = |name, encoding| PortForward::Channels { name, encoding };
        let table: [(&[&str], PortForward); 5] = [
            (&[], channels(None, Encoding::Binary)),
            (&["v4.channel.k8s.io"], channels(Some("v4.channel.k8s.io"), Encoding::Binary)),
            (&["v4.base64.channel.k8s.io"], channels(Some("v4.base64.channel.k8s.io"), Encoding::Base64)),
            (&["SPDY/3.1+portforward.k8s.io"], PortForward::Tunnel { name: TUNNEL }),
            (&["v4.channel.k8s.io, SPDY/3.1+portforward.k8s.io"], PortForward::Tunnel { name: TUNNEL }),
        ];
        for (values, expected) in table {
            assert_eq!(PortForward::negotiate(values), Ok(expected), "{values:?}");
        }
        for values in [["channel.k8s.io"], ["SPDY/3.1+other.k8s.io"], ["SPDY/4+portforward.k8s.io"]] {
            assert_eq!(PortForward::negotiate(&values).unwrap_err().status(), 403, "{values:?}");
        }
    }

    #[test]
    fn clients_send_input_and_sizes_only() {
        let input: Vec<_> = (0..=u8::MAX).filter_map(RemoteCommand::input).collect();
        assert_eq!(input, [Channel::Stdin, Channel::Resize]);
    }
}
