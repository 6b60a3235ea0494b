//! Port-forward: what its streams are for, which belong together, and how failures are told.
//!
//! Each forwarded connection has two streams: one with its data both ways, and one on which this end says what went
//! wrong.
//!
//! Source: `k8s.io/cri-streaming/pkg/streaming/portforward`.

mod pairs;
mod ports;
mod stream;

pub use pairs::{Expired, Pair, Paired, Pairs};
pub use ports::{Ports, PortsError};
pub use stream::{Kind, NotForwarded, Stream};

use crate::negotiation::{self, Refusal};

/// The only protocol over SPDY.
pub const PROTOCOL: &str = "portforward.k8s.io";

/// Chooses by the values of [`negotiation::PROTOCOL_VERSION`]: the name that the answer has in the same header.
///
/// # Errors
/// How the request is answered when it names no protocol, or none that is served.
pub fn negotiate(values: &[&str]) -> Result<&'static str, Refusal> {
    negotiation::spdy(values, &[(PROTOCOL, PROTOCOL)])
}

/// What the error stream of a connection says when it has failed. The data stream is reset after that, so that the
/// client does not take what came for everything; the error stream is finished. A pod has no UID there: the kubelet's runtime is asked
/// without one (`ServePortForward` of `k8s.io/cri-streaming/pkg/streaming/server.go`).
pub fn failure(port: u16, pod: &str, why: &dyn std::fmt::Display) -> String {
    format!("error forwarding port {port} to pod {pod}, uid : {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_as_upstream_tells_it() {
        assert_eq!(failure(81, "0123", &"no"), "error forwarding port 81 to pod 0123, uid : no");
    }

    #[test]
    fn one_protocol_is_served() {
        assert_eq!(negotiate(&["v2.portforward.k8s.io, portforward.k8s.io"]), Ok(PROTOCOL));
        assert_eq!(negotiate(&["v2.portforward.k8s.io"]).unwrap_err().status(), 403);
        assert_eq!(negotiate(&[]).unwrap_err().status(), 400);
    }
}
