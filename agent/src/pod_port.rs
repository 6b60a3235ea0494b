//! Connections to ports of pods, from within their network namespaces and without their network.
//!
//! A socket stays in the namespace in which it was made. So a thread enters that of the pod, makes the socket and ends; who asks
//! for it connects it. Source: containerd `internal/cri/server/sandbox_portforward_linux.go`.

use std::{
    fs::File,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream as StdStream},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use berth_core::{id::SandboxId, paths, spec::NetworkMode};
use nix::{
    errno::Errno,
    sched::{CloneFlags, setns},
    sys::socket::{AddressFamily, SockFlag, SockType, socket},
};
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::{Semaphore, oneshot},
    time::timeout,
};

/// Threads that make sockets, at once. Each lives for a moment.
const THREADS_MAX: usize = 16;

/// How long a connection may take: a port of the loopback device answers at once, unless its queue is full.
const CONNECT_WITHIN: Duration = Duration::from_secs(30);

static THREADS: std::sync::LazyLock<Arc<Semaphore>> =
    std::sync::LazyLock::new(|| Arc::new(Semaphore::new(THREADS_MAX)));

/// Where the ports of a pod are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ports {
    /// On the node.
    OfNode,
    /// In a network namespace.
    In {
        /// Its file.
        path: PathBuf,
        /// The sandbox whose namespace it is.
        sandbox: SandboxId,
    },
}

/// Why a port was not reached.
#[derive(Debug, thiserror::Error)]
#[error(
    "failed to execute portforward in network namespace {path:?}: failed to connect to localhost:{port} inside \
     namespace {sandbox:?}, IPv4: {over_ipv4} IPv6 {over_ipv6} "
)]
pub(crate) struct Unreached {
    path: PathBuf,
    sandbox: String,
    port: u16,
    over_ipv4: String,
    over_ipv6: String,
}

impl Ports {
    /// Those of a pod with a sandbox.
    pub(crate) fn of(network: NetworkMode, sandbox: &SandboxId) -> Self {
        match network {
            NetworkMode::Node => Self::OfNode,
            NetworkMode::Pod => Self::In { path: paths::netns(sandbox).into(), sandbox: sandbox.clone() },
        }
    }

    /// Connects to a port of the pod's loopback device, first over IPv4.
    ///
    /// # Errors
    /// See [`Unreached`].
    pub(crate) async fn connect(&self, port: u16) -> Result<TcpStream, Unreached> {
        let over_ipv4 = match self.dial((Ipv4Addr::LOCALHOST, port).into()).await {
            Ok(stream) => return Ok(stream),
            Err(error) => said("tcp4", port, &error),
        };
        let over_ipv6 = match self.dial((Ipv6Addr::LOCALHOST, port).into()).await {
            Ok(stream) => return Ok(stream),
            Err(error) => said("tcp6", port, &error),
        };
        let (path, sandbox) = match self {
            Self::OfNode => (PathBuf::from("host"), String::new()),
            Self::In { path, sandbox } => (path.clone(), sandbox.to_string()),
        };
        Err(Unreached { path, sandbox, port, over_ipv4, over_ipv6 })
    }

    async fn dial(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let socket = match (self, address) {
            (Self::OfNode, SocketAddr::V4(_)) => TcpSocket::new_v4()?,
            (Self::OfNode, SocketAddr::V6(_)) => TcpSocket::new_v6()?,
            (Self::In { path, .. }, _) => socket_in(path, address).await?,
        };
        timeout(CONNECT_WITHIN, socket.connect(address)).await.map_err(|_elapsed| io::ErrorKind::TimedOut)?
    }
}

async fn socket_in(path: &Path, address: SocketAddr) -> io::Result<TcpSocket> {
    let place = Arc::clone(&THREADS).acquire_owned().await.map_err(io::Error::other)?;
    let (answer, made) = oneshot::channel();
    let path = path.to_owned();
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    // A thread of its own, which ends in the namespace.
    thread::Builder::new().name("port".to_owned()).spawn(move || {
        let _place = place;
        // Nobody waits any more when the client has gone.
        drop(answer.send(make_in(&path, family)));
    })?;
    let made = made.await.map_err(io::Error::other)??;
    Ok(TcpSocket::from_std_stream(StdStream::from(made)))
}

