//! Connections as bytes: they can be cut, and each tells how many streams the server takes on it.
//!
//! client-go cuts connections when something else has shown that they are dead, or that they are another's than the node is now
//! (`k8s.io/client-go/util/connrotation`).

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::future::BoxFuture;
use http::Uri;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower::{BoxError, Service};

use super::{settings::Beginning, spreading::Told};

/// What is read at once of a beginning; more than a server says of itself.
const BEGINNING_BYTES: usize = 512;

/// The connections of clients, those that are being made among them. Clones know the same ones.
#[derive(Debug, Clone, Default)]
pub(in crate::cluster) struct Wires {
    known: Arc<Mutex<Vec<Weak<Life>>>>,
    /// Cuts those that are made with this one, for good.
    ended: CancellationToken,
}

impl Wires {
    /// The same, for connections that are cut once something has `ended`, whenever they are made.
    pub(super) fn until(&self, ended: CancellationToken) -> Self {
        Self { known: Arc::clone(&self.known), ended }
    }

    /// Cuts those that have been silent for so long, and says how many: whatever is on them ends with an error, at once.
    pub(in crate::cluster) fn cut_silent(&self, least: Duration) -> usize {
        let mut silent: Vec<Arc<Life>> = self.lock().iter().filter_map(Weak::upgrade).collect();
        silent.retain(|life| life.is_silent(least));
        silent.iter().for_each(|life| life.cut.cancel());
        silent.len()
    }

    fn life(&self) -> Arc<Life> {
        let life = Arc::new(Life { cut: self.ended.child_token(), silent: Mutex::new(Some(Instant::now())) });
        let mut known = self.lock();
        known.retain(|life| life.strong_count() > 0);
        known.push(Arc::downgrade(&life));
        life
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Life>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of them.
#[derive(Debug)]
struct Life {
    cut: CancellationToken,
    /// Since when something should have come; `None` where nothing is waited for.
    silent: Mutex<Option<Instant>>,
}

impl Life {
    /// Something was sent, which a server that lives answers.
    fn sent(&self) {
        self.lock().get_or_insert_with(Instant::now);
    }

    /// Something came. Where no ping asks for more, more should come at any time.
    fn heard(&self, has_pings: bool) {
        *self.lock() = if has_pings { None } else { Some(Instant::now()) };
    }

    fn is_silent(&self, least: Duration) -> bool {
        let since = *self.lock();
        !self.cut.is_cancelled() && since.is_some_and(|since| since.elapsed() >= least)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes such connections.
#[derive(Debug, Clone)]
pub(super) struct Wired<C> {
    inner: C,
    wires: Wires,
    told: Told,
}

impl<C> Wired<C> {
    pub(super) fn of(inner: C, wires: Wires, told: Told) -> Self {
        Self { inner, wires, told }
    }
}

impl<C> Service<Uri> for Wired<C>
where
    C: Service<Uri>,
    C::Response: Connection,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    type Response = Wire<C::Response>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Wire<C::Response>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let (connecting, life, told) = (self.inner.call(server), self.wires.life(), self.told.clone());
        Box::pin(async move {
            let inner = connecting.await.map_err(Into::into)?;
            let has_pings = inner.connected().is_negotiated_h2();
            let beginning = if has_pings {
                Some((Beginning::default(), told))
            } else {
                // HTTP/1.1 has a connection for each request.
                told.streams(usize::MAX);
                None
            };
            let cut = Box::pin(life.cut.clone().cancelled_owned());
            Ok(Wire { inner, life, cut, has_pings, beginning })
        })
    }
}

/// A connection.
pub(super) struct Wire<T> {
    inner: T,
    life: Arc<Life>,
    /// Wakes whoever waits for it when it is cut.
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Whether the server is asked for a sign of life when nothing has come: HTTP/2.
    has_pings: bool,
    /// Until the server has said how many streams it takes.
    beginning: Option<(Beginning, Told)>,
}

impl<T> Wire<T> {
    /// An error once it is cut.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.cut.as_mut().poll(context).is_pending() {
            return Ok(());
        }
        let why = "the connection to the API server was given up: another one is made";
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, why))
    }

    /// As [`check`](Self::check), before something is sent.
    fn send(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.check(context)?;
        self.life.sent();
        Ok(())
    }
}

impl<T: Read + Unpin> Wire<T> {
    /// Reads what the server says first, too.
    fn poll_beginning(
        &mut self,
        context: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let Some((beginning, told)) = &mut self.beginning else {
            return Pin::new(&mut self.inner).poll_read(context, cursor);
        };
        let mut bytes = [0; BEGINNING_BYTES];
        let room = cursor.remaining().min(BEGINNING_BYTES);
        let mut read = ReadBuf::new(&mut bytes[..room]);
        ready!(Pin::new(&mut self.inner).poll_read(context, read.unfilled()))?;
        cursor.put_slice(read.filled());
        if let Some(streams) = beginning.push(read.filled()) {
            told.streams(streams);
            self.beginning = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: Read + Unpin> Read for Wire<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        ready!(self.poll_beginning(context, cursor))?;
        self.life.heard(self.has_pings);
        Poll::Ready(Ok(()))
    }
}

impl<T: Write + Unpin> Write for Wire<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.send(context)?;
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.send(context)?;
        Pin::new(&mut self.inner).poll_write_vectored(context, pieces)
    }
}

impl<T: Connection> Connection for Wire<T> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}
