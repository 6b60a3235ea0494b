//! Connections of probes, which leave nothing behind.
//!
//! The kubelet's close as usual, with one second to linger (`pkg/probe/dialer_others.go`), and whoever closes first keeps the
//! port for a minute in TIME_WAIT: a thousand probes a second would use up all ports. Here the end of the stream is sent, which
//! is all that the other side sees, and then the connection is reset, which ends it on both sides at once.

use std::{
    io,
    net::Shutdown,
    os::fd::AsRawFd,
    pin::{Pin, pin},
    task::{Context, Poll},
};

use berth_core::{id::PodUid, pod::port::probe::ProbeAnswer};
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    task::yield_now,
};

use super::{names::addresses, url::authority};

/// Bytes that are read of a connection: twice what the headers of an answer may have. hyper takes any number of heads that
/// announce another one, and h2 any number of frames that ask for nothing.
const READ_BYTES_MAX: usize = 512 << 10;

/// Bytes that are read before others have their turn: everything that the agent waits for shares one thread.
const TURN_BYTES_MAX: usize = 4 << 10;

/// Why there is no connection, as Go says it.
#[derive(Debug, thiserror::Error)]
pub(in crate::effects) enum DialError {
    /// The name has no address.
    #[error("dial tcp: lookup {name}: {why}")]
    Lookup { name: String, why: String },
    /// Whether it has one is not asked: too many lookups of other pods have not ended.
    #[error("lookup {name}: too many names are being looked up for probes on this node")]
    Busy { name: String },
    /// Nobody listens, or there is no way.
    #[error("dial tcp {address}: connect: {}", text(source))]
    Connect { address: String, source: io::Error },
}

/// A connection of a probe.
#[derive(Debug)]
pub(super) struct ProbeStream {
    /// It is there until this is dropped.
    stream: Option<TcpStream>,
    /// Bytes that were read of it.
    read_bytes: usize,
    /// Those of this turn.
    turn_bytes: usize,
    /// The first bytes.
    first: [u8; 5],
}

impl DialError {
    /// What a probe tells of it, given what its handler says of a connection that failed: of the container this says nothing when
    /// nobody was asked.
    pub(super) fn told(&self, as_failure: impl FnOnce(String) -> String) -> ProbeAnswer {
        match self {
            Self::Busy { .. } => ProbeAnswer::Errored { state: "unknown", message: self.to_string() },
            Self::Lookup { .. } | Self::Connect { .. } => ProbeAnswer::Failure(as_failure(self.to_string())),
        }
    }
}

/// Connects to an address or a name for a pod.
pub(super) async fn connect(pod: &PodUid, host: &str, port: u16) -> Result<ProbeStream, DialError> {
    let mut last = None;
    for address in addresses(pod, host, port).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                return Ok(ProbeStream { stream: Some(stream), read_bytes: 0, turn_bytes: 0, first: [0; 5] });
            }
            Err(source) => last = Some(DialError::Connect { address: address.to_string(), source }),
        }
    }
    let none = || DialError::Lookup { name: authority(host, port), why: "no such host".to_owned() };
    Err(last.unwrap_or_else(none))
}

/// An error of the system as Go says it.
pub(super) fn text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => nix::errno::Errno::from_raw(number).desc().to_lowercase(),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None => error.to_string(),
    }
}

impl Drop for ProbeStream {
    fn drop(&mut self) {
        // Not the runtime's any more, so that nothing comes between the end of the stream and the reset: whoever closes in
        // between makes this side wait.
        let Some(Ok(stream)) = self.stream.take().map(TcpStream::into_std) else { return };
        let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        // What is closed already needs neither.
        let _closed = setsockopt(&stream, sockopt::Linger, &linger).is_err();
        // After the other side's end, a reset alone spares it from waiting.
        let peeked = recv(stream.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT);
        if peeked != Ok(0) {
            let _closed = stream.shutdown(Shutdown::Write).is_err();
        }
    }
}

impl ProbeStream {
    /// Whether the server has answered by HTTP, whatever it was asked by.
    pub(super) fn is_http(&self) -> bool {
        self.first == *b"HTTP/"
    }

    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl AsyncRead for ProbeStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.turn_bytes == TURN_BYTES_MAX {
            self.turn_bytes = 0;
            if pin!(yield_now()).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        let room = buf.remaining().min(TURN_BYTES_MAX - self.turn_bytes);
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(room));
        let Poll::Ready(read) = self.stream()?.poll_read(cx, &mut part) else {
            self.turn_bytes = 0;
            return Poll::Pending;
        };
        read?;
        let bytes = part.filled().len();
        let known = self.read_bytes.min(self.first.len());
        self.first[known..].iter_mut().zip(part.filled()).for_each(|(kept, byte)| *kept = *byte);
        self.turn_bytes += bytes;
        self.read_bytes += bytes;
        if self.read_bytes > READ_BYTES_MAX {
            let why = format!("the server has sent more than {READ_BYTES_MAX} bytes");
            return Poll::Ready(Err(io::Error::other(why)));
        }
        buf.advance(bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ProbeStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    /// The end of the stream is sent when the connection is closed.
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::{io::AsyncWriteExt, net::TcpListener};

    use super::*;

    #[tokio::test]
    async fn a_turn_reads_few_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            while stream.write_all(&[b'x'; TURN_BYTES_MAX]).await.is_ok() {}
        });
        let mut stream = connect(&PodUid::new("uid-web"), "127.0.0.1", port).await.unwrap();
        let mut room = [0; 2 * TURN_BYTES_MAX];
        let mut all = 0;
        // Called once in each turn.
        let error = poll_fn(|cx| {
            let mut bytes = 0;
            let polled = loop {
                let mut buf = ReadBuf::new(&mut room);
                match Pin::new(&mut stream).poll_read(cx, &mut buf) {
                    Poll::Ready(Ok(())) => bytes += buf.filled().len(),
                    Poll::Ready(Err(error)) => break Poll::Ready(error),
                    Poll::Pending => break Poll::Pending,
                }
            };
            assert!(bytes <= TURN_BYTES_MAX, "{bytes} after {all}");
            all += bytes;
            polled
        })
        .await;
        assert!(all <= READ_BYTES_MAX, "{all} before {error}");
    }
}
