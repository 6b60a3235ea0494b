//! Probes: one question each, with its own bounds on time and sizes. What is asked is a pod's to choose and what answers is
//! hostile.
//!
//! Everything is done in the effect's own task: when that is given up, nothing of the probe goes on.

pub(super) mod exec;
mod grpc;
pub(super) mod http;
mod names;
mod socket;
mod tls;
mod url;

use std::sync::Arc;

use berth_core::{
    event::Outcome,
    failure::Failure,
    id::PodUid,
    pod::port::probe::{Dial, ProbeAnswer, ProbeCall, ProbeRequest},
};

use super::host::Host;

/// How probes name themselves. Source: `userAgent` of `pkg/probe/http/request.go`.
const USER_AGENT: &str = "kube-probe/1.36";

/// Asks.
pub(super) async fn ask(host: &Arc<Host>, pod: &PodUid, request: &ProbeRequest) -> Result<Outcome, Failure> {
    let timeout = request.timeout;
    let answer = match &request.call {
        ProbeCall::Exec(probe) => exec::ask(host, &request.id, probe, timeout).await,
        ProbeCall::Http(probe) => http::ask(pod, probe, timeout).await,
        ProbeCall::Tcp { host, port } => tcp(pod, host, *port, timeout).await,
        ProbeCall::Grpc { host, port, service, dial: Dial::Once } => {
            grpc::ask(pod, host, *port, service, timeout).await
        }
        ProbeCall::Grpc { host, port, service, dial: Dial::Again } => {
            grpc::ask_again(pod, host, *port, service, timeout).await
        }
    };
    Ok(Outcome::Probed(answer))
}

/// Whether a TCP connection can be made. Source: `pkg/probe/tcp/tcp.go`.
async fn tcp(pod: &PodUid, host: &str, port: u16, timeout: std::time::Duration) -> ProbeAnswer {
    let dial = socket::connect(pod, host, port);
    match tokio::time::timeout(timeout, dial).await {
        Ok(Ok(_connected)) => ProbeAnswer::Success,
        Ok(Err(error)) => error.told(|why| why),
        Err(_elapsed) => {
            ProbeAnswer::Failure(format!("dial tcp {}: i/o timeout", url::authority(host, port)))
        }
    }
}

#[cfg(test)]
mod tests;
