//! What is tried again and again, and may take long to fail.

use berth_core::{stats::is_due, time::Mono};
use tokio::sync::Mutex;

/// When it was tried last, whether or not that went well.
#[derive(Debug, Default)]
pub(super) struct Tries(Mutex<Option<Mono>>);

impl Tries {
    /// Tries, where the last try is long enough ago: others go on with what is known. One at a time does, and who has waited for it finds what
    /// it has found.
    pub(super) async fn make_if_due<F: Future<Output = bool>>(
        &self,
        now: impl Fn() -> Mono,
        attempt: impl FnOnce() -> F,
    ) {
        let mut last = self.0.lock().await;
        let began = now();
        if last.is_some_and(|last| !is_due(last, began)) {
            return;
        }
        // It counts where nobody waits for its end, too.
        *last = Some(began);
        if !attempt().await {
            *last = Some(now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, time::Duration};

    use futures::{FutureExt as _, future::join_all};
    use tokio::time::{Instant, sleep};

    use super::*;

    const TRY: Duration = Duration::from_secs(7);

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_tried_again_after_the_interval_and_not_with_each_request() {
        let (tries, begun, count) = (Tries::default(), Instant::now(), &Cell::new(0));
        let ask = |is_well: bool| {
            let attempt = move || async move {
                count.set(count.get() + 1);
                sleep(if is_well { Duration::ZERO } else { TRY }).await;
                is_well
            };
            tries.make_if_due(|| Mono(begun.elapsed()), attempt)
        };
        // All who wait for one that fails wait once.
        join_all((0..16).map(|_| ask(false))).await;
        assert_eq!((count.get(), begun.elapsed()), (1, TRY));
        for (after, expected) in [(9, 1), (1, 2), (9, 2), (1, 3)] {
            sleep(Duration::from_secs(after)).await;
            ask(true).await;
            assert_eq!(count.get(), expected, "at {:?}", begun.elapsed());
        }
        sleep(Duration::from_secs(10)).await;
        assert!(ask(false).now_or_never().is_none(), "it is begun, and nobody waits for it");
        ask(false).await;
        assert_eq!(count.get(), 4);
    }
}
