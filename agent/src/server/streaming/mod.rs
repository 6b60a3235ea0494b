//! Sessions with processes and ports of pods: `/exec`, `/attach`, `/run` and `/portForward`.
//!
//! ```text
//!   request ─▶ what is asked for, of which pod, by which protocol ─▶ 101 ─▶ carrier ◀─▶ session ─▶ shim
//!                     │ no                                              └─▶ SPDY, tunnel or channels ─▶ pod's port
//!                     ▼
//!                400 … 500
//! ```
//!
//! A request is refused in upstream's words before anything is begun; after the switch, failures are told on the error channel. Each
//! session is a task of its own, has bounded buffers and a place of which there are so many, and ends when nothing happens on
//! it for `streamingConnectionIdleTimeout`. Source: `pkg/kubelet/server/server.go`.

mod channels;
mod command;
mod forward;
pub(super) mod idle;
mod mux;
mod pass;
pub(super) mod places;
mod port_channels;
mod port_forward;
mod pump;
pub(super) mod run;
mod session;
pub(super) mod sockets;
mod spdy;
mod switch;
mod websocket;

#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use berth_core::{
    id::{ContainerId, SandboxId},
    server::{
        ContainerPath,
        streaming::{Asked, Refusal, container_id},
    },
};
use http::Request;

pub(super) use self::{
    command::{attach, exec},
    port_forward::port_forward,
    run::run,
};
use self::{
    idle::{GONE_AFTER, Over},
    places::{Place, Places},
    run::Outputs,
    sockets::Sockets,
};
use crate::{
    config::BERTH_RUNTIME,
    effects::{Host, SandboxHandlers},
    metrics::Metrics,
    runtime::{Containerd, Shims},
    server::Lanes,
    view::{PodView, View},
};

/// What sessions are made of.
#[derive(Debug)]
pub struct Streaming {
    view: View,
    shims: Shims,
    containerd: Containerd,
    handlers: SandboxHandlers,
    metrics: Metrics,
    places: Places,
    outputs: Outputs,
    sockets: Sockets,
    /// After how long without a byte a session ends; `None` is never.
    idle: Option<Duration>,
    /// How long nothing may happen after its client has hung up.
    gone: Duration,
}

/// A container that runs.
#[derive(Debug)]
struct Running {
    view: PodView,
    sandbox: SandboxId,
    container: ContainerId,
}

/// Counts an operation when this is dropped: one that nobody waits for to its end has failed.
struct Counts<'a> {
    metrics: &'a Metrics,
    operation: &'static str,
    began: Instant,
    is_well: bool,
}

impl Drop for Counts<'_> {
    fn drop(&mut self) {
        self.metrics.runtime_operation(self.operation, self.is_well, self.began.elapsed());
    }
}

impl Streaming {
    /// Sessions with the pods of a view, which have their places of `lanes`, beside whatever else lasts.
    #[must_use]
    pub fn of(host: &Host, view: &View, lanes: &Lanes) -> Arc<Self> {
        let server = host.config.server.as_ref();
        Arc::new(Self {
            view: view.clone(),
            shims: host.shims.clone(),
            containerd: host.containerd.clone(),
            handlers: host.handlers.clone(),
            metrics: host.metrics.clone(),
            places: lanes.sessions.clone(),
            outputs: Outputs::default(),
            sockets: Sockets::default(),
            idle: server.map(|server| server.stream_idle).filter(|limit| !limit.is_zero()),
            gone: GONE_AFTER,
        })
    }

    fn place(&self, of: &PodView) -> Result<Place, Refusal> {
        self.places.take(&of.status.name, &of.status.uid)
    }

    fn over<B>(&self, request: &Request<B>) -> Over {
        Over { idle: self.idle, hang_up: request.extensions().get().cloned(), gone: self.gone }
    }

    /// Counts an operation on the runtime, by the CRI's word.
    async fn counted<T, E>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let mut counts = Counts { metrics: &self.metrics, operation, began: Instant::now(), is_well: false };
        let ended = work.await;
        counts.is_well = ended.is_ok();
        ended
    }

    /// The container that is meant.
    fn running(&self, path: &ContainerPath, asked: Asked) -> Result<Running, Refusal> {
        let view = self.view.pod(&path.pod.name);
        let container = container_id(view.as_ref().map(|view| &*view.status), path, asked)?;
        // What runs is in a sandbox.
        let found = view.and_then(|view| Some((view.sandbox.clone()?, view)));
        let (sandbox, view) = found.ok_or_else(|| {
            Refusal::new(500, format!("container not found ({:?})", path.container.as_str()))
        })?;
        let handler = self.handlers.get(&sandbox);
        if handler.is_some_and(|handler| handler.runtime.name() != BERTH_RUNTIME) {
            return Err(Refusal::new(
                501,
                format!(
                    "the containers of pod {} run under a shim of others, which this version does not ask for streams",
                    path.pod.name
                ),
            ));
        }
        Ok(Running { view, sandbox, container })
    }
}
