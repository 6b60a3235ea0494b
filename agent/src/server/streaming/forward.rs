//! Forwarded connections: between a client's streams and ports of a pod.
//!
//! Source: `k8s.io/cri-streaming` `portforward`, containerd `internal/cri/server/sandbox_portforward_linux.go`.

use std::{collections::BTreeMap, io, time::Duration};

use berth_stream::{
    port_forward::{self, Kind, Pair, Paired, Pairs},
    spdy::StreamId,
    web_socket::{DATA_MAX, Encoding, PortForward},
};
use futures::FutureExt as _;
use hyper::body::Bytes;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, duplex, split},
    net::TcpStream,
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    channels::{self, Said},
    mux::{Mux, Opened, Stream},
    spdy::told,
};
use crate::{causes::with_causes, pod_port::Ports};

/// Bytes that are copied at once.
const BUFFER: usize = 16 << 10;

/// Bytes on their way between a WebSocket and a port, in each direction.
const PIPE: usize = 64 << 10;

/// Messages of all ports of a session that wait for its WebSocket.
const QUEUE: usize = 8;

/// A pod whose ports are forwarded.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// Where its ports are.
    pub(super) ports: Ports,
    /// What it is called in messages.
    pub(super) pod: String,
}

/// Which end of a copy has failed.
#[derive(Debug)]
enum Broken {
    From(io::Error),
    To,
}

/// What a client can be told of the end of what the pod sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// That it is there: the client may go on.
    Told,
    /// Nothing: a channel of a WebSocket has no end. The connection is over for both.
    Untold,
}

impl Target {
    /// Forwards one connection, until both ends have said their last or one is gone. What went wrong is told in the error
    /// stream.
    async fn forward(
        self,
        port: u16,
        (data, end): (impl AsyncRead + AsyncWrite, End),
        mut error: impl AsyncWrite + Unpin,
    ) {
        let failed = match self.ports.connect(port).await {
            Ok(socket) => pass(socket, data, end, &mut error).await.err(),
            Err(unreached) => Some(with_causes(&unreached)),
        };
        if let Some(why) = failed {
            let text = port_forward::failure(port, &self.pod, &why);
            tracing::debug!(pod = self.pod, port, why, "a forwarded connection failed");
            // A client that has gone is told nothing.
            drop(error.write_all(text.as_bytes()).await);
        }
        drop(error.shutdown().await);
    }
}

/// Passes bytes both ways. The end of one direction is passed on, and the other goes on.
async fn pass(
    socket: TcpStream,
    data: impl AsyncRead + AsyncWrite,
    end: End,
    error: &mut (impl AsyncWrite + Unpin),
) -> Result<(), String> {
    let (mut from_client, mut to_client) = split(data);
    let (mut from_pod, mut to_pod) = socket.into_split();
    let mut up = std::pin::pin!(copy(&mut from_client, &mut to_pod));
    let mut down = std::pin::pin!(copy(&mut from_pod, &mut to_client));
    let mut is_client_done = false;
    loop {
        tokio::select! {
            ended = &mut down => match ended {
                Ok(()) => break,
                Err(Broken::To) => return Ok(()),
                Err(Broken::From(why)) => return Err(with_causes(&why)),
            },
            ended = &mut up, if !is_client_done => match ended {
                // Of a pod that takes no more there may still be something to read.
                Ok(()) | Err(Broken::To) => is_client_done = true,
                Err(Broken::From(_gone)) => return Ok(()),
            },
        }
    }
    if end == End::Told && !is_client_done {
        // Clients take the end of the error stream for the end of the connection.
        drop(error.shutdown().await);
        drop(up.await);
    }
    Ok(())
}

async fn copy(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> Result<(), Broken> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) => return to.shutdown().await.map_err(|_broken| Broken::To),
            Ok(count) => to.write_all(&buffer[..count]).await.map_err(|_broken| Broken::To)?,
            Err(error) => return Err(Broken::From(error)),
        }
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
                    forwarded.spawn(target.clone().forward(pair.port, (data, End::Told), error));
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
        None => std::future::pending().await,
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
        () = reading => {}
        () = writing => {}
        () = over_spdy(far, target) => {}
    }
}

/// Forwards one connection to each port, over two channels of a WebSocket.
pub(super) async fn over_channels<T: AsyncRead + AsyncWrite + Unpin>(
    io: T,
    encoding: Encoding,
    ports: &port_forward::Ports,
    target: Target,
) {
    let codec = PortForward::codec(encoding, ports);
    let (mut reader, mut writer) = channels::over(io).await;
    let (sender, mut told) = mpsc::channel(QUEUE);
    let (mut inputs, mut forwarded) = (BTreeMap::new(), JoinSet::new());
    for (port, data, error) in ports.iter() {
        let ((ours, theirs), (errors, their_errors)) = (duplex(PIPE), duplex(PIPE));
        let (from_pod, to_pod) = split(ours);
        inputs.insert(data, to_pod);
        let greeting = port_forward::Ports::greeting(port);
        forwarded.spawn(target.clone().forward(port, (theirs, End::Untold), their_errors));
        forwarded.spawn(pass_channel(from_pod, data, greeting, sender.clone()));
        forwarded.spawn(pass_channel(errors, error, greeting, sender.clone()));
    }
    drop(sender);
    let reading = async {
        while let Some(said) = reader.said(codec).await {
            if let Said::Data(channel, bytes) = said
                && let Some(input) = inputs.get_mut(&channel)
                && input.write_all(&bytes).await.is_err()
            {
                // Its connection is over. What still comes for it goes nowhere.
                inputs.remove(&channel);
            }
        }
    };
    let writing = async {
        while let Some((channel, bytes)) = told.recv().await {
            writer.send(codec, channel, &bytes).await?;
        }
        writer.close().await
    };
    tokio::select! {
        biased;
        () = reading => return,
        written = writing => if written.is_err() { return },
    }
    reader.farewell().await;
}

async fn pass_channel(
    mut from: impl AsyncRead + Unpin,
    channel: u8,
    greeting: [u8; 2],
    told: mpsc::Sender<(u8, Bytes)>,
) {
    let mut piece = Bytes::copy_from_slice(&greeting);
    let mut buffer = vec![0; BUFFER];
    // Fails only when the session is over.
    while told.send((channel, piece)).await.is_ok() {
        match from.read(&mut buffer).await {
            Ok(count @ 1..) => piece = Bytes::copy_from_slice(&buffer[..count]),
            Ok(_) | Err(_) => return,
        }
    }
}
