//! A piece of work, from the wait for a place to its answer or to the end of the worker that hangs in it.

use std::{io, path::Path, sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{
    WorkError,
    earlier::{Earlier, end_all},
    load::{Load, UNITS},
    pool::Pool,
    record::{Busy, make_dir},
    table::{Hanging, PER_POD, Table, Turn},
};

/// Directory of the workers' records, below the agent's state.
const DIRECTORY: &str = "workers";

/// Pieces of work of one sort at once: local and short, so that more would only wait for the same disk.
pub(super) const AT_ONCE: usize = 12;

/// Workers that have a piece of work of one sort, those that hang among them: what half of a full node's pods may have, each
/// with all its places hanging. One that hangs holds half a megabyte.
const ON_NODE: usize = 256;

/// Work that takes longer gives its place to others: it waits for something, or goes through a large tree.
const SLOW: Duration = Duration::from_secs(1);

/// What work is on. No sort waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    /// Paths that the pod chose.
    Chosen,
    /// Directories of the node's own.
    Own,
    /// What is left of a pod that ends.
    Ends,
    /// Trees that are only measured.
    Measured,
}

/// How many sorts there are.
const SORTS: usize = 4;

/// A piece of work to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job<'a> {
    /// UID of the pod it is for.
    pub pod: &'a str,
    /// What it is, such as `volume data`: done only once at a time for the pod.
    pub what: &'a str,
    /// The path that it is most likely to hang on, for people.
    pub path: &'a str,
    /// What it is on.
    pub sort: Sort,
    /// How long it may take, waits included; then its worker is killed.
    pub within: Duration,
}

/// The workers of this agent. Clones share them.
#[derive(Debug, Clone)]
pub struct Workers {
    table: Table,
    pool: Pool,
    /// Work that moves, by sort.
    places: Arc<[Arc<Semaphore>; SORTS]>,
    /// All that was given to a worker, by sort.
    given: Arc<[Arc<Semaphore>; SORTS]>,
    /// Room for messages that are large.
    room: Arc<Semaphore>,
}

impl Workers {
    /// Workers with their records below `run`. Those that an earlier agent left are killed; what hangs of them is known.
    ///
    /// # Errors
    /// When the directory of records cannot be used.
    pub fn open(run: &Path) -> io::Result<Self> {
        let dir = run.join(DIRECTORY);
        make_dir(&dir)?;
        Ok(Self::after(&dir, end_all(&dir)?))
    }

    /// Workers that are told what hangs of an earlier agent's.
    pub(super) fn after(records: &Path, earlier: Vec<Earlier>) -> Self {
        for left in &earlier {
            let (process, busy) = (left.process, &left.busy);
            tracing::warn!(process, ?busy, "a process of an earlier agent hangs");
        }
        let bounds = |bound| Arc::new([(); SORTS].map(|()| Arc::new(Semaphore::new(bound))));
        Self {
            table: Table::with(earlier),
            pool: Pool::new(records),
            places: bounds(AT_ONCE),
            given: bounds(ON_NODE),
            room: Arc::new(Semaphore::new(UNITS)),
        }
    }

    /// What hangs of a pod, longest first.
    #[must_use]
    pub fn hanging(&self, pod: &str) -> Vec<Hanging> {
        self.table.hanging(pod)
    }

    /// Has work done by a worker.
    ///
    /// # Errors
    /// See [`WorkError`]. After [`WorkError::Hangs`] the worker is killed, and does nothing more once the kernel lets it go.
    pub async fn run(&self, job: Job<'_>, load: impl Into<Load>) -> Result<Vec<u8>, WorkError> {
        let turn = Arc::new(self.table.begin(job.pod, job.what, job.path, job.sort)?);
        let (teller, answer) = oneshot::channel();
        let piece = Piece {
            workers: self.clone(),
            turn: Arc::clone(&turn),
            busy: Busy {
                pod: job.pod.to_owned(),
                what: job.what.to_owned(),
                path: job.path.to_owned(),
                since: jiff::Timestamp::now(),
            },
            sort: job.sort,
        };
        // Goes on when its effect is given up, to hold what it has until the worker has ended.
        tokio::spawn(piece.see_through(load.into(), teller));
        let within = job.within;
        match tokio::time::timeout(within, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(process_failed(job.what, "wait for", io::ErrorKind::Interrupted.into())),
            Err(_elapsed) => Err(match turn.holder() {
                Some((process, since)) => {
                    WorkError::Hangs { what: job.what.to_owned(), path: job.path.to_owned(), since, process }
                }
                None => WorkError::Waited { what: job.what.to_owned(), within, bound: PER_POD },
            }),
        }
    }
}

