//! What is being done for which pod, and what of it hangs.

use std::{
    collections::{BTreeMap, btree_map::Entry},
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
    work: BTreeMap<(String, String), Begun>,
    /// The places of pods that something is done for.
    pods: BTreeMap<(String, Sort), Places>,
    earlier: Vec<Earlier>,
}

/// The places of a pod for work of one sort, for as long as there is a turn.
#[derive(Debug)]
struct Places {
    semaphore: Arc<Semaphore>,
    turns: usize,
}

impl Default for Places {
    fn default() -> Self {
        Self { semaphore: Arc::new(Semaphore::new(PER_POD)), turns: 0 }
    }
}

#[derive(Debug)]
struct Begun {
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
            Begun { path: path.to_owned(), since: Timestamp::now(), began: Instant::now(), process: None };
        inner.work.insert(key.clone(), entry);
        let of_pod = inner.pods.entry((pod.to_owned(), sort)).or_default();
        of_pod.turns += 1;
        let places = Arc::clone(&of_pod.semaphore);
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
        let Entry::Occupied(mut places) = inner.pods.entry((self.key.0.clone(), self.sort)) else { return };
        places.get_mut().turns -= 1;
        if places.get().turns == 0 {
            places.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;

    /// Turns at different work for one pod, as many as it may have.
    fn turns(table: &Table) -> Vec<Turn> {
        let begin =
            |number: usize| table.begin("a", &format!("volume {number}"), "/mnt", Sort::Chosen).unwrap();
        (0..PER_POD).map(begin).collect()
    }

    fn is_empty(table: &Table) -> bool {
        let inner = table.inner();
        inner.work.is_empty() && inner.pods.is_empty()
    }

    #[test]
    fn turns_that_end_at_once_leave_nothing() {
        let table = Table::default();
        for _round in 0..200 {
            let together = Barrier::new(PER_POD);
            thread::scope(|scope| {
                for turn in turns(&table) {
                    let together = &together;
                    scope.spawn(move || {
                        together.wait();
                        drop(turn);
                    });
                }
            });
            assert!(is_empty(&table), "{table:?}");
        }
    }

    #[test]
    fn a_place_that_is_given_back_after_the_turn_leaves_nothing() {
        let table = Table::default();
        let held: Vec<_> = turns(&table)
            .into_iter()
            .map(|turn| Arc::clone(&turn.places).try_acquire_owned().unwrap())
            .collect();
        assert!(is_empty(&table), "{table:?}");
        drop(held);
    }

    #[test]
    fn a_pod_keeps_its_places_while_it_has_a_turn() {
        let table = Table::default();
        let mut turns = turns(&table);
        let last = turns.pop().unwrap();
        let held: Vec<_> =
            turns.iter().map(|turn| Arc::clone(&turn.places).try_acquire_owned().unwrap()).collect();
        drop(turns);
        let next = table.begin("a", "volume 0", "/mnt", Sort::Chosen).unwrap();
        assert_eq!(next.places.available_permits(), PER_POD - held.len());
        drop((last, next));
        assert!(is_empty(&table), "{table:?}");
    }
}
