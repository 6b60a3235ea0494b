//! Work that may hold its thread for good, as on a file system that does not answer.

use std::{sync::Arc, time::Duration};

use tokio::sync::Mutex;

/// One piece of work at a time, in the order in which they came: of work that does not come back one thread is left, however often
/// it is tried. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct OneThread(Arc<Mutex<()>>);

/// The work did not come back in time, or the agent is stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it does not answer")]
pub(crate) struct Unanswered;

impl OneThread {
    /// Has a thread do some work, after the work before; both within a time.
    ///
    /// # Errors
    /// The time is over. The work may still be done later, and what comes of it is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        within: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let turn = Arc::clone(&self.0);
        let done = async {
            let turn = turn.lock_owned().await;
            let working = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                work()
            });
            working.await.map_err(|_stopping| Unanswered)
        };
        tokio::time::timeout(within, done).await.unwrap_or(Err(Unanswered))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use super::*;

    const SHORT: Duration = Duration::from_millis(10);
    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn work_that_does_not_come_back_holds_one_thread() {
        let thread = OneThread::default();
        let begun = Arc::new(AtomicUsize::new(0));
        let (answer, hangs) = mpsc::sync_channel::<()>(0);
        let mut hangs = Some(hangs);
        for _ in 0..5 {
            let (begun, hangs) = (Arc::clone(&begun), hangs.take());
            let work = move || {
                begun.fetch_add(1, Ordering::SeqCst);
                if let Some(hangs) = hangs {
                    hangs.recv().unwrap_err();
                }
            };
            assert_eq!(thread.run(SHORT, work).await, Err(Unanswered));
        }
        // A thread may need longer to begin than any of them was waited for.
        let first = async {
            while begun.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(SHORT).await;
            }
        };
        tokio::time::timeout(LONG, first).await.expect("the first is begun");
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        drop(answer);
        assert_eq!(thread.run(LONG, || 7).await, Ok(7), "it answers again");
    }
}
