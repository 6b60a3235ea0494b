//! The frame: a header of ten bytes and up to four mebibytes of message.

use prost::Message;

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 10;

/// Largest message that may follow a header.
pub const MESSAGE_LEN_MAX: usize = 4 << 20;

/// Capacity that a drained [`Decoder`] keeps for the next frames; more is given back.
const KEPT_CAPACITY_MAX: usize = 16 << 10;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageType {
    /// Opens a stream.
    Request,
    /// Ends a stream with a result.
    Response,
    /// One message of an open stream.
    Data,
    /// A message type of a later version of the protocol, to be ignored.
    Other(u8),
}

impl MessageType {
    fn byte(self) -> u8 {
        match self {
            MessageType::Request => 1,
            MessageType::Response => 2,
            MessageType::Data => 3,
            MessageType::Other(byte) => byte,
        }
    }
}

impl From<u8> for MessageType {
    fn from(byte: u8) -> MessageType {
        match byte {
            1 => MessageType::Request,
            2 => MessageType::Response,
            3 => MessageType::Data,
            other => MessageType::Other(other),
        }
    }
}

/// Flags of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// None: the only value of a unary request and of a response.
    pub const NONE: Flags = Flags(0);
    /// The sender sends nothing more on this stream.
    pub const REMOTE_CLOSED: Flags = Flags(1);
    /// The sender of this request will send data on its stream.
    pub const REMOTE_OPEN: Flags = Flags(2);
    /// The frame carries no message, not even an empty one.
    pub const NO_DATA: Flags = Flags(4);

    /// Whether every flag of `other` is set.
    pub fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The stream it belongs to.
    pub stream: u32,
    /// What it is for.
    pub kind: MessageType,
    /// Its flags.
    pub flags: Flags,
    /// The message.
    pub payload: Vec<u8>,
}

/// A frame that cannot be taken. The bytes after it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Its message is longer than [`MESSAGE_LEN_MAX`]. The decoder skips it as it arrives.
    #[error("message length {len} exceeds the maximum message size of {MESSAGE_LEN_MAX}")]
    Oversized {
        /// The stream it belongs to.
        stream: u32,
        /// What it was for.
        kind: MessageType,
        /// Bytes that its header announced.
        len: u32,
    },
}

/// Splits a byte stream into frames. Holds at most one unfinished frame and what one [`feed`](Decoder::feed) brought.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were already returned as frames.
    start: usize,
    /// Bytes of an oversized message that are still to come.
    skip: usize,
}

impl Decoder {
    /// Takes bytes in the order in which they were read.
    pub fn feed(&mut self, bytes: &[u8]) {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(&bytes[skipped..]);
    }

    /// The next whole frame, if its last byte has come.
    ///
    /// # Errors
    /// [`FrameError`] stands for one frame; the frames after it follow as usual.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator would end for good where this one waits for bytes"
    )]
    pub fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let pending = &self.buffer[self.start..];
        let Some((header, rest)) = pending.split_first_chunk::<HEADER_LEN>() else {
            self.give_back();
            return Ok(None);
        };
        let [l0, l1, l2, l3, s0, s1, s2, s3, kind, flags] = *header;
        let announced = u32::from_be_bytes([l0, l1, l2, l3]);
        let stream = u32::from_be_bytes([s0, s1, s2, s3]);
        let kind = MessageType::from(kind);
        let len = usize::try_from(announced).unwrap_or(usize::MAX);
        if len > MESSAGE_LEN_MAX {
            let here = rest.len().min(len);
            self.start += HEADER_LEN + here;
            self.skip = len - here;
            return Err(FrameError::Oversized { stream, kind, len: announced });
        }
        let Some(payload) = rest.get(..len) else {
            self.buffer.reserve(HEADER_LEN + len - pending.len());
            return Ok(None);
        };
        let payload = payload.to_vec();
        self.start += HEADER_LEN + len;
        Ok(Some(Frame { stream, kind, flags: Flags(flags), payload }))
    }

    /// Whether the bytes so far end in the middle of a frame, so that an end of the stream here is a loss.
    pub fn is_mid_frame(&self) -> bool {
        self.skip > 0 || self.start < self.buffer.len()
    }

    /// Frees what a large frame needed, once nothing is pending: an idle connection costs little memory.
    fn give_back(&mut self) {
        if self.start == self.buffer.len() && self.buffer.capacity() > KEPT_CAPACITY_MAX {
            self.buffer = Vec::new();
            self.start = 0;
        }
    }
}

/// Appends a frame to `out`.
///
/// # Errors
/// [`FrameError::Oversized`] when `payload` is longer than [`MESSAGE_LEN_MAX`]; `out` is as before.
pub fn encode(
    stream: u32,
    kind: MessageType,
    flags: Flags,
    payload: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), FrameError> {
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    if payload.len() > MESSAGE_LEN_MAX {
        return Err(FrameError::Oversized { stream, kind, len });
    }
    out.reserve(HEADER_LEN + payload.len());
    push_header(len, stream, kind, flags, out);
    out.extend_from_slice(payload);
    Ok(())
}

/// Appends a frame whose message is encoded in its place: a large one is not held twice.
pub(super) fn encode_message(
    stream: u32,
    kind: MessageType,
    message: &impl Message,
    out: &mut Vec<u8>,
) -> Result<(), FrameError> {
    let len = message.encoded_len();
    let announced = u32::try_from(len).unwrap_or(u32::MAX);
    if len > MESSAGE_LEN_MAX {
        return Err(FrameError::Oversized { stream, kind, len: announced });
    }
    out.reserve(HEADER_LEN + len);
    push_header(announced, stream, kind, Flags::NONE, out);
    message.encode_raw(out);
    Ok(())
}

/// Appends the frame that ends a stream of data.
pub(super) fn encode_half_close(stream: u32, out: &mut Vec<u8>) {
    push_header(0, stream, MessageType::Data, Flags::REMOTE_CLOSED | Flags::NO_DATA, out);
}

fn push_header(len: u32, stream: u32, kind: MessageType, flags: Flags, out: &mut Vec<u8>) {
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(&[kind.byte(), flags.0]);
}
