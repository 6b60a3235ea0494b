//! Bytes that wait to be written.

use super::Response;
use super::frame::{self, Flags, FrameError, MessageType};
use super::status::{Code, Status};

/// Capacity that a drained queue keeps; more is given back.
const KEPT_CAPACITY_MAX: usize = 16 << 10;

/// Encoded frames in the order in which they must be written.
#[derive(Debug, Default)]
pub struct Output {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were written.
    start: usize,
}

impl Output {
    /// What is to be written next.
    pub fn pending(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Notes that the first `len` of the [`pending`](Output::pending) bytes were written.
    pub fn written(&mut self, len: usize) {
        self.start = (self.start + len).min(self.buffer.len());
        if self.start == self.buffer.len() {
            self.start = 0;
            self.buffer.clear();
            if self.buffer.capacity() > KEPT_CAPACITY_MAX {
                self.buffer = Vec::new();
            }
        } else if self.start > KEPT_CAPACITY_MAX.max(self.pending().len()) {
            // A reader that is always a little behind must not make what it has read add up. What moves is less than
            // what was written since the last time.
            self.buffer.drain(..std::mem::take(&mut self.start));
        }
    }

    /// Takes all pending bytes.
    pub fn take(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.drain(..std::mem::take(&mut self.start));
        bytes
    }

    /// Queues the frame that opens a stream; a request that is too large is refused.
    pub(super) fn request(&mut self, stream: u32, flags: Flags, payload: &[u8]) -> Result<(), FrameError> {
        frame::encode(stream, MessageType::Request, flags, payload, &mut self.buffer)
    }

    /// Queues a message; one that is too large is refused.
    pub(super) fn data(&mut self, stream: u32, payload: &[u8]) -> Result<(), FrameError> {
        frame::encode(stream, MessageType::Data, Flags::NONE, payload, &mut self.buffer)
    }

    /// Queues the end of this end's messages on a stream.
    pub(super) fn half_close(&mut self, stream: u32) {
        frame::encode_half_close(stream, &mut self.buffer);
    }

    /// Queues a response; one that is too large becomes the status that says so, and so always fits.
    pub(super) fn response(&mut self, stream: u32, result: Result<Vec<u8>, Status>) {
        let response = match result {
            Ok(payload) => Response { status: None, payload },
            Err(status) => Response { status: Some(status.into()), payload: Vec::new() },
        };
        if let Err(error) = frame::encode_message(stream, MessageType::Response, &response, &mut self.buffer)
        {
            self.response(stream, Err(Status::new(Code::ResourceExhausted, error.to_string())));
        }
    }
}
