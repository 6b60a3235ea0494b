//! Which of the protocols that a client offers is spoken.
//!
//! Source: `k8s.io/streaming/pkg/httpstream/httpstream.go`, `wsstream/conn.go`.

/// Header of a request to upgrade to SPDY: what the client speaks; and of the answer: what was chosen.
pub const PROTOCOL_VERSION: &str = "x-stream-protocol-version";

/// Header of a refusal, once for each of the [`Refusal::accepted`] names.
pub const ACCEPTED_PROTOCOL_VERSIONS: &str = "x-accepted-stream-protocol-versions";

/// Header of a request to upgrade to WebSocket, and of the answer.
pub const WEB_SOCKET_PROTOCOL: &str = "sec-websocket-protocol";

/// What `Upgrade` says of SPDY, in a request and in the answer.
pub const SPDY: &str = "SPDY/3.1";

/// Why a request to upgrade is answered with an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The header is missing, or has no name in it.
    #[error("unable to upgrade: header {header} of the request names no protocol")]
    NothingOffered {
        /// The header.
        header: &'static str,
    },
    /// None of the names is one that is spoken.
    #[error("unable to upgrade: the client speaks {}, the server {}", .offered.join(", "), .served.join(", "))]
    NothingKnown {
        /// What the client speaks.
        offered: Vec<String>,
        /// What is spoken here.
        served: Vec<&'static str>,
    },
}

impl Refusal {
    /// The status of the answer.
    pub fn status(&self) -> u16 {
        match self {
            Refusal::NothingOffered { .. } => 400,
            Refusal::NothingKnown { .. } => 403,
        }
    }

    /// What could have been offered, for [`ACCEPTED_PROTOCOL_VERSIONS`].
    pub fn accepted(&self) -> &[&'static str] {
        match self {
            Refusal::NothingOffered { .. } => &[],
            Refusal::NothingKnown { served, .. } => served,
        }
    }
}

/// The names in all headers of one name, in their order.
pub(crate) fn names<'v>(values: &[&'v str]) -> Vec<&'v str> {
    let names = values.iter().flat_map(|value| value.split(','));
    names.map(|name| name.trim_matches([' ', '\t'])).filter(|name| !name.is_empty()).collect()
}

/// The first name of the client's that is served: the client's order decides.
pub(crate) fn first<T: Copy>(offered: &[&str], served: &[(&'static str, T)]) -> Result<T, Refusal> {
    let known = |name: &&str| served.iter().find(|(known, _)| known == name).map(|(_, meaning)| *meaning);
    offered.iter().find_map(known).ok_or_else(|| Refusal::NothingKnown {
        offered: offered.iter().map(|name| (*name).to_owned()).collect(),
        served: served.iter().map(|(name, _)| *name).collect(),
    })
}

/// The protocol of an upgrade to SPDY.
pub(crate) fn spdy<T: Copy>(values: &[&str], served: &[(&'static str, T)]) -> Result<T, Refusal> {
    let offered = names(values);
    if offered.is_empty() {
        return Err(Refusal::NothingOffered { header: PROTOCOL_VERSION });
    }
    first(&offered, served)
}
