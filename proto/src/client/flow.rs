//! What a flow-controlled stream keeps, between the task of its connection and its two halves.

use std::sync::{Mutex, MutexGuard, PoisonError};

use prost::Message;
use tokio::sync::Notify;

use super::call::CallError;
use super::connection::Sink;
use crate::flow::{Credit, Inbox};
use crate::shim::{AttachOutput, attach_output::What};
use crate::ttrpc::{Code, Status};

/// Bytes of output that may wait for who reads. Enough that the shim need not pause while the first half is passed on; a node
/// has hundreds of such streams.
const WINDOW_BYTES: u64 = 64 << 10;

/// A stream's messages and credits. Nobody waits with the lock.
#[derive(Debug)]
pub(super) struct Flow {
    state: Mutex<State>,
    /// There is one receiver.
    readable: Notify,
    /// There may be several who send.
    writable: Notify,
}

#[derive(Debug)]
struct State {
    inbox: Inbox,
    credit: Credit,
    end: End,
}

/// How the stream ended.
#[derive(Debug)]
enum End {
    NotYet,
    Failed(CallError),
    /// It did, and the receiver was told if it failed.
    Told,
}

impl Flow {
    /// Of a stream that is to be opened; what its first message grants.
    pub(super) fn new() -> (Self, u64) {
        let mut inbox = Inbox::new(WINDOW_BYTES);
        let window = inbox.refill().unwrap_or_default();
        let state = State { inbox, credit: Credit::default(), end: End::NotYet };
        let flow =
            Self { state: Mutex::new(state), readable: Notify::default(), writable: Notify::default() };
        (flow, window)
    }

    /// Waits until input may be sent; `false` when the stream has ended. Cancel safe.
    pub(super) async fn writable(&self) -> bool {
        loop {
            let mut writable = std::pin::pin!(self.writable.notified());
            // From now on no grant is missed.
            writable.as_mut().enable();
            if let Some(is_open) = self.lock().is_writable() {
                return is_open;
            }
            writable.await;
        }
    }

    /// How much of what is wanted may be sent. Who waited may find nothing, because another was first.
    pub(super) fn take_credit(&self, wanted: usize) -> usize {
        self.lock().credit.take(wanted)
    }

    /// The next message that is there.
    pub(super) fn next(&self) -> Result<Option<What>, CallError> {
        let mut state = self.lock();
        if let Some(what) = state.inbox.pop() {
            return Ok(Some(what));
        }
        match std::mem::replace(&mut state.end, End::Told) {
            End::Failed(error) => Err(error),
            end => {
                state.end = end;
                Ok(None)
            }
        }
    }

    /// Whether nothing comes any more.
    pub(super) fn is_over(&self) -> bool {
        let state = self.lock();
        matches!(state.end, End::Told) && state.inbox.is_empty()
    }

    /// Waits until there may be another message, or the end. For one waiter at a time; cancel safe.
    pub(super) async fn readable(&self) {
        self.readable.notified().await;
    }

    /// Whether something is to be granted.
    pub(super) fn owes(&self) -> bool {
        let state = self.lock();
        state.is_open() && state.inbox.owes()
    }

    /// What to grant now.
    pub(super) fn grant(&self) -> Option<u64> {
        self.lock().inbox.refill()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        self.readable.notify_one();
        self.writable.notify_waiters();
    }
}

impl State {
    fn is_open(&self) -> bool {
        matches!(self.end, End::NotYet)
    }

    fn is_writable(&self) -> Option<bool> {
        if self.is_open() { self.credit.is_left().then_some(true) } else { Some(false) }
    }

    fn take(&mut self, payload: &[u8]) -> Result<(), CallError> {
        let AttachOutput { what, window } = AttachOutput::decode(payload).map_err(CallError::Decode)?;
        self.credit.grant(window);
        what.map_or(Ok(()), |what| self.inbox.push(what)).map_err(|overrun| {
            let text = format!("the shim does not keep to its window: {overrun}");
            CallError::Status(Status::new(Code::ResourceExhausted, text))
        })
    }
}

impl Sink for Flow {
    fn message(&self, payload: Vec<u8>) {
        let mut state = self.lock();
        if state.is_open()
            && let Err(error) = state.take(&payload)
        {
            state.end = End::Failed(error);
        }
        drop(state);
        self.tell();
    }

    fn end(&self, result: Result<Vec<u8>, CallError>) {
        let mut state = self.lock();
        if state.is_open() {
            let taken = result.and_then(|last| state.take(&last));
            state.end = taken.map_or_else(End::Failed, |()| End::Told);
        }
        drop(state);
        self.tell();
    }
}
