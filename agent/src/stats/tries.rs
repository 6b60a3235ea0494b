//! What is tried again and again, and may take long to fail.

use std::sync::Arc;

use berth_core::{stats::is_due, time::Mono};
use tokio::sync::Mutex;

/// When it was tried last, whether or not that went well.
#[derive(Debug, Default)]
pub(super) struct Tries(Arc<Mutex<Option<Mono>>>);

impl Tries {
    /// Tries, where the last try is long enough ago: others go on with what is known. One at a time does, to its end, whether or not anybody
    /// waits for it, and who has waited finds what it has found.
    pub(super) async fn make_if_due<F>(
        &self,
        now: impl Fn() -> Mono + Send + 'static,
        attempt: impl FnOnce() -> F,
    ) where
        F: Future<Output = bool> + Send + 'static,
    {
        let mut last = Arc::clone(&self.0).lock_owned().await;
        let began = now();
        if last.is_some_and(|last| !is_due(last, began)) {
            return;
        }
        let attempt = attempt();
        let trying = tokio::spawn(async move {
            *last = Some(began);
            if !attempt.await {
                *last = Some(now());
            }
        });
        // It ends otherwise only with the agent.
        drop(trying.await);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
        time::Duration,
    };

    use futures::{future::join_all, poll};
    use tokio::time::{Instant, sleep};

    use super::*;

    const TRY: Duration = Duration::from_secs(7);

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_tried_again_after_the_interval_and_not_with_each_request() {
        let (tries, begun, count) = (Tries::default(), Instant::now(), Arc::<AtomicUsize>::default());
        let ask = |is_well: bool| {
            let count = Arc::clone(&count);
            let attempt = move || async move {
                sleep(if is_well { Duration::ZERO } else { TRY }).await;
                count.fetch_add(1, SeqCst);
                is_well
            };
            tries.make_if_due(move || Mono(begun.elapsed()), attempt)
        };
        // All who wait for one that fails wait once.
        join_all((0..16).map(|_| ask(false))).await;
        assert_eq!((count.load(SeqCst), begun.elapsed()), (1, TRY));
        for (after, expected) in [(9, 1), (1, 2), (9, 2), (1, 3)] {
            sleep(Duration::from_secs(after)).await;
            ask(true).await;
            assert_eq!(count.load(SeqCst), expected, "at {:?}", begun.elapsed());
        }
        sleep(Duration::from_secs(10)).await;
        let mut impatient = Box::pin(ask(false));
        assert!(poll!(impatient.as_mut()).is_pending());
        drop(impatient);
        ask(false).await;
        assert_eq!(count.load(SeqCst), 4, "it was made to its end for whoever came behind");
    }
}
