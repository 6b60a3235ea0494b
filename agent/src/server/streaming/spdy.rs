//! A session with a process over SPDY: a stream for each channel.
//!
//! Source: `createHTTPStreamStreams` of `k8s.io/cri-streaming` `remotecommand/httpstream.go`.

use std::{collections::BTreeMap, io, time::Duration};

use berth_stream::{
    remote_command::{Channel, Joined, Options, Session, Sizes, Version},
    spdy::StreamId,
};
use hyper::body::Bytes;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
    time::timeout,
};

use super::{
    mux::{Mux, Stream},
    session::{Carrier, Input, Output, PIECE_MAX},
};
use crate::causes::with_causes;

/// How long a client that was told everything may take to hang up.
pub(super) const GOODBYE_WITHIN: Duration = Duration::from_secs(5);

/// Carries a session to its end.
pub(super) async fn carry<T: AsyncRead + AsyncWrite + Unpin>(
    io: T,
    version: Version,
    options: Options,
    carrier: Carrier,
) {
    let (mux, driver) = Mux::over(io);
    let talk = async {
        if let Some(streams) = Streams::collect(&mux, version, options).await {
            streams.carry(version, carrier).await;
        }
    };
    let mut driven = std::pin::pin!(driver.run());
    tokio::select! {
        biased;
        ended = &mut driven => return told(&ended),
        () = talk => mux.close(),
    }
    match driven.await {
        Ok(io) => hang_up(io).await,
        failed => told(&failed),
    }
}

/// Says how a connection ended that was not closed here.
pub(super) fn told<T>(ended: &io::Result<T>) {
    if let Err(error) = ended {
        tracing::debug!(error = with_causes(error), "a streaming connection was lost");
    }
}

/// Closes a connection so that what was written arrives: with bytes of the peer unread, the kernel would take it back.
pub(super) async fn hang_up<T: AsyncRead + AsyncWrite + Unpin>(mut io: T) {
    let goodbye = async {
        io.shutdown().await?;
        let mut rest = [0; 1 << 10];
        while io.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    // Nothing more is owed to a peer that does not hang up, or has done so already.
    drop(timeout(GOODBYE_WITHIN, goodbye).await);
}

/// The streams of a client, all of them.
#[derive(Debug)]
struct Streams {
    accepted: BTreeMap<StreamId, Stream>,
    channels: berth_stream::remote_command::Streams,
}

impl Streams {
    /// Waits until all of them are there. `None` when the client has gone.
    async fn collect(mux: &Mux, version: Version, options: Options) -> Option<Self> {
        let (mut session, mut accepted) = (Session::new(version, options), BTreeMap::new());
        loop {
            let opened = mux.opened().await?;
            let joined = session.opened(opened.id, &opened.headers);
            if joined == Joined::Refused {
                mux.refuse(&opened);
                continue;
            }
            accepted.insert(opened.id, mux.accept(&opened));
            if let Joined::Complete(channels) = joined {
                mux.refuse_others();
                return Some(Self { accepted, channels });
            }
        }
    }

    fn take(&mut self, channel: Channel) -> Option<Stream> {
        self.accepted.remove(&self.channels.get(channel)?)
    }

    async fn carry(mut self, version: Version, carrier: Carrier) {
        let [stdin, stdout, stderr, error, resize] = Channel::ALL.map(|channel| self.take(channel));
        let Carrier { ready, input, output } = carrier;
        // Fails only when the session is over.
        let _is_held = ready.send(());
        let inputs = async {
            tokio::join!(pass_stdin(stdin, &input), pass_sizes(resize, &input));
        };
        tokio::select! {
            () = pass_outputs([stdout, stderr, error], version, output) => {}
            () = inputs => {}
        }
    }
}

/// Never ends: dropped, the stream would be reset. An input that the client has reset has ended too.
async fn pass_stdin(stdin: Option<Stream>, input: &mpsc::Sender<Input>) {
    let Some(mut stdin) = stdin else { return std::future::pending().await };
    let mut buffer = vec![0; PIECE_MAX];
    while let Ok(count @ 1..) = stdin.read(&mut buffer).await {
        // Fails only when the session is over.
        let _is_held = input.send(Input::Stdin(Bytes::copy_from_slice(&buffer[..count]))).await;
    }
    let _is_held = input.send(Input::StdinEnd).await;
    std::future::pending::<()>().await;
}

async fn pass_sizes(resize: Option<Stream>, input: &mpsc::Sender<Input>) {
    let Some(mut resize) = resize else { return std::future::pending().await };
    let (mut sizes, mut buffer) = (Sizes::default(), vec![0; 1 << 10]);
    while let Ok(count @ 1..) = resize.read(&mut buffer).await {
        if let Some(size) = sizes.feed(&buffer[..count]) {
            let _is_held = input.send(Input::Resize(size)).await;
        }
    }
    std::future::pending::<()>().await;
}

/// Passes on what the client is told, and finishes its streams. What goes into a stream that the client has given up is lost.
async fn pass_outputs(streams: [Option<Stream>; 3], version: Version, mut output: mpsc::Receiver<Output>) {
    let [mut stdout, mut stderr, mut error] = streams;
    while let Some(told) = output.recv().await {
        match told {
            Output::Stdout(bytes) => put(&mut stdout, &bytes).await,
            Output::Stderr(bytes) => put(&mut stderr, &bytes).await,
            Output::End(outcome) => put(&mut error, &outcome.last_word(version)).await,
        }
    }
    for stream in [&mut stdout, &mut stderr, &mut error].into_iter().flatten() {
        drop(stream.shutdown().await);
    }
}

async fn put(stream: &mut Option<Stream>, bytes: &[u8]) {
    let Some(open) = stream else { return };
    if open.write_all(bytes).await.is_err() {
        *stream = None;
    }
}
