//! The node's server: what the API server, `kubectl` and monitoring ask of a node.
//!
//! ```text
//!   listen ─▶ TLS ─▶ who asks? ─▶ may they? ─▶ endpoints ─▶ view, containerd, shims, logs, cgroups
//! ```
//!
//! It runs on threads of its own, so that no stream ever delays the loops of the node. Source: `pkg/kubelet/server/server.go`.

mod answer;
mod authenticate;
mod authorize;
mod bearer_protocol;
mod certificates;
mod client_ca;
mod connection;
mod connections;
mod dispatch;
mod endpoints;
mod h2_streams;
mod hang_up;
mod heads;
mod held;
mod lanes;
mod lasting;
mod listen;
mod log_places;
mod parts;
mod requests;
mod review;
mod shares;
mod state;
mod streaming;
mod thread;
mod tls;
mod turns;

use std::sync::Arc;

pub use self::{
    answer::{Body, Response},
    endpoints::node_logs::NodeLogs,
    lanes::{Lane, Lanes},
    log_places::LogPlaces,
    requests::Requests,
    streaming::Streaming,
    thread::run,
    tls::Presenting,
};
use crate::{cluster, effects::Host, node_loop::Turns, stats::Stats, view::View};

/// What endpoints answer from.
#[derive(Debug)]
pub struct Served {
    /// The pods, as they were last published.
    pub view: View,
    /// The node's ports: containerd, shims, cgroups, workers, settings.
    pub host: Arc<Host>,
    /// The API server, where the node has one.
    pub clients: Option<cluster::Clients>,
    /// Sessions with processes and ports.
    pub streaming: Arc<Streaming>,
    /// Since when the node loop is busy.
    pub turns: Turns,
    /// What `/configz` says.
    pub configz: Arc<str>,
    /// Requests of both ports.
    pub requests: Requests,
    /// The node's own logs.
    pub node_logs: NodeLogs,
    /// Bounds on work that takes long.
    pub lanes: Lanes,
    /// What the node and its pods use.
    pub stats: Stats,
}

#[cfg(test)]
mod tests;
