//! What is known of one stream.

use super::window::{ReceiveWindow, SendWindow};

/// What this end may still send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Local {
    /// A reply, before anything else.
    Unreplied,
    /// Data.
    Open,
    /// Nothing.
    Finished,
}

/// What may still come from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remote {
    /// Data.
    Open,
    /// Nothing but a reset.
    Finished,
    /// Nothing: the stream is over, and the application is to hear that.
    Reset,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) local: Local,
    pub(super) remote: Remote,
    pub(super) send: SendWindow,
    pub(super) receive: ReceiveWindow,
    /// Bytes that came and that the application has not taken.
    pub(super) unconsumed: usize,
    /// Events that the application has not heard.
    pub(super) untold: usize,
}

impl Stream {
    /// Whether nothing more is to happen on the stream.
    pub(super) fn is_over(&self) -> bool {
        let is_finished = self.local == Local::Finished && self.remote == Remote::Finished;
        is_finished && self.untold == 0 && self.unconsumed == 0
    }
}
