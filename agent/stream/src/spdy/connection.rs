//! The server's end: what its application asks for. What the peer says is in [`received`].

mod received;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use super::error::ConnectionError;
use super::event::{Event, GoAwayStatus, ResetStatus, StreamId};
use super::headers::Headers;
use super::inflate::Inflater;
use super::input::Input;
use super::limits::Limits;
use super::output::Output;
use super::stream::{Local, Remote, Stream};
use super::window::{self, ReceiveWindow, SendWindow};

/// Bytes of answers beyond [`Limits::output`] that wait to be written, at which reading is held: a peer that asks and
/// does not read must not have answers add up.
const ANSWERS_MAX: usize = 16 << 10;

/// Events that wait to be polled, at which reading is held.
const EVENTS_MAX: usize = 4096;

/// Pings that wait for their answers. More say nothing that these do not.
const PINGS_MAX: usize = 8;

/// What the peer has shown of flow control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FlowControl {
    /// Nothing: it is held by not reading.
    None,
    /// Streams have windows.
    Streams,
    /// So has the connection as a whole.
    Connection,
}

/// What becomes of the bytes of the DATA frame that is being read.
#[derive(Debug, Clone, Copy)]
enum Taking {
    /// They are for a stream, which they end or not.
    For { stream: u32, is_last: bool },
    /// They are for nobody.
    Nothing,
}

/// The server's end of a connection. The parts and the order of calls: [`feed`](Connection::feed) with what was read,
/// unless [`holds_reading`](Connection::holds_reading); [`poll`](Connection::poll) until there is nothing more; then write
/// what [`output`](Connection::output) has.
#[derive(Debug)]
pub struct Connection {
    limits: Limits,
    input: Input,
    inflater: Inflater,
    output: Output,
    events: VecDeque<Event>,
    streams: BTreeMap<u32, Stream>,
    /// The last stream that the peer has opened.
    last: u32,
    taking: Taking,
    flow: FlowControl,
    /// Window of a stream at the peer, at first.
    peer_window: u32,
    send: SendWindow,
    receive: ReceiveWindow,
    /// Bytes of all streams that the application has not taken.
    unconsumed: usize,
    pings: VecDeque<u32>,
    next_ping: u32,
    /// No more streams are taken.
    is_going: bool,
    /// The peer opens no more streams.
    peer_is_going: bool,
    failed: Option<ConnectionError>,
}

impl Connection {
    /// A connection of which nothing was read.
    pub fn new(limits: Limits) -> Connection {
        let mut output = Output::default();
        if limits.window != window::INITIAL {
            output.initial_window(limits.window.min(window::MAX));
        }
        Connection {
            limits,
            input: Input::new(limits.control_frame),
            inflater: Inflater::default(),
            output,
            events: VecDeque::new(),
            streams: BTreeMap::new(),
            last: 0,
            taking: Taking::Nothing,
            flow: FlowControl::None,
            peer_window: window::INITIAL,
            send: SendWindow::new(i64::from(window::INITIAL)),
            receive: ReceiveWindow::new(window::INITIAL),
            unconsumed: 0,
            pings: VecDeque::new(),
            next_ping: 2,
            is_going: false,
            peer_is_going: false,
            failed: None,
        }
    }

