//! Bounds of a connection.

/// What one peer may have held here. The [default](Limits::default) is for the streaming protocols of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a control frame after its head. A longer one ends the connection, since the header blocks after it
    /// cannot be read without it.
    pub control_frame: usize,
    /// Bytes of a header block after decompression; more end the connection.
    pub header_block: usize,
    /// Headers of one block; more end its stream.
    pub headers: usize,
    /// Streams that are open, or whose end the application has not seen yet. Others are refused.
    pub streams: usize,
    /// Bytes that a peer with flow control may send on a stream before the application has taken any.
    pub window: u32,
    /// Bytes of all streams that the application has not taken: at so many reading is held.
    pub unconsumed: usize,
    /// Bytes that wait to be written: at so many no more data is taken.
    pub output: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            // A stream has three headers of a few bytes. Room is left for those of other clients.
            control_frame: 16 << 10,
            header_block: 4 << 10,
            headers: 32,
            // A forwarded connection has two streams. Browsers open dozens at once.
            streams: 1024,
            // What the protocol has without SETTINGS, so that none are sent to peers that would ignore them.
            window: super::window::INITIAL,
            unconsumed: 1 << 20,
            output: 64 << 10,
        }
    }
}
