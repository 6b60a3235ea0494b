//! The end that accepted: takes calls and answers them, in any order.

use std::collections::BTreeMap;

use prost::Message;

use super::Request;
use super::frame::{Decoder, Flags, Frame, FrameError, MessageType};
use super::output::Output;
use super::status::{Code, Status};

/// Most streams of one connection that may be open at once. containerd needs one per call under way and one `Wait` per
/// process; the bound keeps a broken client from growing the table.
pub const STREAMS_MAX: usize = 4096;

/// How a call's messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One message each way.
    Unary,
    /// The request was everything that the client sends; the answer may be a stream.
    ClientClosed,
    /// The client sends more messages on the stream.
    ClientOpen,
}

/// What the client wants.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// A call, to be answered with [`Server::respond`] or, when it is streaming, ended with [`Server::finish`].
    Call {
        /// Its stream.
        stream: u32,
        /// How its messages travel.
        mode: Mode,
        /// What is called.
        request: Request,
    },
    /// A message on a stream.
    Data {
        /// The stream.
        stream: u32,
        /// The message.
        payload: Vec<u8>,
    },
    /// The client sends nothing more on a stream. The stream stays open for the answer.
    HalfClosed {
        /// The stream.
        stream: u32,
    },
    /// A stream ended because of what the client sent on it, which is how a client cancels too. It was told; nothing can be
    /// sent any more.
    Aborted {
        /// The stream.
        stream: u32,
    },
}

/// A connection's server end. It answers protocol errors itself.
///
/// Whoever drives it stops feeding while [`Output::pending`] is large, so that a client that does not read cannot make
/// it grow.
#[derive(Debug, Default)]
pub struct Server {
    decoder: Decoder,
    output: Output,
    streams: BTreeMap<u32, Mode>,
    last_id: u32,
    /// A half-close that arrived with the message that was just returned.
    closing: Option<u32>,
}

impl Server {
    /// Takes bytes in the order in which they were read.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.decoder.feed(bytes);
    }

    /// The next thing that the client wants.
    pub fn poll(&mut self) -> Option<Event> {
        // The stream may have been answered since.
        if let Some(stream) = self.closing.take().filter(|stream| self.streams.contains_key(stream)) {
            return Some(Event::HalfClosed { stream });
        }
        loop {
            let event = match self.decoder.next() {
                Ok(None) => return None,
                Ok(Some(frame)) => match frame.kind {
                    MessageType::Request => self.request(frame),
                    MessageType::Data => self.data(frame),
                    MessageType::Response | MessageType::Other(_) => None,
                },
                Err(error @ FrameError::Oversized { stream, .. }) => {
                    self.reject(stream, Status::new(Code::ResourceExhausted, error.to_string()))
                }
            };
            if event.is_some() {
                return event;
            }
        }
    }

    /// Ends a stream with an answer. Does nothing when the stream has ended already.
    pub fn respond(&mut self, stream: u32, result: Result<Vec<u8>, Status>) {
        if self.streams.remove(&stream).is_some() {
            self.output.response(stream, result);
        }
    }

    /// Queues one message of a streaming answer. Does nothing when the stream has ended already.
    ///
    /// # Errors
    /// When the message does not fit in a frame.
    pub fn send(&mut self, stream: u32, payload: &[u8]) -> Result<(), FrameError> {
        if self.streams.contains_key(&stream) { self.output.data(stream, payload) } else { Ok(()) }
    }

    /// Ends a streaming answer well. Does nothing when the stream has ended already.
    pub fn finish(&mut self, stream: u32) {
        if self.streams.remove(&stream).is_some() {
            self.output.half_close(stream);
        }
    }

    /// Whether a stream still waits for its end.
    pub fn is_open(&self, stream: u32) -> bool {
        self.streams.contains_key(&stream)
    }

    /// Streams that still wait for their end.
    pub fn open_streams(&self) -> impl Iterator<Item = u32> + '_ {
        self.streams.keys().copied()
    }

    /// Bytes to write.
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    fn request(&mut self, frame: Frame) -> Option<Event> {
        let Frame { stream, flags, payload, .. } = frame;
        if stream.is_multiple_of(2) {
            return self.refuse(stream, "a client's stream ids are odd");
        }
        if stream <= self.last_id {
            return self.refuse(stream, "stream ids grow and are used once");
        }
        self.last_id = stream;
        if self.streams.len() >= STREAMS_MAX {
            let full = format!("{STREAMS_MAX} calls are under way on this connection");
            self.output.response(stream, Err(Status::new(Code::ResourceExhausted, full)));
            return None;
        }
        let request = match Request::decode(payload.as_slice()) {
            Ok(request) => request,
            Err(error) => return self.refuse(stream, &format!("decode the request: {error}")),
        };
        let mode = if flags.contains(Flags::REMOTE_OPEN) {
            Mode::ClientOpen
        } else if flags.contains(Flags::REMOTE_CLOSED) {
            Mode::ClientClosed
        } else {
            Mode::Unary
        };
        self.streams.insert(stream, mode);
        Some(Event::Call { stream, mode, request })
    }

    fn data(&mut self, frame: Frame) -> Option<Event> {
        let Frame { stream, flags, payload, .. } = frame;
        let Some(mode) = self.streams.get_mut(&stream) else {
            // A stream that ended here while the client was sending is no mistake of the client's.
            let ended = stream <= self.last_id && !stream.is_multiple_of(2);
            return if ended { None } else { self.refuse(stream, "the stream was never opened") };
        };
        if *mode != Mode::ClientOpen {
            return self
                .reject(stream, Status::new(Code::InvalidArgument, "this end of the stream is closed"));
        }
        let closed = flags.contains(Flags::REMOTE_CLOSED);
        if closed {
            *mode = Mode::ClientClosed;
        }
        if !flags.contains(Flags::NO_DATA) {
            self.closing = closed.then_some(stream);
            return Some(Event::Data { stream, payload });
        }
        closed.then_some(Event::HalfClosed { stream })
    }

    /// Answers a frame that opens nothing. A live stream of that id stays as it is.
    fn refuse(&mut self, stream: u32, why: &str) -> Option<Event> {
        self.output.response(stream, Err(Status::new(Code::InvalidArgument, why)));
        None
    }

    /// Answers a bad frame, which ends its stream.
    fn reject(&mut self, stream: u32, status: Status) -> Option<Event> {
        self.output.response(stream, Err(status));
        self.streams.remove(&stream).map(|_| Event::Aborted { stream })
    }
}
