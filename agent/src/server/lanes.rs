//! Threads that read files for whoever asks: so many, that a disk which does not answer takes those, and never the server.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::large::Stopping;

/// Threads of one kind of request. A stream has one only while it reads a piece: who reads slowly, or not at all, holds none.
const THREADS: usize = 8;

/// Programs that read the journal at one time: each takes a processor and much of the disk.
const JOURNALS: usize = 4;

/// A place for so many pieces of work. Clones share it.
#[derive(Debug, Clone)]
pub struct Lane(Arc<Semaphore>);

/// Places for requests about logs. Clones share them.
#[derive(Debug, Clone)]
pub struct LogLanes {
    /// For logs of containers.
    pub containers: Lane,
    /// For files of the node's log directory.
    pub node: Lane,
    /// For programs that read the journal.
    pub journals: Lane,
}

impl Default for LogLanes {
    fn default() -> Self {
        Self { containers: Lane::new(THREADS), node: Lane::new(THREADS), journals: Lane::new(JOURNALS) }
    }
}

impl Lane {
    /// A lane with so many places.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self(Arc::new(Semaphore::new(places)))
    }

    /// Has a thread do some work once there is a place, which is taken until the work has ended, whether or not anybody waits for it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stopping> {
        let place = self.place().await?;
        let working = tokio::task::spawn_blocking(move || {
            let _place = place;
            work()
        });
        working.await.map_err(|_cancelled| Stopping)
    }

    /// A place, for as long as it is held.
    pub(super) async fn place(&self) -> Result<OwnedSemaphorePermit, Stopping> {
        Arc::clone(&self.0).acquire_owned().await.map_err(|_closed| Stopping)
    }

    /// Places that nobody has.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.0.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[tokio::test]
    async fn work_that_does_not_come_back_takes_its_lane_and_no_other() {
        let lanes = LogLanes { containers: Lane::new(1), ..LogLanes::default() };
        let (answer, hangs) = mpsc::sync_channel::<()>(0);
        let hung = lanes.containers.run(move || hangs.recv().is_ok());
        // Nobody waits for it any more, and its place is taken all the same.
        tokio::time::timeout(Duration::from_millis(10), hung).await.unwrap_err();
        assert_eq!(lanes.containers.free(), 0);
        assert_eq!(lanes.node.run(|| 7).await, Ok(7));
        drop(answer);
        assert_eq!(lanes.containers.run(|| 7).await, Ok(7));
    }
}
