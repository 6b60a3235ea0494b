//! Ports.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::causes::with_causes;

/// Between two tries to listen.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);
/// After a connection that could not be accepted, as for want of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// How long a connection may be silent before it is asked for a sign of life, as by Go's server, and seconds between three of them.
const ALIVE_AFTER: u32 = 15;

/// Accepts connections for as long as it is polled. An address that cannot be had is tried again.
pub(super) async fn keep(address: SocketAddr, name: &str, mut accepted: impl FnMut(TcpStream, SocketAddr)) {
    let mut is_told = false;
    loop {
        match bind(address) {
            Ok(listener) => {
                tracing::info!(%address, "{name} listens");
                accept(&listener, &mut accepted).await;
            }
            Err(error) if !is_told => {
                tracing::warn!(error = with_causes(&error), %address, "listen for {name}; it is tried again");
                is_told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}

/// Accepts connections of a listener.
pub(super) async fn accept(listener: &TcpListener, accepted: &mut impl FnMut(TcpStream, SocketAddr)) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                keep_alive(&stream);
                accepted(stream, peer);
                // What others have asked already is read before another one may take their place.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                tracing::debug!(error = with_causes(&error), "accept a connection");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

/// All addresses are those of both families, whichever of them is written, as in Go (`favoriteAddrFamily` of `net/ipsock_posix.go`).
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return listen(address);
    }
    let both = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), address.port());
    match listen(both) {
        Err(error) if address.is_ipv4() && error.kind() != io::ErrorKind::AddrInUse => listen(address),
        listener => listener,
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        setsockopt(&socket, sockopt::Ipv6V6Only, &false)?;
    }
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A peer that is gone without a word is found out, and its connection ends: where something was sent that it has not got, by the kernel after a
/// quarter of an hour (`tcp_retries2`). `TCP_USER_TIMEOUT` would find it out sooner, and also end connections of those who are there and
/// take nothing for a while, as with a log in a pager.
fn keep_alive(stream: &TcpStream) {
    let set = || -> nix::Result<()> {
        setsockopt(stream, sockopt::KeepAlive, &true)?;
        setsockopt(stream, sockopt::TcpKeepIdle, &ALIVE_AFTER)?;
        setsockopt(stream, sockopt::TcpKeepInterval, &ALIVE_AFTER)?;
        setsockopt(stream, sockopt::TcpKeepCount, &3)
    };
    // A connection that has ended already has no options.
    if let Err(error) = set() {
        tracing::debug!(%error, "keep a connection alive");
    }
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(error = with_causes(&error), "have a connection send at once");
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream as Blocking};

    use super::*;

    #[tokio::test]
    async fn all_addresses_are_those_of_both_families() {
        let listener = bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        assert_eq!(listener.local_addr().unwrap().ip(), Ipv4Addr::LOCALHOST);
        let listener = bind((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let port = listener.local_addr().unwrap().port();
        Blocking::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        if listener.local_addr().unwrap().is_ipv6() {
            Blocking::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
        }
        let taken = bind((Ipv4Addr::UNSPECIFIED, port).into()).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }
}