fn make_in(path: &Path, family: AddressFamily) -> io::Result<OwnedFd> {
    setns(File::open(path)?.as_fd(), CloneFlags::CLONE_NEWNET)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(family, SockType::Stream, flags, None)?)
}

/// A failure as Go's `net` says it, which users know.
fn said(network: &str, port: u16, error: &io::Error) -> String {
    let why = match error.raw_os_error() {
        Some(number) => Errno::from_raw(number).desc().to_ascii_lowercase(),
        None if error.kind() == io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
        None => error.to_string(),
    };
    let host = if network == "tcp4" { "127.0.0.1" } else { "[::1]" };
    format!("dial {network} {host}:{port}: connect: {why}")
}

#[cfg(test)]
pub(crate) mod tests {
    use nix::sys::socket::{setsockopt, sockopt};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use crate::{netns, own_mounts};

    /// A port on which nobody listens, and which nobody else gets for as long as its socket is there: connections to it are refused, of both
    /// families where there are both.
    pub(crate) fn nobodys_port() -> (TcpSocket, u16) {
        let of_both = TcpSocket::new_v6().and_then(|socket| {
            setsockopt(&socket, sockopt::Ipv6V6Only, &false)?;
            socket.bind((Ipv6Addr::UNSPECIFIED, 0).into())?;
            Ok(socket)
        });
        let of_ipv4 = |_no_ipv6| {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
            socket
        };
        let socket = of_both.unwrap_or_else(of_ipv4);
        let port = socket.local_addr().unwrap().port();
        (socket, port)
    }

    #[tokio::test]
    async fn ipv4_comes_first_and_then_ipv6() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address).await else { continue };
            let port = listener.local_addr().unwrap().port();
            let (connected, accepted) = tokio::join!(Ports::OfNode.connect(port), listener.accept());
            let mut accepted = accepted.unwrap().0;
            connected.unwrap().write_all(b"x").await.unwrap();
            assert_eq!(accepted.read_u8().await.unwrap(), b'x', "{address}");
        }
    }

    #[tokio::test]
    async fn a_port_that_nobody_has_is_told_as_upstream_tells_it() {
        let (_held, port) = nobodys_port();
        let error = Ports::OfNode.connect(port).await.unwrap_err().to_string();
        let expected = format!(
            "failed to execute portforward in network namespace \"host\": failed to connect to localhost:{port} \
             inside namespace \"\", IPv4: dial tcp4 127.0.0.1:{port}: connect: connection refused IPv6 dial tcp6 \
             [::1]:{port}: connect: "
        );
        assert!(error.starts_with(&expected), "{error}");
    }

    #[tokio::test]
    async fn a_namespace_that_is_gone_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let missing = Ports::In { path: dir.path().join("none"), sandbox: SandboxId::from_known("s") };
        let error = missing.connect(80).await.unwrap_err();
        assert!(error.over_ipv4.ends_with("no such file or directory"), "{error}");
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let other = Ports::In { path: file, sandbox: SandboxId::from_known("s") };
        assert!(other.connect(80).await.unwrap_err().over_ipv4.ends_with("invalid argument"));
    }

    /// What listens there is reached from here, though nothing of this network is there.
    #[test]
    fn a_socket_is_of_the_namespace_in_which_it_was_made() {
        own_mounts::with_own_mounts(|| {
            own_mounts::tmpfs(Path::new("/run"));
            let path = PathBuf::from("/run/netns/pod");
            netns::ensure(&path, None).unwrap();
            let listener = thread::scope(|scope| {
                let listen = || {
                    setns(File::open(&path).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
                    std::net::TcpListener::bind("127.0.0.1:80").unwrap()
                };
                scope.spawn(listen).join().unwrap()
            });
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let ports = Ports::In { path: path.clone(), sandbox: SandboxId::from_known("s") };
            let stream = runtime.block_on(ports.connect(80)).unwrap();
            assert_eq!(listener.accept().unwrap().1, stream.local_addr().unwrap());
            drop(stream);
            netns::remove(&path).unwrap();
        });
    }
}
