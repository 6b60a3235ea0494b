//! What ends a connection.

/// The peer broke the protocol in a way that no stream alone can answer for. [`Output`](super::Output) has a GOAWAY as
/// its last frame: write it, and close the socket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// A control frame of another version.
    #[error("read a SPDY control frame: it has version {0}, spoken is 3")]
    Version(u16),
    /// A control frame that is longer than [`Limits::control_frame`](super::Limits::control_frame).
    #[error("read a SPDY {kind} frame: it has {len} bytes, taken are {max}")]
    TooLong {
        /// What the frame is.
        kind: &'static str,
        /// Bytes that it announces.
        len: usize,
        /// Bytes that are taken.
        max: usize,
    },
    /// A control frame whose length does not fit what it is.
    #[error("read a SPDY {kind} frame: {len} bytes are not what it has")]
    Length {
        /// What the frame is.
        kind: &'static str,
        /// Bytes that it has.
        len: usize,
    },
    /// A stream that the peer may not name so.
    #[error("read a SPDY {kind} frame: stream {stream} cannot be meant")]
    Stream {
        /// What the frame is.
        kind: &'static str,
        /// The stream that it names.
        stream: u32,
    },
    /// The compression of header blocks is not what the protocol says.
    #[error("read a SPDY header block: the compressed bytes are damaged, or not of SPDY/3")]
    Compression,
    /// A header block that is longer than [`Limits::header_block`](super::Limits::header_block).
    #[error("read a SPDY header block: it has more than {0} bytes")]
    HeaderBlock(usize),
    /// A window beyond what the protocol has, or an update of none.
    #[error("read a SPDY {kind} frame: it makes a window that cannot be")]
    Window {
        /// What the frame is.
        kind: &'static str,
    },
    /// More data than the window of the connection had room for.
    #[error("read a SPDY DATA frame: {len} bytes are more than the window of the connection has room for")]
    BeyondWindow {
        /// Bytes of the frame.
        len: usize,
    },
}
