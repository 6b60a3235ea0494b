//! Connections on which nothing happens, or nothing for anybody.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, sleep, sleep_until},
};

use crate::server::hang_up::HangUp;

/// How long nothing may happen on the connection of a client that has hung up. Where its input is read, its end is noticed at once.
pub(in crate::server) const GONE_AFTER: Duration = Duration::from_secs(10);

/// What ends a session that has no end of its own.
#[derive(Debug)]
pub(super) struct Over {
    /// How long nothing may happen; `None` is for ever.
    pub(super) idle: Option<Duration>,
    /// The client's end.
    pub(super) hang_up: Option<HangUp>,
    /// How long nothing may happen after that.
    pub(super) gone: Duration,
}

impl Over {
    /// Comes back when a session is over, and says why.
    pub(super) async fn comes(&self, activity: &Activity) -> &'static str {
        tokio::select! {
            () = activity.has_ceased(self.idle) => "it is idle",
            () = self.is_for_nobody(activity) => "its client has gone",
        }
    }

    /// A process that takes no input keeps its client's end from being read. Who has closed one half only is given what there is, as long as
    /// there is something.
    ///
    /// An end behind more than the kernel takes does not come; where the client's kernel then gives up, after some minutes, a sign of life that
    /// it is asked for is answered with a reset.
    async fn is_for_nobody(&self, activity: &Activity) {
        let Some(hang_up) = &self.hang_up else { return std::future::pending().await };
        hang_up.comes().await;
        // What came with the end may still be read.
        sleep(self.gone).await;
        activity.has_ceased(Some(self.gone)).await;
    }
}

/// A connection that notes when something was last read or written.
#[derive(Debug)]
pub(super) struct Watched<T> {
    io: T,
    activity: Activity,
}

/// When something last happened. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Activity {
    begun: Instant,
    /// Milliseconds from then.
    last: Arc<AtomicU64>,
}

impl<T> Watched<T> {
    /// Begins to watch a connection.
    pub(super) fn new(io: T) -> (Self, Activity) {
        let activity = Activity { begun: Instant::now(), last: Arc::default() };
        (Self { io, activity: activity.clone() }, activity)
    }
}

impl Activity {
    fn note(&self) {
        let elapsed = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(elapsed, Ordering::Relaxed);
    }

    /// Ends when nothing has happened for so long; never without a limit.
    pub(super) async fn has_ceased(&self, limit: Option<Duration>) {
        let Some(limit) = limit else { return std::future::pending().await };
        loop {
            let last = self.last.load(Ordering::Relaxed);
            let until = self.begun + Duration::from_millis(last) + limit;
            sleep_until(until).await;
            if self.last.load(Ordering::Relaxed) == last {
                return;
            }
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.note();
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        if let Poll::Ready(Ok(1..)) = &written {
            self.activity.note();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::future::poll_immediate;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        net::{TcpListener, TcpStream},
        time::advance,
    };

    use super::*;

    const LIMIT: Duration = Duration::from_secs(100);

    #[tokio::test(start_paused = true)]
    async fn what_is_read_or_written_begins_the_time_anew() {
        let (io, mut other) = duplex(64);
        let (mut watched, activity) = Watched::new(io);
        let mut ceased = std::pin::pin!(activity.has_ceased(Some(LIMIT)));
        assert!(poll_immediate(&mut ceased).await.is_none());
        advance(LIMIT / 2).await;
        watched.write_all(b"x").await.unwrap();
        advance(LIMIT * 3 / 4).await;
        assert!(poll_immediate(&mut ceased).await.is_none());
        other.write_all(b"y").await.unwrap();
        watched.read_u8().await.unwrap();
        advance(LIMIT * 3 / 4).await;
        assert!(poll_immediate(&mut ceased).await.is_none());
        advance(LIMIT).await;
        assert!(poll_immediate(&mut ceased).await.is_some());
        assert!(poll_immediate(activity.has_ceased(None)).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_over_when_its_client_has_hung_up_and_nothing_happens() {
        const GONE: Duration = Duration::from_secs(10);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (client, accepted) = tokio::join!(connecting, listener.accept());
        let (mut client, (socket, _)) = (client.unwrap(), accepted.unwrap());
        let hang_up = HangUp::of(&socket);
        let over = Over { idle: None, hang_up: Some(hang_up.clone()), gone: GONE };
        let (mut watched, activity) = Watched::new(socket);
        let mut comes = std::pin::pin!(over.comes(&activity));
        client.write_all(b"x").await.unwrap();
        assert!(poll_immediate(&mut comes).await.is_none());
        advance(100 * GONE).await;
        assert!(poll_immediate(&mut comes).await.is_none(), "what is held is no end");
        client.shutdown().await.unwrap();
        hang_up.comes().await;
        for _ in 0..10 {
            assert!(poll_immediate(&mut comes).await.is_none(), "it is told something");
            advance(GONE / 2).await;
            watched.write_all(b"y").await.unwrap();
        }
        assert!(poll_immediate(&mut comes).await.is_none());
        advance(GONE).await;
        assert_eq!(poll_immediate(&mut comes).await, Some("its client has gone"));
        assert_eq!(watched.read_u8().await.unwrap(), b'x', "nobody has read it");
    }
}
