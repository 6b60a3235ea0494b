//! `/portForward`. Source: `getPortForward` of `server.go`.

use std::{sync::Arc, time::Instant};

use berth_core::server::{
    PodPath, Query,
    streaming::{Refusal, Upgrade, has_sandbox, meant_pod},
};
use berth_stream::{
    negotiation,
    port_forward::{self as protocol, Ports, PortsError},
    web_socket::{Encoding, PortForward},
};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    Streaming,
    forward::{self, Target},
    idle::Watched,
    port_channels::over_channels,
    sockets,
    switch::{asked, is_web_socket, not_spoken, offered, switch},
};
use crate::{
    pod_port,
    server::{Response, answer::refused},
};

/// By which protocol connections are forwarded.
#[derive(Debug)]
enum Protocol {
    Spdy,
    Tunnel,
    /// To these ports, each of which has a place for its connection.
    Channels(Encoding, Ports, Vec<sockets::Place>),
}

/// Answers `/portForward`.
pub(in crate::server) fn port_forward<B>(
    streaming: &Arc<Streaming>,
    path: &PodPath,
    request: Request<B>,
) -> Response
where
    B: hyper::body::Body + Send + 'static,
{
    begin(streaming, path, request).unwrap_or_else(refused)
}

fn begin<B>(streaming: &Streaming, path: &PodPath, request: Request<B>) -> Result<Response, Refusal>
where
    B: hyper::body::Body + Send + 'static,
{
    let began = Instant::now();
    let ports = ports(&request)?;
    let view = streaming.view.pod(&path.name);
    meant_pod(view.as_ref().map(|view| &*view.status), path)?;
    let found = view.and_then(|view| Some((view.sandbox.clone()?, view)));
    let (sandbox, view) = has_sandbox(found, &path.name)?;
    let to = asked(&request)?;
    let (mut protocol, name) = spoken(&request, to, ports)?;
    if matches!(protocol, Protocol::Tunnel) {
        streaming.metrics.web_socket("portforward");
    }
    let target = Target {
        ports: pod_port::Ports::of(view.pod.network, &sandbox),
        pod: sandbox.to_string(),
        sockets: streaming.sockets.of_session(&path.name.namespace),
    };
    let place = streaming.place(&view)?;
    if let Protocol::Channels(_, ports, places) = &mut protocol {
        *places = target.sockets.take_all(ports.iter().count()).map_err(sockets::Full::refusal)?;
    }
    // The runtime would be asked where to find the session.
    streaming.metrics.runtime_operation("port_forward", true, began.elapsed());
    let over = streaming.over(&request);
    Ok(switch(request, to, name, move |io| async move {
        let _place = place;
        let (io, activity) = Watched::new(io);
        tokio::select! {
            () = serve(io, protocol, target) => {}
            why = over.comes(&activity) => tracing::debug!(why, "a streaming session is over"),
        }
    }))
}

/// The ports of a request that names them in its query: a WebSocket which is no tunnel. Source: `NewV4Options` of
/// `portforward/websocket.go`.
fn ports<B>(request: &Request<B>) -> Result<Option<Ports>, Refusal> {
    if !is_web_socket(request) || PortForward::is_tunnel(&offered(request, negotiation::WEB_SOCKET_PROTOCOL))
    {
        return Ok(None);
    }
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let ports =
        Ports::of_query(query.all("port")).map_err(|error| Refusal::bad_request(error.to_string()))?;
    Ok(Some(ports))
}

/// What is spoken, and its name in the answer.
fn spoken<B>(
    request: &Request<B>,
    to: Upgrade,
    ports: Option<Ports>,
) -> Result<(Protocol, Option<&'static str>), Refusal> {
    if to == Upgrade::Spdy {
        let name = protocol::negotiate(&offered(request, negotiation::PROTOCOL_VERSION));
        return Ok((Protocol::Spdy, Some(name.map_err(|refusal| not_spoken(&refusal))?)));
    }
    let spoken = PortForward::negotiate(&offered(request, negotiation::WEB_SOCKET_PROTOCOL));
    Ok(match spoken.map_err(|refusal| not_spoken(&refusal))? {
        PortForward::Tunnel { name } => (Protocol::Tunnel, Some(name)),
        PortForward::Channels { name, encoding } => {
            let ports = ports.ok_or_else(|| Refusal::bad_request(PortsError::Missing.to_string()))?;
            (Protocol::Channels(encoding, ports, Vec::new()), name)
        }
    })
}

async fn serve<T: AsyncRead + AsyncWrite + Unpin>(io: T, protocol: Protocol, target: Target) {
    match protocol {
        Protocol::Spdy => forward::over_spdy(io, target).await,
        Protocol::Tunnel => forward::over_tunnel(io, target).await,
        Protocol::Channels(encoding, ports, places) => {
            over_channels(io, encoding, (&ports, places), target).await;
        }
    }
}
