//! Connections of probes, which leave nothing behind.
//!
//! The kubelet's close as usual, with one second to linger (`pkg/probe/dialer_others.go`), and whoever closes first keeps the
//! port for a minute in TIME_WAIT: a thousand probes a second would use up all ports. Here the end of the stream is sent, which
//! is all that the other side sees, and then the connection is reset, which ends it on both sides at once.

use std::{
    io,
    net::{IpAddr, Shutdown, SocketAddr, ToSocketAddrs},
    os::fd::AsRawFd,
    pin::Pin,
    task::{Context, Poll},
};

use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Semaphore,
};

use super::url::authority;
use crate::effects::{failure::unknown, host::blocking};

/// Names that are looked up at once: each is a thread that may wait for a name server as long as that takes.
const LOOKUPS_MAX: usize = 8;
static LOOKUPS: Semaphore = Semaphore::const_new(LOOKUPS_MAX);

/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 4;

/// Why there is no connection, as Go says it.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// The name has no address.
    #[error("dial tcp: lookup {name}: {why}")]
    Lookup { name: String, why: String },
    /// Nobody listens, or there is no way.
    #[error("dial tcp {address}: connect: {}", text(source))]
    Connect { address: String, source: io::Error },
}

/// A connection of a probe.
#[derive(Debug)]
pub(super) struct ProbeStream(Option<TcpStream>);

/// Connects to an address or a name.
pub(super) async fn connect(host: &str, port: u16) -> Result<ProbeStream, DialError> {
    let mut last = None;
    for address in addresses(host, port).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(ProbeStream(Some(stream))),
            Err(source) => last = Some(DialError::Connect { address: address.to_string(), source }),
        }
    }
    let none = || DialError::Lookup { name: authority(host, port), why: "no such host".to_owned() };
    Err(last.unwrap_or_else(none))
}

async fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let failed = |why: String| DialError::Lookup { name: host.to_owned(), why };
    let permit = LOOKUPS.acquire().await.map_err(|_closed| failed("the agent is stopping".to_owned()))?;
    let name = host.to_owned();
    let found = blocking(move || {
        let _permit = permit;
        let found = (name.as_str(), port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
        Ok(found.take(ADDRESSES_MAX).collect())
    });
    found.await.map_err(|failure| failed(failure.message))
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
        let Some(Ok(stream)) = self.0.take().map(TcpStream::into_std) else { return };
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
    /// The connection, which is there until it is dropped.
    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.0.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl AsyncRead for ProbeStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(cx, buf)
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