    /// Takes bytes in the order in which they were read.
    ///
    /// # Errors
    /// The connection is over, and says the same each time. Events of what came before can still be polled, and what
    /// waits in [`output`](Connection::output), a GOAWAY as its end, can be written.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let taken = self.take(bytes);
        if let Err(error) = &taken {
            self.output.go_away(self.last, GoAwayStatus::ProtocolError);
            self.failed = Some(error.clone());
        }
        taken
    }

    /// The next thing that the peer did.
    pub fn poll(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        match &event {
            Event::Reset { stream, .. } => self.forget(stream.0),
            Event::Opened { stream, .. } | Event::Data { stream, .. } | Event::Finished { stream } => {
                if let Some(known) = self.streams.get_mut(&stream.0) {
                    known.untold = known.untold.saturating_sub(1);
                }
                self.forget_if_over(stream.0);
            }
            Event::GoAway | Event::Pong { .. } => {}
        }
        Some(event)
    }

    /// Bytes to write.
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Accepts a stream. Peers drop what is sent on a stream before that, so [`send`](Connection::send) takes nothing.
    pub fn reply(&mut self, stream: StreamId, headers: &Headers) {
        if let Some(known) = self.usable(stream)
            && known.local == Local::Unreplied
        {
            known.local = Local::Open;
            self.output.syn_reply(stream.0, headers, false);
        }
    }

    /// Sends data and returns how many bytes were taken. Those that were not are to be offered again when output was
    /// written, or the peer has said that its window has grown: after each `written` and each `feed`.
    pub fn send(&mut self, stream: StreamId, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.room(stream));
        if let Some(known) = self.streams.get_mut(&stream.0)
            && len > 0
        {
            known.send.used(len);
            self.send.used(len);
            self.output.data(stream.0, &bytes[..len]);
        }
        len
    }

    /// Whether [`send`](Connection::send) would take anything now.
    pub fn can_send(&self, stream: StreamId) -> bool {
        self.room(stream) > 0
    }

    /// Whether this end may still send on a stream: it has not finished, and the peer takes something.
    pub fn is_open(&self, stream: StreamId) -> bool {
        let known = self.streams.get(&stream.0);
        known.is_some_and(|known| known.local != Local::Finished && known.remote != Remote::Reset)
    }

    /// Says that this end sends nothing more on a stream. One that was not accepted is accepted by that.
    pub fn finish(&mut self, stream: StreamId) {
        let Some(known) = self.usable(stream) else { return };
        match std::mem::replace(&mut known.local, Local::Finished) {
            Local::Unreplied => self.output.syn_reply(stream.0, &Headers::default(), true),
            Local::Open => self.output.finish(stream.0),
            Local::Finished => {}
        }
        self.forget_if_over(stream.0);
    }

    /// Ends a stream at once and forgets it: nothing more is heard of it, and what came of it counts no more.
    pub fn reset(&mut self, stream: StreamId, status: ResetStatus) {
        let Some(known) = self.streams.get(&stream.0) else { return };
        if known.remote != Remote::Reset && self.failed.is_none() {
            self.output.rst_stream(stream.0, status);
        }
        self.events.retain(|event| stream_of(event) != Some(stream));
        self.forget(stream.0);
    }

    /// Notes that the application has taken so many bytes of a stream's data, so that the peer may send more.
    pub fn consumed(&mut self, stream: StreamId, len: usize) {
        let Some(known) = self.streams.get_mut(&stream.0) else { return };
        let len = len.min(known.unconsumed);
        known.unconsumed -= len;
        let told = known.receive.consumed(len);
        let is_open = known.remote == Remote::Open;
        if let Some(delta) = told
            && is_open
            && self.failed.is_none()
        {
            self.output.window_update(stream.0, delta);
        }
        self.release(len);
        self.forget_if_over(stream.0);
    }

    /// Whether nothing is to be read from the peer now: what came and was not taken, or events that were not polled, or
    /// answers that were not written are as many as may be, or the connection is over. One call of
    /// [`feed`](Connection::feed) with `n` bytes adds no more than some ten times `n` to what is held, and the headers of
    /// the streams that may be open.
    pub fn holds_reading(&self) -> bool {
        self.failed.is_some()
            || self.unconsumed >= self.limits.unconsumed
            || self.output.pending().len() >= self.limits.output.saturating_add(ANSWERS_MAX)
            || self.events.len() >= EVENTS_MAX
    }

    /// Says that no more streams are taken. Those that are open go on; once the application has done with them, the
    /// shell closes the socket.
    pub fn go_away(&mut self, status: GoAwayStatus) {
        if !self.is_going && self.failed.is_none() {
            self.is_going = true;
            self.output.go_away(self.last, status);
        }
    }

    /// Asks the peer for a sign of life and returns the number of the question, which [`Event::Pong`] has. `None` when
    /// too many questions wait for an answer.
    pub fn ping(&mut self) -> Option<u32> {
        if self.pings.len() >= PINGS_MAX || self.failed.is_some() {
            return None;
        }
        let id = self.next_ping;
        self.next_ping = id.checked_add(2).unwrap_or(2);
        self.pings.push_back(id);
        self.output.ping(id);
        Some(id)
    }

    /// Streams that are open, or whose end was not polled yet, or whose data was not all consumed.
    pub fn streams(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.streams.keys().copied().map(StreamId)
    }

    /// A stream on which this end may do something.
    fn usable(&mut self, stream: StreamId) -> Option<&mut Stream> {
        let is_usable = self.failed.is_none();
        self.streams.get_mut(&stream.0).filter(|known| is_usable && known.remote != Remote::Reset)
    }

    fn room(&self, stream: StreamId) -> usize {
        let Some(known) = self.streams.get(&stream.0) else { return 0 };
        if known.local != Local::Open || known.remote == Remote::Reset || self.failed.is_some() {
            return 0;
        }
        let room = self.limits.output.saturating_sub(self.output.pending().len());
        match self.flow {
            FlowControl::None => room,
            FlowControl::Streams => room.min(known.send.room()),
            FlowControl::Connection => room.min(known.send.room()).min(self.send.room()),
        }
    }

    /// Notes that bytes of the connection do not wait for the application any more.
    fn release(&mut self, len: usize) {
        self.unconsumed = self.unconsumed.saturating_sub(len);
        self.returned(len);
    }

    /// Gives the peer back what it has used of the connection's window.
    fn returned(&mut self, len: usize) {
        if let Some(delta) = self.receive.consumed(len)
            && self.failed.is_none()
        {
            self.output.window_update(0, delta);
        }
    }

    fn forget_if_over(&mut self, stream: u32) {
        if self.streams.get(&stream).is_some_and(Stream::is_over) {
            self.streams.remove(&stream);
        }
    }

    fn forget(&mut self, stream: u32) {
        if let Some(known) = self.streams.remove(&stream) {
            self.release(known.unconsumed);
        }
    }
}

fn stream_of(event: &Event) -> Option<StreamId> {
    match event {
        Event::Opened { stream, .. }
        | Event::Data { stream, .. }
        | Event::Finished { stream }
        | Event::Reset { stream, .. } => Some(*stream),
        Event::GoAway | Event::Pong { .. } => None,
    }
}
