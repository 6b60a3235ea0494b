//! What a peer says, and the names and numbers in it.

use super::Headers;

/// A stream of a connection. Those that a client opens are odd, and grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

impl std::fmt::Display for StreamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Something that the peer did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A stream was opened. It waits for [`reply`](super::Connection::reply) or [`reset`](super::Connection::reset).
    Opened {
        /// The stream.
        stream: StreamId,
        /// What it is for.
        headers: Headers,
        /// The peer sends nothing on it: no [`Finished`](Event::Finished) follows.
        finished: bool,
    },
    /// Data of a stream. It counts as waiting until [`consumed`](super::Connection::consumed) says otherwise.
    Data {
        /// The stream.
        stream: StreamId,
        /// One byte at least. Where they are cut means nothing.
        bytes: Vec<u8>,
    },
    /// The peer sends nothing more on a stream.
    Finished {
        /// The stream.
        stream: StreamId,
    },
    /// A stream has ended at once in both directions, by the peer, or because the peer broke the protocol on it. It is
    /// forgotten: what the application holds of it is to be dropped, and counts no more.
    Reset {
        /// The stream.
        stream: StreamId,
        /// Why.
        status: ResetStatus,
    },
    /// The peer opens no more streams. Those that are open go on.
    GoAway,
    /// The peer has answered a [`ping`](super::Connection::ping).
    Pong {
        /// What `ping` returned.
        id: u32,
    },
}

/// Why a stream ends at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetStatus {
    /// The peer broke the protocol.
    ProtocolError,
    /// Data for a stream that is not open.
    InvalidStream,
    /// The stream was not accepted, and nothing was done for it.
    RefusedStream,
    /// Another version of the protocol.
    UnsupportedVersion,
    /// The stream is not needed any more.
    Cancel,
    /// A failure of the sender.
    InternalError,
    /// The peer sent more than its window had room for.
    FlowControlError,
    /// A reply to a stream that has one.
    StreamInUse,
    /// Something for a half of a stream that is closed.
    StreamAlreadyClosed,
    /// A frame that is too long.
    FrameTooLarge,
    /// A number of which this version of the protocol has no meaning.
    Other(u32),
}

impl From<u32> for ResetStatus {
    fn from(number: u32) -> ResetStatus {
        match number {
            1 => ResetStatus::ProtocolError,
            2 => ResetStatus::InvalidStream,
            3 => ResetStatus::RefusedStream,
            4 => ResetStatus::UnsupportedVersion,
            5 => ResetStatus::Cancel,
            6 => ResetStatus::InternalError,
            7 => ResetStatus::FlowControlError,
            8 => ResetStatus::StreamInUse,
            9 => ResetStatus::StreamAlreadyClosed,
            11 => ResetStatus::FrameTooLarge,
            other => ResetStatus::Other(other),
        }
    }
}

impl From<ResetStatus> for u32 {
    fn from(status: ResetStatus) -> u32 {
        match status {
            ResetStatus::ProtocolError => 1,
            ResetStatus::InvalidStream => 2,
            ResetStatus::RefusedStream => 3,
            ResetStatus::UnsupportedVersion => 4,
            ResetStatus::Cancel => 5,
            ResetStatus::InternalError => 6,
            ResetStatus::FlowControlError => 7,
            ResetStatus::StreamInUse => 8,
            ResetStatus::StreamAlreadyClosed => 9,
            ResetStatus::FrameTooLarge => 11,
            ResetStatus::Other(number) => number,
        }
    }
}

/// Why this end takes no more streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoAwayStatus {
    /// The connection has done its work.
    Ok,
    /// The peer broke the protocol.
    ProtocolError,
    /// A failure of this end.
    InternalError,
}

impl From<GoAwayStatus> for u32 {
    fn from(status: GoAwayStatus) -> u32 {
        match status {
            GoAwayStatus::Ok => 0,
            GoAwayStatus::ProtocolError => 1,
            GoAwayStatus::InternalError => 2,
        }
    }
}
