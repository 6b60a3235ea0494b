//! One forwarded connection: bytes both ways, and what is told of its end.

use std::io;

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split},
    net::TcpStream,
};

use crate::causes::with_causes;

/// Bytes that are copied at once.
pub(super) const BUFFER: usize = 16 << 10;

/// What a client can be told of the end of what the pod sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// That it is there: the client may go on.
    Told,
    /// Nothing: a channel of a WebSocket has no end. The connection is over for both.
    Untold,
}

/// Which end of a copy has failed.
#[derive(Debug)]
enum Broken {
    From(io::Error),
    To(io::Error),
}

/// Passes bytes both ways. The end of one direction is passed on, and the other goes on.
///
/// # Errors
/// The pod has reset the connection, in the words that its client is told.
pub(super) async fn pass(
    socket: TcpStream,
    data: impl AsyncRead + AsyncWrite,
    end: End,
    error: &mut (impl AsyncWrite + Unpin),
) -> Result<(), String> {
    let (mut from_client, mut to_client) = split(data);
    let (mut from_pod, mut to_pod) = socket.into_split();
    let mut up = std::pin::pin!(copy(&mut from_client, &mut to_pod));
    let mut down = std::pin::pin!(copy(&mut from_pod, &mut to_client));
    let (mut is_client_done, mut refused) = (false, None);
    loop {
        tokio::select! {
            ended = &mut down => match ended {
                Ok(()) => break,
                Err(Broken::To(_gone)) => return Ok(()),
                Err(Broken::From(why)) => return Err(with_causes(&why)),
            },
            ended = &mut up, if !is_client_done => match ended {
                Ok(()) => is_client_done = true,
                // Of a pod that takes no more there may still be something to read.
                Err(Broken::To(why)) => (is_client_done, refused) = (true, Some(why)),
                Err(Broken::From(_gone)) => return Ok(()),
            },
        }
    }
    if let Some(why) = refused.filter(is_reset) {
        return Err(with_causes(&why));
    }
    if end == End::Told && !is_client_done {
        // Clients take the end of the error stream for the end of the connection.
        drop(error.shutdown().await);
        drop(up.await);
    }
    Ok(())
}

/// Whether the pod's end was lost, rather than closed: a socket tells that once, and whoever reads after a write that was told finds an end
/// like any other. A pod that has said its end before it was reset refuses with `EPIPE`.
fn is_reset(refused: &io::Error) -> bool {
    refused.kind() == io::ErrorKind::ConnectionReset
}

async fn copy(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> Result<(), Broken> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) => return to.shutdown().await.map_err(Broken::To),
            Ok(count) => to.write_all(&buffer[..count]).await.map_err(Broken::To)?,
            Err(error) => return Err(Broken::From(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{DuplexStream, duplex, sink},
        net::TcpListener,
    };

    use super::*;

    /// A connection of a pod, and the client's end of it, which takes and gives a byte at a time.
    async fn pair() -> (TcpStream, TcpStream, DuplexStream, DuplexStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (ours, pods) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (near, far) = duplex(1);
        (ours.unwrap(), pods.unwrap().0, near, far)
    }

    fn reset(socket: TcpStream) {
        let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::Linger, &linger).unwrap();
    }

    #[tokio::test]
    async fn a_reset_that_a_write_was_told_is_told_after_what_came_before_it() {
        let (ours, mut pods, near, mut client) = pair().await;
        let mut error = sink();
        let passing = pass(ours, near, End::Told, &mut error);
        let talking = async {
            pods.write_all(b"xyz").await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), b'x');
            // Now the way to the client is full, so nobody reads of the pod.
            reset(pods);
            // The second byte finds room when the first was taken, and has failed.
            client.write_all(b"ab").await.unwrap();
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await.unwrap();
            rest
        };
        let (passed, rest) = tokio::join!(passing, talking);
        assert_eq!(rest, b"yz");
        let why = passed.unwrap_err();
        assert!(why.contains("reset"), "{why}");
    }

    #[tokio::test]
    async fn a_reset_after_the_end_is_none() {
        let (ours, mut pods, near, mut client) = pair().await;
        let mut error = sink();
        let passing = pass(ours, near, End::Told, &mut error);
        let talking = async {
            pods.write_all(b"xyz").await.unwrap();
            pods.shutdown().await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), b'x');
            reset(pods);
            client.write_all(b"ab").await.unwrap();
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await.unwrap();
            rest
        };
        let (passed, rest) = tokio::join!(passing, talking);
        assert_eq!((passed, rest.as_slice()), (Ok(()), &b"yz"[..]));
    }
}
