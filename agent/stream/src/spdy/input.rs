//! Splits what was read into frames. Bodies of control frames are gathered, data goes through in pieces.

use super::ConnectionError;
use super::frame::{CONTROL, HEAD_LEN, Kind, LEN_MAX, LOW_31, VERSION};

/// A frame, or a part of one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'i> {
    /// A whole control frame.
    Control { kind: Kind, flags: u8, body: Vec<u8> },
    /// The head of a DATA frame, after which come its bytes, if it has any.
    Head { stream: u32, flags: u8, len: usize },
    /// The next bytes of the DATA frame.
    Bytes { bytes: &'i [u8], is_last: bool },
}

#[derive(Debug)]
enum State {
    /// The first bytes of a head.
    Head,
    /// The body of a control frame.
    Body { kind: Kind, flags: u8, len: usize },
    /// Bytes of a DATA frame that are still to come.
    Data { left: usize },
    /// Bytes of a frame that nobody knows.
    Skip { left: usize },
}

#[derive(Debug)]
pub(super) struct Input {
    control_frame_max: usize,
    state: State,
    /// What came of the head or the body.
    gathered: Vec<u8>,
}

impl Input {
    pub(super) fn new(control_frame_max: usize) -> Input {
        Input { control_frame_max, state: State::Head, gathered: Vec::new() }
    }

    /// Takes bytes from `rest` until a piece is whole, or all were taken.
    pub(super) fn next<'i>(&mut self, rest: &mut &'i [u8]) -> Result<Option<Piece<'i>>, ConnectionError> {
        loop {
            match self.state {
                State::Head => {
                    let Some(head) = self.gather(HEAD_LEN, rest) else { return Ok(None) };
                    if let Some(piece) = self.head(&head)? {
                        return Ok(Some(piece));
                    }
                }
                State::Body { kind, flags, len } => {
                    let Some(body) = self.gather(len, rest) else { return Ok(None) };
                    self.state = State::Head;
                    return Ok(Some(Piece::Control { kind, flags, body }));
                }
                State::Data { left } => {
                    let bytes = take(left, rest);
                    if bytes.is_empty() {
                        return Ok(None);
                    }
                    let left = left - bytes.len();
                    self.state = if left == 0 { State::Head } else { State::Data { left } };
                    return Ok(Some(Piece::Bytes { bytes, is_last: left == 0 }));
                }
                State::Skip { left } => {
                    let left = left - take(left, rest).len();
                    if left > 0 {
                        self.state = State::Skip { left };
                        return Ok(None);
                    }
                    self.state = State::Head;
                }
            }
        }
    }

    fn gather(&mut self, len: usize, rest: &mut &[u8]) -> Option<Vec<u8>> {
        let missing = len.saturating_sub(self.gathered.len());
        self.gathered.extend_from_slice(take(missing, rest));
        (self.gathered.len() >= len).then(|| std::mem::take(&mut self.gathered))
    }

    fn head(&mut self, head: &[u8]) -> Result<Option<Piece<'static>>, ConnectionError> {
        let &[a, b, c, d, flags, e, f, g] = head else { return Ok(None) };
        let first = u32::from_be_bytes([a, b, c, d]);
        let len = usize::try_from(u32::from_be_bytes([0, e, f, g])).unwrap_or(LEN_MAX);
        if first & CONTROL == 0 {
            self.state = if len == 0 { State::Head } else { State::Data { left: len } };
            return Ok(Some(Piece::Head { stream: first & LOW_31, flags, len }));
        }
        let version = u16::from_be_bytes([a, b]) & 0x7fff;
        if version != VERSION {
            return Err(ConnectionError::Version(version));
        }
        let Some(kind) = Kind::of(u16::from_be_bytes([c, d])) else {
            self.state = State::Skip { left: len };
            return Ok(None);
        };
        if len > self.control_frame_max {
            return Err(ConnectionError::TooLong { kind: kind.name(), len, max: self.control_frame_max });
        }
        if !kind.takes(len) {
            return Err(ConnectionError::Length { kind: kind.name(), len });
        }
        self.state = State::Body { kind, flags, len };
        Ok(None)
    }
}

fn take<'i>(len: usize, rest: &mut &'i [u8]) -> &'i [u8] {
    let (taken, after) = rest.split_at(len.min(rest.len()));
    *rest = after;
    taken
}
