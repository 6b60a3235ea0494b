//! Versions of the protocol.

use crate::negotiation::{self, Refusal};

/// A version of the protocol of exec and attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// The first one. It is served as the second: what servers of Kubernetes 1.0 did wrong is not repeated.
    V1,
    /// Streams are closed when they have ended.
    V2,
    /// Sizes of the terminal.
    V3,
    /// The last word is a status with the exit code.
    V4,
    /// A client can say that it sends nothing more. WebSocket only: SPDY always could.
    V5,
}

/// What is served over SPDY.
const SPDY: [(&str, Version); 4] = [
    ("v4.channel.k8s.io", Version::V4),
    ("v3.channel.k8s.io", Version::V3),
    ("v2.channel.k8s.io", Version::V2),
    ("channel.k8s.io", Version::V1),
];

impl Version {
    /// Chooses by the values of [`negotiation::PROTOCOL_VERSION`]. The answer has the [`name`](Version::name) in the
    /// same header.
    ///
    /// # Errors
    /// How the request is answered when it names no version, or none that is served.
    pub fn negotiate(values: &[&str]) -> Result<Version, Refusal> {
        negotiation::spdy(values, &SPDY)
    }

    /// The name of the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Version::V1 => "channel.k8s.io",
            Version::V2 => "v2.channel.k8s.io",
            Version::V3 => "v3.channel.k8s.io",
            Version::V4 => "v4.channel.k8s.io",
            Version::V5 => "v5.channel.k8s.io",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_order_decides() {
        let table: [(&[&str], Version); 5] = [
            (&["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"], Version::V4),
            (&["v2.channel.k8s.io, v4.channel.k8s.io"], Version::V2),
            (&["v5.channel.k8s.io,v4.channel.k8s.io"], Version::V4),
            (&["v9.channel.k8s.io", " ,channel.k8s.io "], Version::V1),
            (&["v3.channel.k8s.io"], Version::V3),
        ];
        for (values, version) in table {
            assert_eq!(Version::negotiate(values), Ok(version), "{values:?}");
        }
        for version in [Version::V1, Version::V2, Version::V3, Version::V4] {
            assert_eq!(Version::negotiate(&[version.name()]), Ok(version));
        }
    }

    #[test]
    fn a_refusal_says_what_is_served() {
        for values in [&[][..], &[""], &[" , "]] {
            let refusal = Version::negotiate(values).unwrap_err();
            assert_eq!((refusal.status(), refusal.accepted().len()), (400, 0), "{values:?}");
        }
        let refusal = Version::negotiate(&["v5.channel.k8s.io"]).unwrap_err();
        assert_eq!(refusal.status(), 403);
        assert_eq!(
            refusal.accepted(),
            ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"]
        );
        assert_eq!(
            refusal.to_string(),
            "unable to upgrade: the client speaks v5.channel.k8s.io, the server v4.channel.k8s.io, \
             v3.channel.k8s.io, v2.channel.k8s.io, channel.k8s.io"
        );
    }
}
