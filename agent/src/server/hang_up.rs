//! Whether the other side of a connection has closed it, also while nobody reads from it.

use std::{io, net, os::fd::AsFd as _, sync::Arc};

use tokio::{io::Interest, net::TcpStream};

use crate::causes::with_causes;

/// Tells of the end of what the other side says. HTTP/1.1 reads no further while an answer is under way and something was read beyond its
/// request, and a session while its process takes nothing. Nothing is read here: it is a further descriptor of the connection, which
/// clones share, and which a request has for whoever upgrades it.
#[derive(Debug, Clone)]
pub(super) struct HangUp(Option<Arc<TcpStream>>);

impl HangUp {
    /// That of a connection, which goes on without this where no further descriptor can be had.
    pub(super) fn of(stream: &TcpStream) -> Self {
        let clone = stream.as_fd().try_clone_to_owned();
        let watched = clone.and_then(|fd| TcpStream::from_std(net::TcpStream::from(fd)));
        if let Err(error) = &watched {
            tracing::debug!(error = with_causes(error), "watch a connection for its end");
        }
        Self(watched.ok().map(Arc::new))
    }

    /// Comes back when the other side has closed the connection, or its half of it.
    pub(super) async fn comes(&self) {
        if let Self(Some(stream)) = self {
            while let Ok(ready) = stream.ready(Interest::READABLE).await {
                if ready.is_read_closed() {
                    return;
                }
                // What has come is for others to read. It is told again with the next bytes that come, or the end.
                let not_here = stream
                    .try_io(Interest::READABLE, || io::Result::<()>::Err(io::ErrorKind::WouldBlock.into()));
                drop(not_here);
            }
        }
        std::future::pending::<()>().await;
    }
}
