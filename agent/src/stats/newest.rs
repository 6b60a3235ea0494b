//! The newest of what is read again and again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_core::{stats::is_due, time::Mono};

use super::READ_WITHIN;
use crate::{
    clock,
    one_thread::{OneThread, Unanswered},
};

/// The last reading, and when it was begun. Clones share it.
#[derive(Debug)]
pub(super) struct Newest<T>(Arc<Mutex<Last<T>>>);

type Last<T> = Option<(Mono, Arc<T>)>;

impl<T> Default for Newest<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Newest<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send + Sync + 'static> Newest<T> {
    /// The last reading, or where that is too old a new one, which is made from it. One request after another comes to the thread, so that
    /// the next finds what the one before has read.
    pub(super) async fn get(
        &self,
        thread: &OneThread,
        read: impl FnOnce(Option<&T>) -> T + Send + 'static,
    ) -> Result<Arc<T>, Unanswered> {
        let newest = self.clone();
        thread.run(READ_WITHIN, move || newest.read_if_due(clock::mono(), read)).await
    }

    fn read_if_due(&self, now: Mono, read: impl FnOnce(Option<&T>) -> T) -> Arc<T> {
        let last = self.last().clone();
        if let Some((at, last)) = &last
            && !is_due(*at, now)
        {
            return Arc::clone(last);
        }
        let made = Arc::new(read(last.as_ref().map(|(_, last)| &**last)));
        *self.last() = Some((now, Arc::clone(&made)));
        made
    }

    fn last(&self) -> MutexGuard<'_, Last<T>> {
        // Nobody leaves a half-made value behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use futures::future::join_all;

    use super::*;

    #[test]
    fn what_is_too_old_is_read_anew_from_what_was_read_before() {
        let newest = Newest::default();
        let read = |seconds: u64| {
            let more =
                |before: Option<&Vec<u64>>| [before.cloned().unwrap_or_default(), vec![seconds]].concat();
            newest.read_if_due(Mono(Duration::from_secs(seconds)), more)
        };
        for (seconds, expected) in
            [(5, &[5][..]), (14, &[5]), (15, &[5, 15]), (24, &[5, 15]), (500, &[5, 15, 500])]
        {
            assert_eq!(*read(seconds), expected, "{seconds}");
        }
    }

    #[tokio::test]
    async fn twenty_who_ask_at_once_have_one_reading() {
        let (newest, thread, count) =
            (Newest::default(), OneThread::default(), Arc::<AtomicUsize>::default());
        let asked = (0..20).map(|_| {
            let count = Arc::clone(&count);
            newest.get(&thread, move |_before: Option<&usize>| count.fetch_add(1, Ordering::SeqCst))
        });
        for answer in join_all(asked).await {
            assert_eq!(*answer.unwrap(), 0);
        }
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }
}
