//! Tasks of streams of HTTP/2, each of which can be ended alone.

use futures::future::{AbortHandle, Abortable};

tokio::task_local! {
    static OF_TASK: AbortHandle;
}

/// Begins a task for each stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Streams;

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (handle, registration) = AbortHandle::new_pair();
        tokio::spawn(OF_TASK.scope(handle, Abortable::new(stream, registration)));
    }
}

/// What ends the stream whose task this is; `None` where there is no such stream. Its client is told that it was cancelled.
pub(super) fn of_task() -> Option<AbortHandle> {
    OF_TASK.try_with(Clone::clone).ok()
}
