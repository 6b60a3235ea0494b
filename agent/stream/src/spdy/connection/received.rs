//! What the peer says.

use super::super::error::ConnectionError;
use super::super::event::{Event, ResetStatus, StreamId};
use super::super::frame::{FIN, INITIAL_WINDOW_SIZE, Kind, LOW_31, UNIDIRECTIONAL, word};
use super::super::headers::Headers;
use super::super::input::Piece;
use super::super::stream::{Local, Remote, Stream};
use super::super::window::{self, ReceiveWindow, SendWindow};
use super::{Connection, FlowControl, Taking};

/// Most bytes of one [`Event::Data`] that pieces are gathered in.
const GATHERED_MAX: usize = 64 << 10;

impl Connection {
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        let mut rest = bytes;
        while let Some(piece) = self.input.next(&mut rest)? {
            match piece {
                Piece::Control { kind, flags, body } => self.control(kind, flags, &mut body.as_slice())?,
                Piece::Head { stream, flags, len } => self.data_head(stream, flags, len)?,
                Piece::Bytes { bytes, is_last } => self.data(bytes, is_last),
            }
        }
        Ok(())
    }

    fn control(&mut self, kind: Kind, flags: u8, body: &mut &[u8]) -> Result<(), ConnectionError> {
        match kind {
            Kind::SynStream => self.syn_stream(flags, body)?,
            Kind::SynReply => self.syn_reply(body)?,
            Kind::RstStream => self.rst_stream(body)?,
            Kind::Settings => self.settings(body)?,
            Kind::Ping => self.pinged(word(body)),
            Kind::GoAway => {
                if !std::mem::replace(&mut self.peer_is_going, true) {
                    self.events.push_back(Event::GoAway);
                }
            }
            Kind::Headers => self.headers(flags, body)?,
            Kind::WindowUpdate => self.window_update(body)?,
        }
        Ok(())
    }

    fn syn_stream(&mut self, flags: u8, body: &mut &[u8]) -> Result<(), ConnectionError> {
        let stream = word(body) & LOW_31;
        // A stream that it belongs to, a priority and a slot for certificates: they mean nothing here.
        word(body);
        let block = self.inflater.block(body.get(2..).unwrap_or_default(), self.limits.header_block)?;
        if stream.is_multiple_of(2) || stream <= self.last {
            return Err(ConnectionError::Stream { kind: Kind::SynStream.name(), stream });
        }
        if self.is_going {
            return Ok(());
        }
        self.last = stream;
        let Ok(headers) = Headers::decode(&block, self.limits.headers) else {
            self.output.rst_stream(stream, ResetStatus::ProtocolError);
            return Ok(());
        };
        if self.streams.len() >= self.limits.streams {
            self.output.rst_stream(stream, ResetStatus::RefusedStream);
            return Ok(());
        }
        let finished = flags & FIN != 0;
        let opened = Stream {
            local: if flags & UNIDIRECTIONAL == 0 { Local::Unreplied } else { Local::Finished },
            remote: if finished { Remote::Finished } else { Remote::Open },
            send: SendWindow::new(i64::from(self.peer_window)),
            receive: ReceiveWindow::new(self.limits.window),
            unconsumed: 0,
            untold: 1,
        };
        self.streams.insert(stream, opened);
        self.events.push_back(Event::Opened { stream: StreamId(stream), headers, finished });
        Ok(())
    }

    /// This end opens no streams, so there is none that could be replied to.
    fn syn_reply(&mut self, body: &mut &[u8]) -> Result<(), ConnectionError> {
        let stream = word(body) & LOW_31;
        self.inflater.block(body, self.limits.header_block)?;
        if self.streams.contains_key(&stream) {
            self.broken(stream, ResetStatus::StreamInUse);
            return Ok(());
        }
        self.not_open(Kind::SynReply.name(), stream)
    }

    /// More headers of a stream mean nothing in these protocols. They may end it.
    fn headers(&mut self, flags: u8, body: &mut &[u8]) -> Result<(), ConnectionError> {
        let stream = word(body) & LOW_31;
        let block = self.inflater.block(body, self.limits.header_block)?;
        match self.streams.get(&stream).map(|known| known.remote) {
            None => self.not_open(Kind::Headers.name(), stream)?,
            Some(Remote::Finished) => self.broken(stream, ResetStatus::StreamAlreadyClosed),
            Some(Remote::Open) if Headers::decode(&block, self.limits.headers).is_err() => {
                self.broken(stream, ResetStatus::ProtocolError);
            }
            Some(Remote::Open) if flags & FIN != 0 => self.finished(stream),
            Some(Remote::Open | Remote::Reset) => {}
        }
        Ok(())
    }

    fn rst_stream(&mut self, body: &mut &[u8]) -> Result<(), ConnectionError> {
        let (stream, status) = (word(body) & LOW_31, word(body));
        if stream == 0 {
            return Err(ConnectionError::Stream { kind: Kind::RstStream.name(), stream });
        }
        self.ended(stream, ResetStatus::from(status));
        Ok(())
    }

    fn settings(&mut self, body: &mut &[u8]) -> Result<(), ConnectionError> {
        let kind = Kind::Settings.name();
        let count = usize::try_from(word(body)).unwrap_or(usize::MAX);
        if count.checked_mul(8) != Some(body.len()) {
            return Err(ConnectionError::Length { kind, len: body.len() + 4 });
        }
        let mut window = None;
        while !body.is_empty() {
            let (flags_and_id, value) = (word(body), word(body));
            // Of several values the first one counts.
            if flags_and_id & 0xff_ffff == INITIAL_WINDOW_SIZE && window.is_none() {
                window = Some(value);
            }
        }
        let Some(window) = window else { return Ok(()) };
        let by = i64::from(window) - i64::from(self.peer_window);
        if window > window::MAX || self.streams.values_mut().any(|known| known.send.change(by).is_err()) {
            return Err(ConnectionError::Window { kind });
        }
        self.peer_window = window;
        self.shown(FlowControl::Streams);
        Ok(())
    }

    fn pinged(&mut self, id: u32) {
        if !id.is_multiple_of(2) {
            self.output.ping(id);
        } else if let Some(at) = self.pings.iter().position(|asked| *asked == id) {
            self.pings.remove(at);
            self.events.push_back(Event::Pong { id });
        }
    }

    fn window_update(&mut self, body: &mut &[u8]) -> Result<(), ConnectionError> {
        let (stream, delta) = (word(body) & LOW_31, word(body) & LOW_31);
        let by = i64::from(delta);
        if stream == 0 {
            if delta == 0 || self.send.change(by).is_err() {
                return Err(ConnectionError::Window { kind: Kind::WindowUpdate.name() });
            }
            self.shown(FlowControl::Connection);
            return Ok(());
        }
        self.shown(FlowControl::Streams);
        // One that is over may have been told so after the update was sent.
        let Some(known) = self.streams.get_mut(&stream) else { return Ok(()) };
        if delta == 0 {
            self.broken(stream, ResetStatus::ProtocolError);
        } else if known.send.change(by).is_err() {
            self.broken(stream, ResetStatus::FlowControlError);
        }
        Ok(())
    }

    fn data_head(&mut self, stream: u32, flags: u8, len: usize) -> Result<(), ConnectionError> {
        if stream == 0 {
            return Err(ConnectionError::Stream { kind: "DATA", stream });
        }
        if !self.receive.received(len) && self.flow == FlowControl::Connection {
            return Err(ConnectionError::BeyondWindow { len });
        }
        self.taking = Taking::Nothing;
        let has_windows = self.flow >= FlowControl::Streams;
        let Some(known) = self.streams.get_mut(&stream) else { return self.not_open("DATA", stream) };
        match known.remote {
            Remote::Open => {
                if !known.receive.received(len) && has_windows {
                    self.broken(stream, ResetStatus::FlowControlError);
                } else if len > 0 {
                    self.taking = Taking::For { stream, is_last: flags & FIN != 0 };
                } else if flags & FIN != 0 {
                    self.finished(stream);
                }
            }
            Remote::Finished => self.broken(stream, ResetStatus::StreamAlreadyClosed),
            // It ended here, which the peer did not know.
            Remote::Reset => {}
        }
        Ok(())
    }

    fn data(&mut self, bytes: &[u8], is_last_of_frame: bool) {
        let Taking::For { stream, is_last } = self.taking else { return self.returned(bytes.len()) };
        // The application may have reset it while the frame came.
        let Some(known) = self.streams.get_mut(&stream) else { return self.returned(bytes.len()) };
        known.unconsumed += bytes.len();
        self.unconsumed += bytes.len();
        match self.events.back_mut() {
            Some(Event::Data { stream: last, bytes: gathered })
                if last.0 == stream && gathered.len() + bytes.len() <= GATHERED_MAX =>
            {
                gathered.extend_from_slice(bytes);
            }
            Some(_) | None => {
                known.untold += 1;
                self.events.push_back(Event::Data { stream: StreamId(stream), bytes: bytes.to_vec() });
            }
        }
        if is_last && is_last_of_frame {
            self.finished(stream);
        }
    }

    fn finished(&mut self, stream: u32) {
        if let Some(known) = self.streams.get_mut(&stream) {
            known.remote = Remote::Finished;
            known.untold += 1;
            self.events.push_back(Event::Finished { stream: StreamId(stream) });
        }
    }

    /// Answers what was said about a stream that is not open: one that is over may be spoken of by a peer that does
    /// not know yet, one that never was may not.
    fn not_open(&mut self, kind: &'static str, stream: u32) -> Result<(), ConnectionError> {
        if stream == 0 {
            return Err(ConnectionError::Stream { kind, stream });
        }
        let never_was = stream.is_multiple_of(2) || stream > self.last;
        if never_was && !self.is_going {
            self.output.rst_stream(stream, ResetStatus::InvalidStream);
        }
        Ok(())
    }

    /// Ends a stream on which the peer has broken the protocol.
    fn broken(&mut self, stream: u32, status: ResetStatus) {
        if self.ended(stream, status) {
            self.output.rst_stream(stream, status);
        }
    }

    /// Ends a stream that is open.
    fn ended(&mut self, stream: u32, status: ResetStatus) -> bool {
        let Some(known) = self.streams.get_mut(&stream).filter(|known| known.remote != Remote::Reset) else {
            return false;
        };
        known.remote = Remote::Reset;
        known.untold += 1;
        self.events.push_back(Event::Reset { stream: StreamId(stream), status });
        true
    }

    fn shown(&mut self, flow: FlowControl) {
        if self.flow == FlowControl::None {
            // All that may wait here may be on its way, whichever streams it is for.
            let size = u32::try_from(self.limits.unconsumed).unwrap_or(window::MAX);
            if let Some(delta) = self.receive.enlarge(size) {
                self.output.window_update(0, delta);
            }
        }
        self.flow = self.flow.max(flow);
    }
}
