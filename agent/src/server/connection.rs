//! One connection, from its handshake to its end.

use std::{convert::Infallible, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use berth_core::server::{Debugging, Origin, ServerType};
use http::Request;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use super::{
    certificates::Certificates,
    connections::{Connections, Seat, Seated},
    dispatch::{Answers, Gate, Refusals, answer},
    h2_streams::Streams,
    hang_up::HangUp,
    heads::Waiting,
    parts::Parts,
    requests::Requests,
    state::{End, State},
    tls::H2,
};
use crate::causes::with_causes;

/// Bytes of a request's head (`MaxHeaderBytes`): the command of an exec is in it.
pub(super) const HEAD_MAX: usize = 1 << 20;
/// The same on HTTP/2, where nothing with a command comes, and many at once.
pub(super) const HEAD_MAX_H2: u32 = 64 << 10;
/// Requests at once on a connection of HTTP/2, as Go's server.
pub(super) const STREAMS_MAX: u32 = 250;
/// Requests of a connection of HTTP/2 that were taken back before they were looked at, and those that were wrong: who goes on so is cut
/// off (CVE-2023-44487).
const RESETS_MAX: usize = 100;
/// Bytes that a stream of HTTP/2 may send before they are read, which nobody does.
const WINDOW: u32 = 64 << 10;

/// Times of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// For the handshake.
    pub(super) handshake: Duration,
    /// From then to the first request.
    pub(super) first: Duration,
    /// From one request to the next (`IdleTimeout`). Also how long its head may take to come.
    pub(super) idle: Duration,
    /// For what is under way when a connection has been silent for too long.
    pub(super) end: Duration,
    /// For a piece of an answer that is in memory to be taken.
    pub(super) taken: Duration,
    /// For one that is made as it is taken, as a log (`WriteTimeout`). Somebody may look at a page of it for long.
    pub(super) streamed: Duration,
}

/// The kubelet gives most of them hours.
pub(super) const TIMES: Times = Times {
    handshake: Duration::from_secs(10),
    first: Duration::from_secs(10),
    idle: Duration::from_secs(90),
    end: Duration::from_secs(5),
    taken: Duration::from_secs(60),
    streamed: Duration::from_secs(4 * 3600),
};

/// A port and everything that its connections share.
#[derive(Debug)]
pub(super) struct Port<A> {
    pub(super) answers: A,
    /// `None` where everybody may.
    pub(super) gate: Option<Gate>,
    pub(super) debugging: Debugging,
    pub(super) server_type: ServerType,
    pub(super) requests: Requests,
    pub(super) refusals: Refusals,
    pub(super) times: Times,
    pub(super) connections: Arc<Connections>,
    pub(super) parts: Parts,
}

/// Who is at the other end.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// What they have shown.
    pub(super) certificates: Certificates,
    pub(super) waiting: Waiting,
    pub(super) state: Arc<State>,
}

/// Somebody of whom nothing is known yet but where they are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asker {
    pub(super) from: Origin,
    /// Whether that is the node itself, or a connection from there was let in.
    pub(super) is_known: bool,
}

impl Peer {
    fn new(address: SocketAddr, certificates: Certificates, seat: &Seat) -> Self {
        Self { address, certificates, waiting: seat.waiting(), state: seat.state() }
    }
}

impl<A> Port<A> {
    /// Who asks.
    pub(super) fn asker(&self, peer: &Peer) -> Asker {
        let from = Origin::of(peer.address.ip());
        Asker { from, is_known: peer.state.is_admitted() || self.connections.knows(from) }
    }
}

impl<A: Answers> Port<A> {
    /// Takes a connection, with TLS or without, or closes it.
    pub(super) fn take(self: &Arc<Self>, stream: TcpStream, address: SocketAddr, tls: Option<TlsAcceptor>) {
        let Some(seat) = self.connections.enter(address.ip()) else {
            tracing::debug!(%address, "there is no place for a connection");
            return;
        };
        let (port, number) = (Arc::clone(self), seat.number());
        let task = tokio::spawn(async move {
            match tls {
                Some(tls) => Box::pin(port.shake_hands(stream, address, seat, tls)).await,
                None => {
                    let peer = Peer::new(address, Certificates::default(), &seat);
                    let hang_up = HangUp::of(&stream);
                    Box::pin(port.http1(Seated::new(stream, seat), peer, hang_up)).await;
                }
            }
        });
        self.connections.works_for(number, task.abort_handle());
    }

    async fn shake_hands(
        self: Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        seat: Seat,
        tls: TlsAcceptor,
    ) {
        let stream = match timeout(self.times.handshake, tls.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%address, error = with_causes(&error), "no handshake"),
            Err(_elapsed) => return tracing::debug!(%address, "a handshake takes too long"),
        };
        let (_, session) = stream.get_ref();
        let is_h2 = session.alpn_protocol() == Some(H2);
        let certificates = Certificates::new(session.peer_certificates().unwrap_or_default());
        let peer = Peer::new(address, certificates, &seat);
        if is_h2 {
            return self.http2(Seated::new(stream, seat), peer).await;
        }
        let hang_up = HangUp::of(stream.get_ref().0);
        self.http1(Seated::new(stream, seat), peer, hang_up).await;
    }

    async fn http1<S>(self: Arc<Self>, stream: S, peer: Peer, hang_up: HangUp)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (times, state, peer) = (self.times, Arc::clone(&peer.state), Arc::new(peer));
        let of_requests = hang_up.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            let (port, peer) = (Arc::clone(&self), Arc::clone(&peer));
            request.extensions_mut().insert(of_requests.clone());
            async move { Ok::<_, Infallible>(answer(&port, &peer, request).await) }
        });
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(times.idle).max_buf_size(HEAD_MAX);
        let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service).with_upgrades());
        tokio::select! {
            // Who breaks off has had the answer, or wants none.
            _ended = connection.as_mut() => return,
            end = state.is_to_end(times) => {
                if end == End::NotTaken {
                    return;
                }
            }
            // What is under way is for nobody, or for somebody who says no more: it has a moment.
            () = hang_up.comes() => {}
        }
        connection.as_mut().graceful_shutdown();
        drop(timeout(times.end, connection).await);
    }

    async fn http2<S>(self: Arc<Self>, stream: S, peer: Peer)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (times, state, peer) = (self.times, Arc::clone(&peer.state), Arc::new(peer));
        let service = service_fn(move |request: Request<Incoming>| {
            let (port, peer) = (Arc::clone(&self), Arc::clone(&peer));
            async move { Ok::<_, Infallible>(answer(&port, &peer, request).await) }
        });
        let mut server = http2::Builder::new(Streams);
        server
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEAD_MAX_H2)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_pending_accept_reset_streams(RESETS_MAX)
            .max_local_error_reset_streams(RESETS_MAX);
        let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            _ended = connection.as_mut() => return,
            end = state.is_to_end(times) => {
                if end == End::NotTaken {
                    return;
                }
            }
        }
        connection.as_mut().graceful_shutdown();
        drop(timeout(times.end, connection).await);
    }
}
