//! Work that may wait for a disk, off the threads that run tasks, and bounded.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// How many threads may wait for a disk at once: as many as chains of plugins usually run. A thread that hangs keeps its
/// place until it ends, so that a dead disk costs this many threads and no more.
pub(crate) const THREADS_MAX: usize = 16;
/// How long the records may take to be read or written, the wait for a place included. They are a few small files.
pub(crate) const RECORDS_WITHIN: Duration = Duration::from_secs(30);

/// The places.
#[derive(Debug, Clone)]
pub(crate) struct Disk(Arc<Semaphore>);

impl Default for Disk {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(THREADS_MAX)))
    }
}

impl Disk {
    /// Runs blocking work on a thread of its own. When it is given up, its outcome is dropped as soon as there is one.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let done = async {
            let place = Arc::clone(&self.0).acquire_owned().await.map_err(io::Error::other)?;
            let work = move || {
                let _place = place;
                work()
            };
            tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
        };
        timeout_at(deadline, done).await.unwrap_or_else(|_elapsed| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the disk did not answer in time"))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use super::*;

    #[tokio::test]
    async fn what_hangs_keeps_its_place_and_no_more_threads_follow() {
        let disk = Disk::default();
        let (go, wait) = mpsc::sync_channel::<()>(0);
        let wait = Arc::new(std::sync::Mutex::new(wait));
        let soon = || Instant::now() + Duration::from_millis(50);
        let begun = Arc::new(AtomicUsize::new(0));
        for _ in 0..=THREADS_MAX {
            let (begun, wait) = (Arc::clone(&begun), Arc::clone(&wait));
            let hang = move || {
                begun.fetch_add(1, Ordering::SeqCst);
                drop(wait.lock().map(|wait| wait.recv()));
            };
            let hangs = disk.run(soon(), hang).await;
            assert_eq!(hangs.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
        drop(go);
        let late = Instant::now() + Duration::from_secs(20);
        assert_eq!(disk.run(late, || 7).await.unwrap(), 7);
        let _all_have_ended = disk.0.acquire_many(THREADS_MAX.try_into().unwrap()).await.unwrap();
        assert_eq!(begun.load(Ordering::SeqCst), THREADS_MAX, "no thread was left for one more");
    }
}
