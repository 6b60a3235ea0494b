//! Threads that read files for whoever asks: so many, that a disk which does not answer takes those, and never the server.

use std::sync::Arc;

use http::{Extensions, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    Response,
    answer::{error, refused},
    held::Kept,
    lasting::Lasting,
    log_places::LogPlaces,
    parts::OfUser,
    streaming::places::Places,
};
use crate::{large::Stopping, logs::Watcher};

/// Threads of one kind of request. A stream has one only while it reads a piece: who reads slowly, or not at all, holds none.
pub(super) const THREADS: usize = 8;

/// Programs that read the journal at one time: each takes a processor and much of the disk.
pub(super) const JOURNALS: usize = 4;

/// A place for so many pieces of work. Clones share it.
#[derive(Debug, Clone)]
pub struct Lane(Arc<Semaphore>);

/// Answers at once that are computed as a whole, until they were taken.
pub(super) const WHOLE: usize = 16;
/// The same of the read-only port.
pub(super) const WHOLE_READ_ONLY: usize = 4;

/// Places for answers to the requests of one user: each has one of the user's, and then one of all.
#[derive(Debug)]
pub(super) struct Whole {
    own: OfUser,
    all: Lane,
}

/// Places for work that takes long. Clones share them.
#[derive(Debug, Clone)]
pub struct Lanes {
    /// For logs of containers.
    pub containers: Lane,
    /// For files of the node's log directory.
    pub node: Lane,
    /// For pages of names of directories there, until they were taken.
    pub pages: Lane,
    /// For programs that read the journal.
    pub journals: Lane,
    /// For lists, statistics and texts of metrics.
    pub whole: Lane,
    /// For sessions with pods.
    pub(super) sessions: Places,
    /// For logs, until they were taken. All that holds connections for long is bounded together: these and sessions.
    pub logs: LogPlaces,
    /// Tells followers what has changed.
    pub watcher: Watcher,
}

impl Default for Lanes {
    fn default() -> Self {
        let lasting = Lasting::default();
        Self {
            containers: Lane::new(THREADS),
            node: Lane::new(THREADS),
            pages: Lane::new(THREADS),
            journals: Lane::new(JOURNALS),
            whole: Lane::new(WHOLE),
            sessions: Places::beside(&lasting),
            logs: LogPlaces::beside(&lasting),
            watcher: Watcher::default(),
        }
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
            let done = work();
            // Not with what was done, which may be fetched late.
            drop(place);
            done
        });
        working.await.map_err(|_cancelled| Stopping)
    }

    /// This one, as a request may use it.
    pub(super) fn of(&self, extensions: &Extensions) -> Whole {
        let own = OfUser::had_by(extensions);
        Whole { all: own.lane_or(self), own }
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

impl Whole {
    /// Has a thread make an answer, which has its places until it was taken.
    pub(super) async fn answer(&self, make: impl FnOnce() -> Response + Send + 'static) -> Response {
        self.answer_after(std::future::ready(()), move |()| make()).await
    }

    /// As [`answer`](Self::answer), of what is waited for in the place.
    pub(super) async fn answer_after<T: Send + 'static>(
        &self,
        read: impl Future<Output = T>,
        make: impl FnOnce(T) -> Response + Send + 'static,
    ) -> Response {
        let waits = match self.own.waits() {
            Ok(waits) => waits,
            Err(refusal) => return refused(refusal),
        };
        let answer = async {
            let places = (self.own.place().await?, self.all.place().await?);
            drop(waits);
            let read = read.await;
            let making = tokio::task::spawn_blocking(move || (make(read), places));
            making.await.map_err(|_cancelled| Stopping)
        };
        match answer.await {
            Ok((mut response, places)) => {
                Kept::put(&mut response, places);
                response
            }
            Err(stopping) => error(StatusCode::SERVICE_UNAVAILABLE, &stopping.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use futures::poll;
    use tokio::time::timeout;

    use super::{
        super::{
            answer::text,
            parts::{OF_USER, Parts, WAITING_OF_USER},
        },
        *,
    };

    #[tokio::test]
    async fn work_that_does_not_come_back_takes_its_lane_and_no_other() {
        let lanes = Lanes { containers: Lane::new(1), ..Lanes::default() };
        let (answer, hangs) = mpsc::sync_channel::<()>(0);
        let hung = lanes.containers.run(move || hangs.recv().is_ok());
        // Nobody waits for it any more, and its place is taken all the same.
        timeout(Duration::from_millis(10), hung).await.unwrap_err();
        assert_eq!(lanes.containers.free(), 0);
        assert_eq!(lanes.node.run(|| 7).await, Ok(7));
        drop(answer);
        assert_eq!(lanes.containers.run(|| 7).await, Ok(7));
    }

    #[tokio::test]
    async fn an_answer_is_made_elsewhere_and_has_its_place_until_it_was_taken() {
        let (lane, here) = (Lane::new(1), std::thread::current().id());
        let make = move |said: &str| {
            assert_ne!(std::thread::current().id(), here);
            text(StatusCode::OK, said)
        };
        let read = async {
            assert_eq!(lane.free(), 0);
            "made"
        };
        let response = lane.of(&Extensions::new()).answer_after(read, make).await;
        assert_eq!((response.status(), lane.free()), (StatusCode::OK, 0));
        drop(response);
        assert_eq!(lane.free(), 1);
    }

    #[tokio::test]
    async fn a_user_who_takes_no_answer_keeps_no_other_waiting() {
        let (lane, parts) = (Lane::new(WHOLE), Parts::default());
        let [own, other] = ["own", "other"].map(|name| {
            let mut extensions = Extensions::new();
            extensions.insert(parts.of(name));
            lane.of(&extensions)
        });
        let make = || text(StatusCode::OK, "made");
        let mut held = Vec::new();
        for _ in 0..OF_USER {
            held.push(own.answer(make).await);
        }
        let mut waiting: Vec<_> = (0..WAITING_OF_USER).map(|_| Box::pin(own.answer(make))).collect();
        for asked in &mut waiting {
            assert!(poll!(asked).is_pending());
        }
        assert_eq!(own.answer(make).await.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(lane.free(), WHOLE - OF_USER, "who waits has none of the others' places");
        assert_eq!(other.answer(make).await.status(), StatusCode::OK);
        held.pop();
        assert_eq!(waiting.remove(0).await.status(), StatusCode::OK);
    }
}
