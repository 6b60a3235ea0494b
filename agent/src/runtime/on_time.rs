//! Waiting that blames nobody for one's own slowness.

use std::{pin::pin, time::Duration};

use tokio::time::{Instant, timeout};

/// Length of one stretch of waiting.
const STRETCH: Duration = Duration::from_millis(500);

/// How late a stretch may end and still count. A process that runs at all is woken within milliseconds; one that was
/// suspended, or found no processor for so long, cannot say that somebody else is slow.
const LATE_MAX: Duration = Duration::from_millis(500);

/// Waits for `answer` as long as `limit`, counting only the time in which this process ran on time. After a stretch in
/// which it did not there is always another, so an answer that lies there is found. `None` when none came.
pub async fn on_time<T>(limit: Duration, answer: impl Future<Output = T>) -> Option<T> {
    let mut answer = pin!(answer);
    let mut waited = Duration::ZERO;
    while waited < limit {
        let began = Instant::now();
        if let Ok(answer) = timeout(STRETCH, &mut answer).await {
            return Some(answer);
        }
        if began.elapsed() <= STRETCH + LATE_MAX {
            waited += STRETCH;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::{
        task::Poll,
        time::{Duration, Instant},
    };

    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    #[tokio::test]
    async fn an_answer_is_waited_for_as_long_as_the_limit() {
        assert_eq!(on_time(LIMIT, std::future::ready(7)).await, Some(7));
        let began = Instant::now();
        assert_eq!(on_time(LIMIT, std::future::pending::<()>()).await, None);
        assert!(began.elapsed() >= LIMIT);
    }

    /// The process is stopped for longer than the limit, as by SIGSTOP, while the answer comes: it is taken all the same.
    #[tokio::test]
    async fn time_in_which_this_process_did_not_run_does_not_count() {
        let mut looks = 0;
        let answer = std::future::poll_fn(|_| {
            looks += 1;
            match looks {
                // The whole thread sleeps, the clock goes on, and the timer is due when it wakes.
                1 => {
                    std::thread::sleep(LIMIT + Duration::from_secs(1));
                    Poll::Pending
                }
                // Timed out: looked at once more, then nothing until the next stretch.
                2 => Poll::Pending,
                _ => Poll::Ready("heard"),
            }
        });
        assert_eq!(on_time(LIMIT, answer).await, Some("heard"));
    }
}
