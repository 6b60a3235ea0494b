//! What is being done for which pod, and what of it hangs.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::sync::Semaphore;

use super::{WorkError, earlier::Earlier, run::Sort};

/// Pieces of work of one sort for one pod at once: what a pod with hanging volumes can take of the node.
pub(super) const PER_POD: usize = 4;

/// Work that takes longer is shown as hanging: it is most often done within a millisecond.
const SHOWN_AFTER: Duration = Duration::from_secs(2);

/// The table. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Table(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// By pod and what is done.
    work: BTreeMap<(String, String), Entry>,
    /// The places of pods that something is done for.
    pods: BTreeMap<(String, Sort), Arc<Semaphore>>,
    earlier: Vec<Earlier>,
}

#[derive(Debug)]
struct Entry {
    path: String,
    since: Timestamp,
    began: Instant,
    /// Once a worker has it.
    process: Option<u32>,
}

/// Something that hangs, as it is shown to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hanging {
    /// What is being done, such as `volume data`.
    pub what: String,
    /// On what.
    pub path: String,
    /// Since when.
    pub since: Timestamp,
    /// By which process.
    pub process: u32,
}

/// The turn at a piece of work: nobody else begins the same until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    table: Table,
    key: (String, String),
    sort: Sort,
    /// The pod's places.
    pub(super) places: Arc<Semaphore>,
}

impl Table {
    /// With what an earlier agent left.
    pub(super) fn with(earlier: Vec<Earlier>) -> Self {
        Self(Arc::new(Mutex::new(Inner { earlier, ..Inner::default() })))
    }

    /// Takes the turn at a piece of work.
    pub(super) fn begin(&self, pod: &str, what: &str, path: &str, sort: Sort) -> Result<Turn, WorkError> {
        let mut inner = self.inner();
        inner.earlier.retain(Earlier::hangs);
        let key = (pod.to_owned(), what.to_owned());
        let hangs = |path: &str, since, process| WorkError::Hangs {
            what: what.to_owned(),
            path: path.to_owned(),
            since,
            process,
        };
        if let Some(entry) = inner.work.get(&key) {
            return Err(hangs(&entry.path, entry.since, entry.process.unwrap_or_default()));
        }
        if let Some(left) = inner.earlier.iter().find(|left| left.busy.pod == pod && left.busy.what == what) {
            return Err(hangs(&left.busy.path, left.busy.since, left.process));
        }
        let entry =
            Entry { path: path.to_owned(), since: Timestamp::now(), began: Instant::now(), process: None };
        inner.work.insert(key.clone(), entry);
        let places =
            inner.pods.entry((pod.to_owned(), sort)).or_insert_with(|| Arc::new(Semaphore::new(PER_POD)));
        let places = Arc::clone(places);
        Ok(Turn { table: self.clone(), key, sort, places })
    }

    /// What hangs of a pod, longest first.
    pub(super) fn hanging(&self, pod: &str) -> Vec<Hanging> {
        let mut inner = self.inner();
        inner.earlier.retain(Earlier::hangs);
        let own = inner.work.iter().filter_map(|((of, what), entry)| {
            let shown = of == pod && entry.began.elapsed() >= SHOWN_AFTER;
            let process = entry.process.filter(|_| shown)?;
            Some(Hanging { what: what.clone(), path: entry.path.clone(), since: entry.since, process })
        });
        let left = inner.earlier.iter().filter(|left| left.busy.pod == pod).map(|left| Hanging {
            what: left.busy.what.clone(),
            path: left.busy.path.clone(),
            since: left.busy.since,
            process: left.process,
        });
        let mut all: Vec<Hanging> = own.chain(left).collect();
        all.sort_by_key(|one| one.since);
        all
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing that can panic is done under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Tells which process has the work, and since when.
    pub(super) fn given_to(&self, process: u32) -> Timestamp {
        let now = Timestamp::now();
        if let Some(entry) = self.table.inner().work.get_mut(&self.key) {
            (entry.process, entry.since, entry.began) = (Some(process), now, Instant::now());
        }
        now
    }

    /// Which process has it, and since when.
    pub(super) fn holder(&self) -> Option<(u32, Timestamp)> {
        let inner = self.table.inner();
        let entry = inner.work.get(&self.key)?;
        Some((entry.process?, entry.since))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut inner = self.table.inner();
        inner.work.remove(&self.key);
        let pod = (self.key.0.clone(), self.sort);
        // The table's and this one.
        if inner.pods.get(&pod).is_some_and(|places| Arc::strong_count(places) <= 2) {
            inner.pods.remove(&pod);
        }
    }
}