/// Work and what it holds.
struct Piece {
    workers: Workers,
    turn: Arc<Turn>,
    busy: Busy,
    sort: Sort,
}

/// Places that a piece of work holds, and its room.
struct Held {
    of_pod: OwnedSemaphorePermit,
    room: Option<OwnedSemaphorePermit>,
    place: OwnedSemaphorePermit,
}

type Answer = Result<Vec<u8>, WorkError>;

impl Piece {
    async fn see_through(self, load: Load, mut teller: oneshot::Sender<Answer>) {
        let held = tokio::select! {
            held = self.places(load.units()) => held,
            // Nobody waits any more, and nothing was begun.
            () = teller.closed() => return,
        };
        let Some(Held { of_pod: _of_pod, room: _room, place }) = held else { return };
        let given = &self.workers.given[self.sort as usize];
        let Ok(_given) = Arc::clone(given).try_acquire_owned() else {
            let what = self.busy.what.clone();
            drop(teller.send(Err(WorkError::TooMany { what, bound: ON_NODE })));
            return;
        };
        self.give(load, place, teller).await;
    }

    /// A place of the pod, then room for a message that is large, then a place of the node: a pod over its bound waits only for
    /// its own, and what waits for room keeps nobody from a place.
    async fn places(&self, units: Option<u32>) -> Option<Held> {
        let of_pod = Arc::clone(&self.turn.places).acquire_owned().await.ok()?;
        let room = match units {
            Some(units) => Some(Arc::clone(&self.workers.room).acquire_many_owned(units).await.ok()?),
            None => None,
        };
        let place = Arc::clone(&self.workers.places[self.sort as usize]).acquire_owned().await.ok()?;
        Some(Held { of_pod, room, place })
    }

    async fn give(mut self, load: Load, place: OwnedSemaphorePermit, mut teller: oneshot::Sender<Answer>) {
        let what = self.busy.what.clone();
        let mut worker = match self.workers.pool.take().await {
            Ok(worker) => worker,
            Err(error) => return drop(teller.send(Err(process_failed(&what, "start", error)))),
        };
        if teller.is_closed() {
            return self.workers.pool.put(worker);
        }
        let work = load.make().await;
        self.busy.since = self.turn.given_to(worker.process());
        let busy = serde_json::to_vec(&self.busy).unwrap_or_default();
        let mut place = Some(place);
        let answer = {
            let mut performing = std::pin::pin!(worker.perform(&busy, &work));
            let mut slow = std::pin::pin!(tokio::time::sleep(SLOW));
            loop {
                tokio::select! {
                    answer = &mut performing => break Some(answer),
                    () = &mut slow, if place.is_some() => drop(place.take()),
                    () = teller.closed() => break None,
                }
            }
        };
        match answer {
            Some(Ok(answer)) => {
                self.workers.pool.put(worker);
                // The turn is free before the answer is known, so that who has it may begin the next.
                drop(self);
                drop(teller.send(Ok(answer)));
            }
            Some(Err(error)) => {
                worker.kill().await;
                drop(self);
                drop(teller.send(Err(process_failed(&what, "get an answer of", error))));
            }
            None => {
                tracing::warn!(process = worker.process(), busy = ?self.busy, "a process hangs, killed");
                worker.kill().await;
            }
        }
    }
}

fn process_failed(what: &str, act: &'static str, source: io::Error) -> WorkError {
    WorkError::Process { what: what.to_owned(), act, source }
}
