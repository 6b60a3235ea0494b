//! `/exec` and `/attach`. Source: `getExec` and `getAttach` of `server.go`.

use std::sync::Arc;

use berth_core::{
    server::{
        ContainerPath, Query,
        streaming::{Asked, AtInputEnd, Refusal, Upgrade},
    },
    spec::{Stdin, Stdio},
};
use berth_proto::shim::AttachStart;
use berth_stream::{
    negotiation,
    remote_command::{NothingAsked, Options, Outcome, Version},
    web_socket::RemoteCommand,
};
use futures::future::BoxFuture;
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    Running, Streaming,
    idle::Watched,
    pump::{Kind, Process, failed},
    session::{Carrier, session},
    spdy,
    switch::{asked, not_spoken, offered, switch},
    websocket,
};
use crate::{
    causes::with_causes,
    runtime::Exec,
    server::{Response, answer::refused},
};

/// Begins the process of a session.
type Begin = BoxFuture<'static, Result<Process, Outcome>>;

/// By which protocol a session is carried.
#[derive(Debug, Clone, Copy)]
enum Protocol {
    Spdy(Version),
    WebSocket(RemoteCommand),
}

/// Answers `/exec`: a further process in a container.
pub(in crate::server) fn exec<B>(
    streaming: &Arc<Streaming>,
    path: &ContainerPath,
    request: Request<B>,
) -> Response
where
    B: hyper::body::Body + Send + 'static,
{
    let begun = wanted(&request).and_then(|(query, options)| {
        let running = streaming.running(path, Asked::Exec)?;
        let exec = Exec {
            sandbox: running.sandbox.clone(),
            container: running.container.clone(),
            command: query.all("command").map(str::to_owned).collect(),
            stdin: options.stdin,
            tty: options.tty,
        };
        let here = Arc::clone(streaming);
        let begin = async move {
            let started = here.counted("exec", exec.start(&here.shims, &here.containerd)).await;
            let (sender, receiver) = started.map_err(|error| failed(Kind::Own, &with_causes(&error)))?;
            Ok(Process { sender, receiver, options, kind: Kind::Own })
        };
        Ok((running, options, Box::pin(begin) as Begin))
    });
    begun.and_then(|begun| begin(streaming, "exec", begun, request)).unwrap_or_else(refused)
}

/// Answers `/attach`: the streams of a container's own process. Whether it has a terminal, and an input, is the container's to say.
pub(in crate::server) fn attach<B>(
    streaming: &Arc<Streaming>,
    path: &ContainerPath,
    request: Request<B>,
) -> Response
where
    B: hyper::body::Body + Send + 'static,
{
    let begun = wanted(&request).and_then(|(_, options)| {
        let running = streaming.running(path, Asked::Attach)?;
        let own = running.view.pod.all_containers().find(|container| container.name == path.container);
        let stdio = own.map_or(Stdio { stdin: Stdin::Closed, tty: false }, |own| own.stdio);
        let start = AttachStart {
            container_id: running.container.to_string(),
            stdin: options.stdin && stdio.stdin != Stdin::Closed,
            stdout: options.stdout,
            stderr: options.stderr && !stdio.tty,
        };
        let kind = Kind::Attached(AtInputEnd::of(stdio, start.stdout || start.stderr));
        let (here, sandbox) = (Arc::clone(streaming), running.sandbox.clone());
        let begin = async move {
            let attached = here.counted("attach", here.shims.attach(&sandbox, start)).await;
            let (sender, receiver) = attached.map_err(|error| failed(kind, &with_causes(&error)))?;
            Ok(Process { sender, receiver, options, kind })
        };
        Ok((running, options, Box::pin(begin) as Begin))
    });
    begun.and_then(|begun| begin(streaming, "attach", begun, request)).unwrap_or_else(refused)
}

/// What the query asks for.
fn wanted<B>(request: &Request<B>) -> Result<(Query, Options), Refusal> {
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let options = Options::of_query(query.pairs()).map_err(|NothingAsked| {
        Refusal::bad_request("you must specify at least 1 of stdin, stdout, stderr")
    })?;
    Ok((query, options))
}

/// Switches to the protocol that the client offers, and holds the session.
fn begin<B>(
    streaming: &Arc<Streaming>,
    subresource: &'static str,
    (running, options, begin): (Running, Options, Begin),
    request: Request<B>,
) -> Result<Response, Refusal>
where
    B: hyper::body::Body + Send + 'static,
{
    let to = asked(&request)?;
    let (protocol, name) = match to {
        Upgrade::Spdy => {
            let version = Version::negotiate(&offered(&request, negotiation::PROTOCOL_VERSION));
            let version = version.map_err(|refusal| not_spoken(&refusal))?;
            (Protocol::Spdy(version), Some(version.name()))
        }
        Upgrade::WebSocket => {
            let protocol = RemoteCommand::negotiate(&offered(&request, negotiation::WEB_SOCKET_PROTOCOL));
            let protocol = protocol.map_err(|refusal| not_spoken(&refusal))?;
            if protocol.version == Version::V5 {
                streaming.metrics.web_socket(subresource);
            }
            (Protocol::WebSocket(protocol), protocol.name)
        }
    };
    let place = streaming.place(&running.view)?;
    let over = streaming.over(&request);
    Ok(switch(request, to, name, move |io| async move {
        let _place = place;
        let (io, activity) = Watched::new(io);
        let (session, carrier) = session();
        tokio::select! {
            () = session.hold(carry(io, protocol, options, carrier), begin) => {}
            why = over.comes(&activity) => tracing::debug!(why, "a streaming session is over"),
        }
    }))
}

async fn carry<T: AsyncRead + AsyncWrite + Unpin>(
    io: T,
    protocol: Protocol,
    options: Options,
    carrier: Carrier,
) {
    match protocol {
        Protocol::Spdy(version) => spdy::carry(io, version, options, carrier).await,
        Protocol::WebSocket(protocol) => websocket::carry(io, protocol, options, carrier).await,
    }
}
