//! Waiting for logs to change: one inotify for all who wait, since a user may have few of them (`fs.inotify.max_user_instances`).

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures::StreamExt as _;
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::{sync::watch, task::JoinHandle};

use super::{LogFileError, place::Place};

/// Bytes of events that are read at once.
const EVENTS_BYTES: usize = 64 << 10;
/// Between two tries to read events.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Tells of changes in directories of logs. Clones share one inotify, which is there while somebody waits.
#[derive(Debug, Clone, Default)]
pub struct Watcher(Arc<Mutex<Weak<Live>>>);

/// What has changed in the directory of a log.
#[derive(Debug)]
pub struct Changes {
    live: Arc<Live>,
    number: i32,
    changes: watch::Receiver<()>,
}

#[derive(Debug)]
struct Live {
    table: Mutex<Table>,
    reading: JoinHandle<()>,
}

#[derive(Debug)]
struct Table {
    watches: Watches,
    /// By the numbers of their watches, none of which comes again.
    all: BTreeMap<i32, Watched>,
}

/// A directory that is watched.
#[derive(Debug)]
struct Watched {
    descriptor: WatchDescriptor,
    changed: watch::Sender<()>,
    /// How many wait for it.
    count: usize,
}

impl Watcher {
    /// Watches the directory of the log `path` below `root`: what comes after is told, whatever the directory is called later. Needs a
    /// runtime of Tokio.
    ///
    /// # Errors
    /// There is no such directory, or the node has too many watches (`fs.inotify.max_user_watches`).
    pub fn watch(&self, root: &Path, path: &Path) -> Result<Changes, LogFileError> {
        let place = Place::new(root, path)?;
        let directory = place.directory()?;
        let watching = self.live().and_then(|live| live.watch(&directory));
        watching.map_err(|source| LogFileError::Watch { path: place.path, source })
    }

    fn live(&self) -> io::Result<Arc<Live>> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // It may be that of a runtime that has ended.
        if let Some(live) = shared.upgrade().filter(|live| !live.reading.is_finished()) {
            return Ok(live);
        }
        let live = Live::begin()?;
        *shared = Arc::downgrade(&live);
        Ok(live)
    }
}

impl Live {
    fn begin() -> io::Result<Arc<Self>> {
        let inotify = Inotify::init()?;
        let table = Table { watches: inotify.watches(), all: BTreeMap::new() };
        let events = inotify.into_event_stream(vec![0; EVENTS_BYTES])?;
        Ok(Arc::new_cyclic(|live: &Weak<Self>| {
            let reading = tokio::spawn(read(events, live.clone()));
            Self { table: Mutex::new(table), reading }
        }))
    }

    /// The directory that was opened, not one that may have its name now.
    fn watch(self: Arc<Self>, directory: &OwnedFd) -> io::Result<Changes> {
        let mask = WatchMask::MODIFY
            | WatchMask::CREATE
            | WatchMask::MOVE
            | WatchMask::DELETE_SELF
            | WatchMask::ONLYDIR;
        let mut table = self.table();
        let descriptor = table.watches.add(format!("/proc/self/fd/{}", directory.as_raw_fd()), mask)?;
        let number = descriptor.get_watch_descriptor_id();
        let watched = table.all.entry(number).or_insert_with(|| Watched {
            descriptor,
            changed: watch::Sender::default(),
            count: 0,
        });
        watched.count += 1;
        let changes = watched.changed.subscribe();
        drop(table);
        Ok(Changes { live: self, number, changes })
    }

    fn tell(&self, event: &EventOwned) {
        let table = self.table();
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            table.tell_all();
        } else if let Some(watched) = table.all.get(&event.wd.get_watch_descriptor_id()) {
            watched.changed.send_replace(());
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn tell_all(&self) {
        for watched in self.all.values() {
            watched.changed.send_replace(());
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn read(mut events: EventStream<Vec<u8>>, live: Weak<Live>) {
    loop {
        let event = events.next().await;
        let Some(live) = live.upgrade() else { return };
        match event {
            Some(Ok(event)) => live.tell(&event),
            Some(Err(error)) => {
                tracing::warn!(%error, "read what has changed of logs; it is tried again");
                live.table().tell_all();
                drop(live);
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            // An inotify has no end.
            None => return,
        }
    }
}

impl Changes {
    /// Comes back when something has changed since the last time.
    pub async fn next(&mut self) {
        // What tells of it is there for as long as this.
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let mut table = self.live.table();
        let Some(watched) = table.all.get_mut(&self.number) else { return };
        watched.count -= 1;
        if watched.count > 0 {
            return;
        }
        if let Some(Watched { descriptor, .. }) = table.all.remove(&self.number)
            // That of a directory which is gone has gone with it.
            && let Err(error) = table.watches.remove(descriptor)
        {
            tracing::trace!(%error, "watch a directory of logs no longer");
        }
    }
}

#[cfg(test)]
impl Watcher {
    /// How many directories are watched.
    pub(crate) fn directories(&self) -> usize {
        let live = self.0.lock().unwrap().upgrade();
        live.map_or(0, |live| live.table().all.len())
    }
}
