//! The two ends of a stream's output.

use super::credit::{Credit, Overrun, Window};
use super::queue::Queue;
use crate::shim::attach_output::What;

/// The sending end: output that waits until the other end takes it.
#[derive(Debug, Default)]
pub struct Outbox {
    credit: Credit,
    waiting: Queue,
}

impl Outbox {
    /// Puts something behind what waits.
    pub fn push(&mut self, what: What) {
        self.waiting.push(what);
    }

    /// The other end takes so many bytes more.
    pub fn grant(&mut self, bytes: u64) {
        self.credit.grant(bytes);
    }

    /// What may be sent now. An exit code needs no credit, and comes after everything before it.
    pub fn pop(&mut self) -> Option<What> {
        self.waiting.pop_within(|bytes| self.credit.take(bytes))
    }

    /// Bytes that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.bytes()
    }

    /// Whether everything was sent.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether more could be sent at once.
    pub fn has_room(&self) -> bool {
        self.waiting.is_empty() && self.credit.is_left()
    }
}

/// The receiving end: output that waits until the application takes it.
#[derive(Debug)]
pub struct Inbox {
    window: Window,
    waiting: Queue,
}

impl Inbox {
    /// Keeps so many bytes at most. Nothing is granted yet.
    pub fn new(bytes: u64) -> Self {
        Self { window: Window::new(bytes), waiting: Queue::default() }
    }

    /// Something has come.
    ///
    /// # Errors
    /// When it is more than was granted. It is not kept.
    pub fn push(&mut self, what: What) -> Result<(), Overrun> {
        if let What::Stdout(bytes) | What::Stderr(bytes) = &what {
            self.window.receive(bytes.len())?;
        }
        self.waiting.push(what);
        Ok(())
    }

    /// The next message for the application.
    pub fn pop(&mut self) -> Option<What> {
        self.waiting.pop()
    }

    /// Whether nothing waits for the application.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether something is to be granted.
    pub fn owes(&self) -> bool {
        self.window.due(self.waiting.bytes()).is_some()
    }

    /// What to grant now.
    pub fn refill(&mut self) -> Option<u64> {
        self.window.refill(self.waiting.bytes())
    }
}
