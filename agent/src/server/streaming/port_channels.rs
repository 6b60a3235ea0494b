//! Ports over the channels of a WebSocket: one connection to each, from the session's begin to its end.
//!
//! The protocol has no flow control of a channel: a port that takes nothing is waited for by not reading the WebSocket, which the other
//! ports of the session share. Upstream waits for ever. Here a port that takes nothing for a time in which others wait is given up.
//! Source: `k8s.io/cri-streaming` `portforward/websocket.go`.

use std::{
    collections::BTreeMap,
    future::{pending, poll_fn},
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Poll, ready},
    time::Duration,
};

use berth_stream::{
    port_forward::Ports,
    web_socket::{Encoding, PortForward},
};
use hyper::body::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, WriteHalf, duplex, split},
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};

use super::{
    channels::{self, Reader, Said},
    forward::{PIPE, Target},
    pass::{BUFFER, End},
    sockets::Place,
};

/// Messages of all ports of a session that wait for its WebSocket.
const QUEUE: usize = 8;

/// How long the ports of a session wait for one of them that takes nothing.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// Where what the client sends to a port goes.
struct Input {
    pipe: WriteHalf<DuplexStream>,
    /// Has the connection given up.
    stuck: oneshot::Sender<()>,
}

/// What became of bytes for a port.
enum Put {
    Taken,
    /// Its connection is over.
    Over,
    /// It takes nothing.
    Stuck,
}

/// Forwards one connection to each port, which has a place for it, over two channels of a WebSocket.
pub(super) async fn over_channels<T: AsyncRead + AsyncWrite + Unpin>(
    io: T,
    encoding: Encoding,
    (ports, places): (&Ports, Vec<Place>),
    target: Target,
) {
    let codec = PortForward::codec(encoding, ports);
    let (mut reader, mut writer) = channels::over(io).await;
    let (sender, mut told) = mpsc::channel(QUEUE);
    let (mut inputs, mut forwarded) = (BTreeMap::new(), JoinSet::new());
    for ((port, data, error), place) in ports.iter().zip(places) {
        let ((ours, theirs), (errors, their_errors)) = (duplex(PIPE), duplex(PIPE));
        let (from_pod, pipe) = split(ours);
        let (stuck, is_stuck) = oneshot::channel();
        inputs.insert(data, Input { pipe, stuck });
        let greeting = Ports::greeting(port);
        let (to, given_up) = ((port, Ok(place)), given_up(is_stuck));
        forwarded.spawn(target.clone().forward(to, (theirs, End::Untold), their_errors, given_up));
        forwarded.spawn(pass_channel(from_pod, data, greeting, sender.clone()));
        forwarded.spawn(pass_channel(errors, error, greeting, sender.clone()));
    }
    drop(sender);
    let writing = async {
        while let Some((channel, bytes)) = told.recv().await {
            writer.send(codec, channel, &bytes).await?;
        }
        writer.close().await
    };
    tokio::select! {
        biased;
        () = read(&mut reader, codec, &mut inputs) => return channels::part(reader, writer).await,
        written = writing => if written.is_err() { return },
    }
    reader.farewell().await;
}

/// Passes on what the client says, until it has gone or is not understood.
async fn read<T: AsyncRead + AsyncWrite + Unpin>(
    reader: &mut Reader<T>,
    codec: berth_stream::web_socket::Codec,
    inputs: &mut BTreeMap<u8, Input>,
) {
    while let Some(said) = reader.said(codec).await {
        let Said::Data(channel, bytes) = said else { continue };
        let do_others_wait = inputs.len() > 1;
        let Some(input) = inputs.get_mut(&channel) else { continue };
        let put = put(&mut input.pipe, &bytes, do_others_wait).await;
        if matches!(put, Put::Taken) {
            continue;
        }
        // What still comes for it goes nowhere.
        if let Some(input) = inputs.remove(&channel)
            && matches!(put, Put::Stuck)
        {
            // Fails only when its connection has just ended.
            let _is_open = input.stuck.send(());
        }
    }
}

async fn put(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8], do_others_wait: bool) -> Put {
    let mut rest = bytes;
    while !rest.is_empty() {
        let writing = to.write(rest);
        let written = if do_others_wait { timeout(STUCK_AFTER, writing).await } else { Ok(writing.await) };
        match written {
            Ok(Ok(count)) => rest = &rest[count..],
            Ok(Err(_closed)) => return Put::Over,
            Err(_elapsed) => return Put::Stuck,
        }
    }
    Put::Taken
}

async fn given_up(stuck: oneshot::Receiver<()>) -> String {
    if stuck.await.is_err() {
        pending::<()>().await;
    }
    let seconds = STUCK_AFTER.as_secs();
    format!("the port took nothing for {seconds} s, while the other ports of the session waited for it")
}

async fn pass_channel(
    mut from: impl AsyncRead + Unpin,
    channel: u8,
    greeting: [u8; 2],
    told: mpsc::Sender<(u8, Bytes)>,
) {
    let mut piece = Bytes::copy_from_slice(&greeting);
    // Fails only when the session is over.
    while told.send((channel, piece)).await.is_ok() {
        match next(&mut from).await {
            Ok(read) if !read.is_empty() => piece = read,
            Ok(_) | Err(_) => return,
        }
    }
}

/// What is read next; empty at the end. There is no memory for it before it is there: most channels say nothing for as long as they last.
async fn next(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    poll_fn(|context| {
        let mut room = [MaybeUninit::uninit(); BUFFER];
        let mut read = ReadBuf::uninit(&mut room);
        ready!(Pin::new(&mut *from).poll_read(context, &mut read))?;
        Poll::Ready(Ok(Bytes::copy_from_slice(read.filled())))
    })
    .await
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt as _, time::Instant};

    use super::*;

    #[tokio::test]
    async fn a_channel_that_says_nothing_has_no_buffer() {
        let (mut to, mut from) = duplex(2 * BUFFER);
        let reading = next(&mut from);
        assert!(size_of_val(&reading) < 256, "{} bytes", size_of_val(&reading));
        drop(reading);
        to.write_all(&[b'x'; BUFFER + 1]).await.unwrap();
        drop(to);
        let mut lengths = Vec::new();
        for _ in 0..3 {
            lengths.push(next(&mut from).await.unwrap().len());
        }
        assert_eq!(lengths, [BUFFER, 1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_is_waited_for_while_it_takes_something_or_nobody_else_waits() {
        let (mut to, mut port) = duplex(1);
        let begun = Instant::now();
        let slow = async {
            for _ in 0..9 {
                tokio::time::sleep(STUCK_AFTER - Duration::from_secs(1)).await;
                port.read_u8().await.unwrap();
            }
            port
        };
        let (taken, port) = tokio::join!(put(&mut to, &[0; 10], true), slow);
        assert!(matches!(taken, Put::Taken) && begun.elapsed() > 8 * (STUCK_AFTER / 2));
        let waited = timeout(100 * STUCK_AFTER, put(&mut to, b"x", false)).await;
        assert!(waited.is_err(), "alone it is waited for");
        assert!(matches!(put(&mut to, b"x", true).await, Put::Stuck));
        drop(port);
        assert!(matches!(put(&mut to, b"x", true).await, Put::Over));
    }
}
