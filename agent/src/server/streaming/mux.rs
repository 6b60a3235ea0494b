//! SPDY on a connection: its streams, each of which is read and written by itself.
//!
//! The protocol is [`berth_stream::spdy::Connection`]; here it gets a connection and a place for what was read of each stream. One
//! future, [`Driver`], reads and writes the connection. A stream that is not read holds up the others only as far as its peer knows
//! no windows.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use berth_stream::spdy::{Connection, Event, GoAwayStatus, Headers, Limits, ResetStatus, StreamId};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are read of the connection at once.
const READ_MAX: usize = 16 << 10;

/// Streams that wait to be accepted; further ones are refused. A client opens the streams of one connection one after the other, and those
/// of many connections at once.
pub(super) const OPENED_MAX: usize = 512;

/// Bytes of one piece that what came in small ones is gathered in.
const GATHERED_MAX: usize = 16 << 10;

/// The streams of a connection. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Mux(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    connection: Connection,
    driver: Option<Waker>,
    streams: BTreeMap<StreamId, Inbox>,
    opened: VecDeque<Opened>,
    acceptor: Option<Waker>,
    /// Whether somebody asks for streams that the peer opens.
    is_accepting: bool,
    life: Life,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    /// The rest is written, and then the connection is closed.
    Closing,
    /// The connection has gone.
    Gone,
}

/// What came of a stream and was not read.
#[derive(Debug, Default)]
struct Inbox {
    pieces: VecDeque<Piece>,
    end: Option<End>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

#[derive(Debug)]
struct Piece {
    bytes: Vec<u8>,
    /// Of which so many were read.
    read: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Finished,
    Reset,
}

/// A stream that the peer has opened, which is to be accepted or refused.
#[derive(Debug)]
pub(super) struct Opened {
    /// Which.
    pub(super) id: StreamId,
    /// What it is for.
    pub(super) headers: Headers,
}

/// A stream that was accepted: reading ends where the peer has finished, shutting down finishes this end. Dropping it ends both
/// at once.
#[derive(Debug)]
pub(super) struct Stream {
    mux: Mux,
    id: StreamId,
}

impl Mux {
    /// Speaks SPDY on a connection. Nothing happens unless the driver is polled.
    pub(super) fn over<T>(io: T) -> (Self, Driver<T>) {
        let mux = Self(Arc::new(Mutex::new(State {
            connection: Connection::new(Limits::default()),
            driver: None,
            streams: BTreeMap::new(),
            opened: VecDeque::new(),
            acceptor: None,
            is_accepting: true,
            life: Life::Open,
        })));
        let driver = Driver { io, mux: mux.clone(), buffer: vec![0; READ_MAX], unflushed: false };
        (mux, driver)
    }

