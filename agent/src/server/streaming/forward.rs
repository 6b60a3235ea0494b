//! Forwarded connections: between a client's streams and ports of a pod.
//!
//! Source: `k8s.io/cri-streaming` `portforward`, containerd `internal/cri/server/sandbox_portforward_linux.go`.

use std::{collections::BTreeMap, future::pending, time::Duration};

use berth_stream::{
    port_forward::{self, Kind, Pair, Paired, Pairs},
    spdy::StreamId,
    web_socket::DATA_MAX,
};
use futures::FutureExt as _;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, duplex, split},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    channels,
    mux::{Mux, Opened, Stream},
    pass::{End, pass},
    sockets::{Full, OfSession, Place},
    spdy::told,
};
use crate::{causes::with_causes, pod_port::Ports};

/// Bytes on their way between a WebSocket and a port, in each direction.
pub(super) const PIPE: usize = 64 << 10;

/// A pod whose ports are forwarded.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// Where its ports are.
    pub(super) ports: Ports,
    /// What it is called in messages.
    pub(super) pod: String,
    /// How many connections there may be.
    pub(super) sockets: OfSession,
}

impl Target {
    /// Forwards one connection that has its place, until both ends have said their last or one is gone, or there is a reason to give it up. What went
    /// wrong is told in the error stream.
    pub(super) async fn forward(
        self,
        (port, place): (u16, Result<Place, Full>),
        (data, end): (impl AsyncRead + AsyncWrite, End),
        mut error: impl AsyncWrite + Unpin,
        given_up: impl Future<Output = String>,
    ) {
        let ended = tokio::select! {
            ended = self.connect_and_pass((port, place), (data, end), &mut error) => ended,
            why = given_up => Err(why),
        };
        if let Err(why) = ended {
            let text = port_forward::failure(port, &self.pod, &why);
            tracing::debug!(pod = self.pod, port, why, "a forwarded connection failed");
            // A client that has gone is told nothing.
            drop(error.write_all(text.as_bytes()).await);
        }
        drop(error.shutdown().await);
    }

    async fn connect_and_pass(
        &self,
        (port, place): (u16, Result<Place, Full>),
        (data, end): (impl AsyncRead + AsyncWrite, End),
        error: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), String> {
        let _place = place.map_err(|full| full.to_string())?;
        let socket = self.ports.connect(port).await.map_err(|unreached| with_causes(&unreached))?;
        pass(socket, data, end, error).await
    }
}

/// Forwards connections over SPDY, two streams for each, until the client has gone.
pub(super) async fn over_spdy<T: AsyncRead + AsyncWrite + Unpin>(io: T, target: Target) {
    let (mux, driver) = Mux::over(io);
    tokio::select! {
        biased;
        ended = driver.run() => told(&ended),
        () = serve(&mux, target) => {}
    }
}

/// Ends when no more streams come.
async fn serve(mux: &Mux, target: Target) {
    let begun = Instant::now();
    let (mut pairs, mut waiting) = (Pairs::default(), BTreeMap::new());
    let mut forwarded = JoinSet::new();
    loop {
        let until = pairs.next_timeout().map(|after| begun + after);
        tokio::select! {
            opened = mux.opened() => {
                let Some(opened) = opened else { return };
                let Some(pair) = paired(mux, &opened, &mut pairs, &mut waiting, begun.elapsed()) else { continue };
                let (data, error) = (waiting.remove(&pair.data), waiting.remove(&pair.error));
                if let Some((data, error)) = data.zip(error) {
                    let (target, place) = (target.clone(), target.sockets.take());
                    forwarded.spawn(target.forward((pair.port, place), (data, End::Told), error, pending()));
                }
            }
            () = at(until) => {
                for expired in pairs.expired(begun.elapsed()) {
                    let late = waiting.remove(&expired.stream).filter(|_| expired.kind == Kind::Error);
                    late.into_iter().for_each(|mut stream| tell(&mut stream, &expired.message));
                }
            }
            Some(_ended) = forwarded.join_next() => {}
        }
    }
}

/// Accepts a stream that belongs to a connection, and refuses others. The pair, when it is complete.
fn paired(
    mux: &Mux,
    opened: &Opened,
    pairs: &mut Pairs,
    waiting: &mut BTreeMap<StreamId, Stream>,
    now: Duration,
) -> Option<Pair> {
    let stream = match port_forward::Stream::of(opened.id, &opened.headers) {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(error = with_causes(&error), "a stream is not accepted");
            mux.refuse(opened);
            return None;
        }
    };
    match pairs.opened(now, opened.id, stream) {
        Paired::Waiting => {
            waiting.insert(opened.id, mux.accept(opened));
            None
        }
        Paired::Complete(pair) => {
            waiting.insert(opened.id, mux.accept(opened));
            Some(pair)
        }
        Paired::Twice { error, message } => {
            mux.refuse(opened);
            error
                .and_then(|error| waiting.get_mut(&error))
                .into_iter()
                .for_each(|stream| tell(stream, &message));
            None
        }
        Paired::TooMany => {
            mux.refuse(opened);
            None
        }
    }
}

/// Says something in a stream, as far as its client takes it now.
fn tell(stream: &mut Stream, message: &str) {
    drop(stream.write_all(message.as_bytes()).now_or_never());
}

async fn at(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => pending().await,
    }
}

/// Forwards connections over SPDY within a WebSocket.
///
/// Source: `k8s.io/apiserver` `pkg/util/proxy/streamtunnel.go`.
pub(super) async fn over_tunnel<T: AsyncRead + AsyncWrite + Unpin>(io: T, target: Target) {
    let (mut reader, mut writer) = channels::over(io).await;
    let (near, far) = duplex(PIPE);
    let (mut from_spdy, mut to_spdy) = split(near);
    let reading = async {
        while let Some(bytes) = reader.message().await {
            if to_spdy.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    let writing = async {
        let mut buffer = vec![0; DATA_MAX];
        while let Ok(count @ 1..) = from_spdy.read(&mut buffer).await {
            if writer.send_raw(&buffer[..count]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = reading => channels::part(reader, writer).await,
        () = writing => {}
        () = over_spdy(far, target) => {}
    }
}
