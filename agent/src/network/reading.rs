//! Looks at a directory whose file system may not answer.

use std::{sync::Arc, time::Duration};

use tokio::sync::Mutex;

use super::{NetworkError, blocking};

/// One look at a time: of looks that do not come back one thread is left, however often is asked.
#[derive(Debug, Default)]
pub(super) struct Reading(Arc<Mutex<()>>);

impl Reading {
    /// Has a thread look, after the look before; both within a time.
    ///
    /// # Errors
    /// Those of the look, or `unanswered`.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        within: Duration,
        unanswered: NetworkError,
        look: impl FnOnce() -> Result<T, NetworkError> + Send + 'static,
    ) -> Result<T, NetworkError> {
        let turn = Arc::clone(&self.0);
        let look = async {
            let turn = turn.lock_owned().await;
            blocking(move || {
                let _turn = turn;
                look()
            })
            .await
        };
        tokio::time::timeout(within, look).await.unwrap_or(Err(unanswered))
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
    async fn looks_that_do_not_come_back_hold_one_thread() {
        let reading = Reading::default();
        let begun = Arc::new(AtomicUsize::new(0));
        let unanswered = || NetworkError::Unanswered("/etc/cni".into());
        let (answer, hangs) = mpsc::sync_channel::<()>(0);
        let mut hangs = Some(hangs);
        for _ in 0..5 {
            let (begun, hangs) = (Arc::clone(&begun), hangs.take());
            let look = move || {
                begun.fetch_add(1, Ordering::SeqCst);
                if let Some(hangs) = hangs {
                    hangs.recv().unwrap_err();
                }
                Ok(())
            };
            let given_up = reading.run(SHORT, unanswered(), look).await.unwrap_err();
            assert!(matches!(given_up, NetworkError::Unanswered(_)), "{given_up}");
        }
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        drop(answer);
        assert_eq!(reading.run(LONG, unanswered(), || Ok(7)).await.unwrap(), 7, "it answers again");
    }
}
