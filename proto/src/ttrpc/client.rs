//! The end that connected: opens streams and sorts what comes back.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::Message;

use super::frame::{Decoder, Flags, Frame, FrameError, MessageType};
use super::output::Output;
use super::server::STREAMS_MAX;
use super::status::{Code, Status};
use super::{Request, Response};

/// Why a stream could not be opened or used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// [`STREAMS_MAX`] streams are open.
    #[error("open a stream: {STREAMS_MAX} are open on this connection")]
    TooManyStreams,
    /// Every stream id of the connection was used: make a new connection.
    #[error("open a stream: all ids of this connection were used")]
    IdsExhausted,
    /// The stream has ended, or this end of it has.
    #[error("send on stream {0}: it is closed")]
    Closed(u32),
    /// The message does not fit in a frame.
    #[error("send a message")]
    TooLarge(#[source] FrameError),
}

/// What the other end said about a stream that is open here.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// One message of a streaming call.
    Data {
        /// The stream.
        stream: u32,
        /// The message.
        payload: Vec<u8>,
    },
    /// The stream's end and its result. A streaming call that ends well without a last message has an empty one.
    End {
        /// The stream, which is forgotten now.
        stream: u32,
        /// The message that ends it, or why it failed.
        result: Result<Vec<u8>, Status>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Local {
    /// A unary call: its request was everything.
    Unary,
    /// A streaming call on which this end may send.
    Open,
    /// A streaming call on which this end has sent everything.
    Closed,
}

/// A connection's client end. Frames about streams that are not open are dropped, as Go's client drops them.
#[derive(Debug)]
pub struct Client {
    decoder: Decoder,
    output: Output,
    streams: BTreeMap<u32, Local>,
    next_id: Option<u32>,
    /// The end of a stream whose last message was just returned.
    ending: Option<u32>,
}

impl Default for Client {
    fn default() -> Client {
        Client {
            decoder: Decoder::default(),
            output: Output::default(),
            streams: BTreeMap::new(),
            next_id: Some(1),
            ending: None,
        }
    }
}

impl Client {
    /// Queues a call with one message each way and returns its stream.
    ///
    /// # Errors
    /// When the request does not fit, or no stream is free.
    pub fn call(&mut self, request: &Request) -> Result<u32, ClientError> {
        self.open(request, Flags::NONE, Local::Unary)
    }

    /// Queues a call with any number of messages each way and returns its stream. The messages follow with
    /// [`send`](Client::send); `request.payload` stays empty.
    ///
    /// # Errors
    /// When the request does not fit, or no stream is free.
    pub fn call_streaming(&mut self, request: &Request) -> Result<u32, ClientError> {
        self.open(request, Flags::REMOTE_OPEN, Local::Open)
    }

    /// Queues a call with one message there and any number back, and returns its stream.
    ///
    /// # Errors
    /// When the request does not fit, or no stream is free.
    pub fn call_server_streaming(&mut self, request: &Request) -> Result<u32, ClientError> {
        self.open(request, Flags::REMOTE_CLOSED, Local::Closed)
    }

    /// Queues a message on a streaming call.
    ///
    /// # Errors
    /// When this end of the stream is closed, or the message does not fit.
    pub fn send(&mut self, stream: u32, payload: &[u8]) -> Result<(), ClientError> {
        if self.streams.get(&stream) != Some(&Local::Open) {
            return Err(ClientError::Closed(stream));
        }
        self.output.data(stream, payload).map_err(ClientError::TooLarge)
    }

    /// Says that this end sends nothing more on a streaming call.
    ///
    /// # Errors
    /// When that was said before, or the stream has ended.
    pub fn close_send(&mut self, stream: u32) -> Result<(), ClientError> {
        match self.streams.get_mut(&stream) {
            Some(local @ Local::Open) => *local = Local::Closed,
            Some(Local::Unary | Local::Closed) | None => return Err(ClientError::Closed(stream)),
        }
        self.output.half_close(stream);
        Ok(())
    }

    /// Ends a stream from this end. What the other end still says about it is dropped.
    ///
    /// The protocol has no cancellation, but a frame on a stream of which this end is closed ends it with an error. So that
    /// is sent, and [`Server`](super::Server) tells it as [`Event::Aborted`](super::Event::Aborted), as it always has.
    pub fn cancel(&mut self, stream: u32) {
        match self.streams.remove(&stream) {
            Some(Local::Open) => {
                self.output.half_close(stream);
                self.output.half_close(stream);
            }
            Some(Local::Unary | Local::Closed) => self.output.half_close(stream),
            None => {}
        }
    }

    /// Stops waiting for a stream. The other end goes on, and what it says about the stream is dropped.
    pub fn forget(&mut self, stream: u32) {
        self.streams.remove(&stream);
    }

    /// Takes bytes in the order in which they were read.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.decoder.feed(bytes);
    }

    /// The next thing that the other end said.
    pub fn poll(&mut self) -> Option<Reply> {
        // The stream may have been forgotten since.
        if let Some(end) = self.ending.take().and_then(|stream| self.end(stream, Ok(Vec::new()))) {
            return Some(end);
        }
        loop {
            let reply = match self.decoder.next() {
                Ok(None) => return None,
                Ok(Some(frame)) => self.frame(frame),
                Err(error @ FrameError::Oversized { stream, .. }) => {
                    self.end(stream, Err(Status::new(Code::ResourceExhausted, error.to_string())))
                }
            };
            if reply.is_some() {
                return reply;
            }
        }
    }

    /// Bytes to write.
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Streams that are open, in the order in which they were opened.
    pub fn open_streams(&self) -> impl Iterator<Item = u32> + '_ {
        self.streams.keys().copied()
    }

    fn open(&mut self, request: &Request, flags: Flags, local: Local) -> Result<u32, ClientError> {
        if self.streams.len() >= STREAMS_MAX {
            return Err(ClientError::TooManyStreams);
        }
        let stream = self.next_id.ok_or(ClientError::IdsExhausted)?;
        self.output.request(stream, flags, &request.encode_to_vec()).map_err(ClientError::TooLarge)?;
        self.next_id = stream.checked_add(2);
        self.streams.insert(stream, local);
        Ok(stream)
    }

    fn frame(&mut self, frame: Frame) -> Option<Reply> {
        let Frame { stream, kind, flags, payload } = frame;
        let local = *self.streams.get(&stream)?;
        match kind {
            MessageType::Response => self.end(stream, result_of(&payload)),
            MessageType::Data if local == Local::Unary => self
                .end(stream, Err(Status::new(Code::Internal, "the answer to a unary call is stream data"))),
            MessageType::Data => {
                let closed = flags.contains(Flags::REMOTE_CLOSED);
                if !flags.contains(Flags::NO_DATA) {
                    self.ending = closed.then_some(stream);
                    return Some(Reply::Data { stream, payload });
                }
                if closed { self.end(stream, Ok(Vec::new())) } else { None }
            }
            MessageType::Request | MessageType::Other(_) => None,
        }
    }

    fn end(&mut self, stream: u32, result: Result<Vec<u8>, Status>) -> Option<Reply> {
        self.streams.remove(&stream).map(|_| Reply::End { stream, result })
    }
}

fn result_of(response: &[u8]) -> Result<Vec<u8>, Status> {
    let response = Response::decode(response)
        .map_err(|error| Status::new(Code::Internal, format!("the answer cannot be decoded: {error}")))?;
    match response.status.map(Status::from) {
        Some(status) if status.code != Code::Ok => Err(status),
        Some(_) | None => Ok(response.payload),
    }
}

impl Request {
    /// A request for a method. `timeout` goes along as advice for the server; zero is none.
    pub fn of<M: Message>(service: &str, method: &str, message: &M, timeout: Duration) -> Request {
        Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload: message.encode_to_vec(),
            timeout_nano: i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX),
            metadata: Vec::new(),
        }
    }

    /// The message that the request carries.
    ///
    /// # Errors
    /// `InvalidArgument` when the bytes are not that message.
    pub fn message<M: Message + Default>(&self) -> Result<M, Status> {
        M::decode(self.payload.as_slice()).map_err(|error| {
            let Request { service, method, .. } = self;
            Status::new(Code::InvalidArgument, format!("decode the request of {service}/{method}: {error}"))
        })
    }
}
