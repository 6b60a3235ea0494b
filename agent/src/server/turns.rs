//! Turns at work that strangers can ask for.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use berth_core::server::Origin;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::large::Stopping;

/// So many at once, of each origin one: whoever has others' work wait has their own wait with it.
#[derive(Debug)]
pub(super) struct Turns {
    at_once: Arc<Semaphore>,
    origins: Mutex<BTreeMap<Origin, Arc<Semaphore>>>,
}

impl Turns {
    pub(super) fn new(at_once: usize) -> Self {
        Self { at_once: Arc::new(Semaphore::new(at_once)), origins: Mutex::default() }
    }

    /// Has a thread do some work when it is the turn of its origin, which that has until the work has ended, whether or not anybody waits for
    /// it.
    ///
    /// # Errors
    /// The agent is stopping.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        of: Origin,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stopping> {
        let of_origin = place(self.origin(of)).await?;
        let turn = place(Arc::clone(&self.at_once)).await?;
        let working = tokio::task::spawn_blocking(move || {
            let done = work();
            drop((turn, of_origin));
            done
        });
        working.await.map_err(|_cancelled| Stopping)
    }

    fn origin(&self, of: Origin) -> Arc<Semaphore> {
        let mut origins = self.origins.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever works or waits has one of its own.
        origins.retain(|_, turns| Arc::strong_count(turns) > 1);
        Arc::clone(origins.entry(of).or_insert_with(|| Arc::new(Semaphore::new(1))))
    }
}

async fn place(of: Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Stopping> {
    of.acquire_owned().await.map_err(|_closed| Stopping)
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, sync::mpsc};

    use futures::poll;

    use super::*;

    fn origin(last: u8) -> Origin {
        Origin::of(Ipv4Addr::new(10, 0, 0, last).into())
    }

    #[tokio::test]
    async fn an_origin_has_one_turn_and_others_have_theirs() {
        let turns = Turns::new(2);
        let (go_on, hangs) = mpsc::sync_channel::<()>(0);
        let mut first = Box::pin(turns.run(origin(1), move || hangs.recv().is_ok()));
        assert!(poll!(first.as_mut()).is_pending());
        let mut waits: Vec<_> = (0..100).map(|at| Box::pin(turns.run(origin(1), move || at))).collect();
        for waits in &mut waits {
            assert!(poll!(waits.as_mut()).is_pending());
        }
        // Nobody waits for it any more, and it has its turn all the same.
        drop(first);
        assert_eq!(turns.run(origin(2), || 7).await, Ok(7));
        assert!(poll!(waits[0].as_mut()).is_pending());
        go_on.send(()).unwrap();
        for (at, waits) in waits.into_iter().enumerate() {
            assert_eq!(waits.await, Ok(at));
        }
        assert_eq!(turns.run(origin(3), || 7).await, Ok(7));
        assert_eq!(turns.origins.lock().unwrap().len(), 1, "nothing is kept of those that wait for nothing");
    }
}
