//! Connections on which nothing happens.

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
    time::{Instant, sleep_until},
};

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
}
