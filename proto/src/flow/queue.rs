//! Messages of a stream that wait, small ones together.

use std::collections::VecDeque;

use crate::shim::attach_output::What;

/// Bytes of one message. Who writes byte by byte must not fill queues with messages.
const PIECE_BYTES_MAX: usize = 16 << 10;

/// Output that waits, in order.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pieces: VecDeque<What>,
    bytes: usize,
}

impl Queue {
    /// Bytes of output that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(super) fn push(&mut self, what: What) {
        let len = len(&what);
        self.bytes += len;
        match (self.pieces.back_mut(), what) {
            (_, What::Stdout(bytes) | What::Stderr(bytes)) if bytes.is_empty() => {}
            (Some(What::Stdout(last)), What::Stdout(bytes))
            | (Some(What::Stderr(last)), What::Stderr(bytes))
                if last.len() + len <= PIECE_BYTES_MAX =>
            {
                last.extend_from_slice(&bytes);
            }
            (_, what) => self.pieces.push_back(what),
        }
    }

    pub(super) fn pop(&mut self) -> Option<What> {
        let what = self.pieces.pop_front()?;
        self.bytes -= len(&what);
        Some(what)
    }

    /// The next message, of whose bytes `cut` says how many may go. `None` when none may.
    pub(super) fn pop_within(&mut self, cut: impl FnOnce(usize) -> usize) -> Option<What> {
        let (What::Stdout(bytes) | What::Stderr(bytes)) = self.pieces.front_mut()? else { return self.pop() };
        let allowed = cut(bytes.len());
        if allowed == 0 {
            return None;
        }
        if allowed >= bytes.len() {
            return self.pop();
        }
        let rest = bytes.split_off(allowed);
        let now = std::mem::replace(bytes, rest);
        self.bytes -= now.len();
        Some(match self.pieces.front()? {
            What::Stderr(_) => What::Stderr(now),
            What::Stdout(_) | What::ExitCode(_) => What::Stdout(now),
        })
    }
}

/// Bytes that count.
fn len(what: &What) -> usize {
    match what {
        What::Stdout(bytes) | What::Stderr(bytes) => bytes.len(),
        What::ExitCode(_) => 0,
    }
}