    /// The next stream that the peer opens; `None` when no more come.
    pub(super) async fn opened(&self) -> Option<Opened> {
        std::future::poll_fn(|cx| {
            let mut state = self.state();
            if let Some(opened) = state.opened.pop_front() {
                return Poll::Ready(Some(opened));
            }
            if state.life != Life::Open {
                return Poll::Ready(None);
            }
            state.acceptor = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Accepts a stream.
    pub(super) fn accept(&self, opened: &Opened) -> Stream {
        let mut state = self.state();
        state.connection.reply(opened.id, &Headers::default());
        state.wake_driver();
        Stream { mux: self.clone(), id: opened.id }
    }

    /// Refuses a stream, for which nothing was done.
    pub(super) fn refuse(&self, opened: &Opened) {
        self.end(opened.id, ResetStatus::RefusedStream);
    }

    /// Refuses all streams that wait to be accepted, and those to come.
    pub(super) fn refuse_others(&self) {
        let mut state = self.state();
        state.is_accepting = false;
        while let Some(opened) = state.opened.pop_front() {
            state.streams.remove(&opened.id);
            state.connection.reset(opened.id, ResetStatus::RefusedStream);
        }
        state.wake_driver();
    }

    /// Takes no more streams, writes what is to be written, and has the driver end.
    pub(super) fn close(&self) {
        let mut state = self.state();
        if state.life == Life::Open {
            state.life = Life::Closing;
            state.connection.go_away(GoAwayStatus::Ok);
            state.wake_driver();
        }
    }

    fn end(&self, id: StreamId, status: ResetStatus) {
        let mut state = self.state();
        state.connection.reset(id, status);
        state.streams.remove(&id);
        state.wake_driver();
    }

    /// Streams that are held, those of them that nobody has accepted, and pieces that nobody has read.
    #[cfg(test)]
    pub(super) fn held(&self) -> [usize; 3] {
        let state = self.state();
        let pieces = state.streams.values().map(|inbox| inbox.pieces.len()).sum();
        [state.streams.len(), state.opened.len(), pieces]
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whoever panics leaves a state in which every stream can still be ended.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wake_driver(&mut self) {
        wake(&mut self.driver);
    }

    /// Puts what the peer did where it is looked for.
    fn take_events(&mut self) {
        while let Some(event) = self.connection.poll() {
            match event {
                Event::Opened { stream, headers, finished } => self.opened(stream, headers, finished),
                Event::Data { stream, bytes } => {
                    if let Some(inbox) = self.streams.get_mut(&stream) {
                        inbox.put(bytes);
                        wake(&mut inbox.reader);
                    } else {
                        self.connection.consumed(stream, bytes.len());
                    }
                }
                Event::Finished { stream } => self.ended(stream, End::Finished),
                Event::Reset { stream, status } => {
                    tracing::debug!(%stream, ?status, "the client has ended a stream");
                    let before = self.opened.len();
                    self.opened.retain(|opened| opened.id != stream);
                    if self.opened.len() < before {
                        // Nobody has taken it, so nobody forgets it.
                        self.streams.remove(&stream);
                    } else {
                        self.ended(stream, End::Reset);
                    }
                }
                Event::GoAway | Event::Pong { .. } => {}
            }
        }
    }

    fn opened(&mut self, stream: StreamId, headers: Headers, finished: bool) {
        if !self.is_accepting || self.opened.len() >= OPENED_MAX {
            self.connection.reset(stream, ResetStatus::RefusedStream);
            return;
        }
        let end = finished.then_some(End::Finished);
        self.streams.insert(stream, Inbox { end, ..Inbox::default() });
        self.opened.push_back(Opened { headers, id: stream });
        wake(&mut self.acceptor);
    }

    fn ended(&mut self, stream: StreamId, end: End) {
        if let Some(inbox) = self.streams.get_mut(&stream) {
            inbox.end = Some(end);
            inbox.wake();
        }
    }

    /// There is room for what writers wait with, perhaps.
    fn wake_writers(&mut self) {
        let connection = &self.connection;
        let mut waiting = self.streams.iter_mut().filter(|(_, inbox)| inbox.writer.is_some());
        for (_, inbox) in waiting.by_ref().filter(|(stream, _)| connection.can_send(**stream)) {
            wake(&mut inbox.writer);
        }
    }

    fn gone(&mut self) {
        self.life = Life::Gone;
        self.opened.clear();
        wake(&mut self.acceptor);
        self.streams.values_mut().for_each(Inbox::wake);
    }
}

impl Inbox {
    fn put(&mut self, bytes: Vec<u8>) {
        match self.pieces.back_mut() {
            Some(last) if last.bytes.len() + bytes.len() <= GATHERED_MAX => {
                last.bytes.extend_from_slice(&bytes);
            }
            _ => self.pieces.push_back(Piece { bytes, read: 0 }),
        }
    }

    fn wake(&mut self) {
        wake(&mut self.reader);
        wake(&mut self.writer);
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.mux.state();
        let is_gone = state.life == Life::Gone;
        let Some(inbox) = state.streams.get_mut(&self.id) else { return Poll::Ready(Err(reset())) };
        if inbox.end == Some(End::Reset) {
            return Poll::Ready(Err(reset()));
        }
        let Some(piece) = inbox.pieces.front_mut() else {
            if inbox.end == Some(End::Finished) {
                return Poll::Ready(Ok(()));
            }
            if is_gone {
                return Poll::Ready(Err(reset()));
            }
            inbox.reader = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let rest = &piece.bytes[piece.read..];
        let taken = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..taken]);
        piece.read += taken;
        if piece.read == piece.bytes.len() {
            inbox.pieces.pop_front();
        }
        state.connection.consumed(self.id, taken);
        state.wake_driver();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.mux.state();
        let is_gone = state.life == Life::Gone;
        let is_over = state.streams.get(&self.id).is_none_or(|inbox| inbox.end == Some(End::Reset));
        if is_gone || is_over || !state.connection.is_open(self.id) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let taken = state.connection.send(self.id, bytes);
        if taken > 0 || bytes.is_empty() {
            state.wake_driver();
            return Poll::Ready(Ok(taken));
        }
        if let Some(inbox) = state.streams.get_mut(&self.id) {
            inbox.writer = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.mux.state();
        state.connection.finish(self.id);
        state.wake_driver();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.mux.end(self.id, ResetStatus::Cancel);
    }
}

fn wake(waiting: &mut Option<Waker>) {
    if let Some(waker) = waiting.take() {
        waker.wake();
    }
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

/// Reads and writes a connection, until the peer has gone or the streams are closed.
#[derive(Debug)]
pub(super) struct Driver<T> {
    io: T,
    mux: Mux,
    buffer: Vec<u8>,
    unflushed: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Driver<T> {
    /// Gives the connection back when everything is written; streams have ended then.
    ///
    /// # Errors
    /// The connection has failed, or the peer broke the protocol.
    pub(super) async fn run(mut self) -> io::Result<T> {
        let driven = std::future::poll_fn(|cx| self.poll(cx)).await;
        self.mux.state().gone();
        driven.map(|()| self.io)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mux = self.mux.clone();
        let mut state = mux.state();
        state.driver = Some(cx.waker().clone());
        loop {
            let written = self.poll_write(cx, &mut state);
            if let Poll::Ready(result) = written {
                result?;
                if state.life == Life::Closing {
                    return Poll::Ready(Ok(()));
                }
            }
            if state.connection.holds_reading() {
                return Poll::Pending;
            }
            let mut read = ReadBuf::new(&mut self.buffer);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            let fed = state.connection.feed(read.filled());
            state.take_events();
            state.wake_writers();
            if let Err(error) = fed {
                // Its last frame says so; whether it arrives is the peer's affair.
                let _said = self.poll_write(cx, &mut state).is_ready();
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
            }
        }
    }

    /// Ready when all is written and flushed.
    fn poll_write(&mut self, cx: &mut Context<'_>, state: &mut State) -> Poll<io::Result<()>> {
        while !state.connection.output().pending().is_empty() {
            let pending = state.connection.output().pending();
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, pending))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            state.connection.output().written(written);
            self.unflushed = true;
            state.wake_writers();
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}
