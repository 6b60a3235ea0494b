//! Turns at work that strangers can ask for.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use berth_core::server::Origin;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::Asker;
use crate::large::Stopping;

/// So many at once of origins that are known, and as many of others; of each origin one: whoever has others' work wait has their own wait with
/// it.
#[derive(Debug)]
pub(super) struct Turns {
    of_known: Arc<Semaphore>,
    of_strangers: Arc<Semaphore>,
    origins: Mutex<BTreeMap<Origin, Arc<Semaphore>>>,
}

impl Turns {
    pub(super) fn new(at_once: usize) -> Self {
        let semaphore = || Arc::new(Semaphore::new(at_once));
        Self { of_known: semaphore(), of_strangers: semaphore(), origins: Mutex::default() }
    }

    /// Has a thread do some work when it is the turn of its origin, which that has until the work has ended, whether or not anybody waits for
    /// it.
    ///
    /// # Errors
    /// The agent is stopping.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        asker: Asker,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stopping> {
        let of_origin = place(self.origin(asker.from)).await?;
        let turns = if asker.is_known { &self.of_known } else { &self.of_strangers };
        let turn = place(Arc::clone(turns)).await?;
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
    use std::{net::Ipv4Addr, sync::mpsc, time::Duration};

    use futures::poll;

    use super::*;

    fn stranger(last: u8) -> Asker {
        Asker { from: Origin::of(Ipv4Addr::new(10, 0, 0, last).into()), is_known: false }
    }

    #[tokio::test]
    async fn there_are_so_many_turns_whoever_has_them() {
        let turns = Turns::new(2);
        let mut hung = Vec::new();
        for last in [1, 2] {
            let (go_on, hangs) = mpsc::sync_channel::<()>(0);
            let mut work = Box::pin(turns.run(stranger(last), move || hangs.recv().is_ok()));
            assert!(poll!(work.as_mut()).is_pending());
            hung.push((work, go_on));
        }
        let mut third = Box::pin(turns.run(stranger(3), || 7));
        assert!(poll!(third.as_mut()).is_pending());
        // Nobody waits for one of them any more.
        let (work, go_on) = hung.remove(0);
        drop(work);
        tokio::task::yield_now().await;
        assert!(poll!(third.as_mut()).is_pending() && turns.of_strangers.available_permits() == 0);
        let known = Asker { is_known: true, ..stranger(4) };
        assert_eq!(turns.run(known, || 7).await, Ok(7), "they wait for no stranger");
        go_on.send(()).unwrap();
        assert_eq!(third.await, Ok(7));
        let (work, go_on) = hung.remove(0);
        go_on.send(()).unwrap();
        assert_eq!(work.await, Ok(true));
    }

    #[tokio::test]
    async fn an_origin_has_one_turn_and_others_have_theirs() {
        let turns = Turns::new(2);
        let (go_on, hangs) = mpsc::sync_channel::<()>(0);
        let mut first = Box::pin(turns.run(stranger(1), move || hangs.recv().is_ok()));
        assert!(poll!(first.as_mut()).is_pending());
        let mut waits: Vec<_> = (0..100).map(|at| Box::pin(turns.run(stranger(1), move || at))).collect();
        for waits in &mut waits {
            assert!(poll!(waits.as_mut()).is_pending());
        }
        // Nobody waits for it any more, and it has its turn all the same.
        drop(first);
        assert_eq!(turns.run(stranger(2), || 7).await, Ok(7));
        assert!(poll!(waits[0].as_mut()).is_pending());
        go_on.send(()).unwrap();
        for (at, waits) in waits.into_iter().enumerate() {
            assert_eq!(waits.await, Ok(at));
        }
        // A thread that has given up its turn may hold it for a moment.
        let forgets = async {
            while turns.origins.lock().unwrap().len() != 1 {
                assert_eq!(turns.run(stranger(3), || 7).await, Ok(7));
            }
        };
        let forgotten = tokio::time::timeout(Duration::from_secs(60), forgets).await;
        forgotten.expect("nothing is kept of those that wait for nothing");
    }
}
