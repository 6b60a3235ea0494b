//! Streams whose users have gone, on their way to the task of their connection.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// Where streams are told whose users have gone. Each is told once at most, so there are never more than there were handles.
#[derive(Debug, Default)]
pub(super) struct Abandoned {
    streams: Mutex<Vec<u32>>,
    told: Notify,
}

impl Abandoned {
    pub(super) fn take(&self) -> Vec<u32> {
        std::mem::take(&mut *self.streams.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until there may be some. Cancel safe.
    pub(super) async fn wait(&self) {
        self.told.notified().await;
    }

    fn tell(&self, stream: u32) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        self.told.notify_one();
    }
}

/// Has a stream cancelled at its drop.
#[derive(Debug)]
pub(super) struct Lease {
    stream: Option<u32>,
    abandoned: Arc<Abandoned>,
}

impl Lease {
    pub(super) fn of(stream: u32, abandoned: Arc<Abandoned>) -> Self {
        Self { stream: Some(stream), abandoned }
    }

    /// Lets go of the stream, which has ended or is nobody's to cancel.
    pub(super) fn end(&mut self) {
        self.stream = None;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(stream) = self.stream {
            self.abandoned.tell(stream);
        }
    }
}
