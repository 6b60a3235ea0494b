//! Directories in which a change may mean another configuration.
//!
//! Level-triggered: a change says "read again" and nothing else, and may say so without need.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt;
use inotify::{EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::{task::spawn_blocking, time::timeout};

/// How often files are read without a change being seen: a link may lead to where nobody watches.
const AGAIN: Duration = Duration::from_secs(60);

/// How often they are read, and inotify is tried again, where it cannot be used: others may have all instances that a user may have.
const UNSEEN: Duration = Duration::from_secs(10);

/// How long directories that have just been read may take to be watched.
const ADD_WITHIN: Duration = Duration::from_secs(10);

/// After a change, the time without another one after which files are read: a tool writes several of them.
const QUIET: Duration = Duration::from_millis(50);

/// Changes that may follow one another before files are read all the same.
const BURST_MAX: usize = 100;

/// Directories that are watched: one for each file that may be imported, and each costs a kernel object.
const DIRECTORIES_MAX: usize = 100;

/// Bytes of events read at once: some dozens of names.
const EVENT_BYTES: usize = 4096;

/// Inotify on some directories, where that works; nothing but time, as long as not.
pub(super) struct Watched {
    inotify: Option<(Watches, EventStream<Vec<u8>>)>,
    armed: Vec<WatchDescriptor>,
}

impl Watched {
    pub(super) fn new() -> Self {
        let inotify = open()
            .inspect_err(|error| {
                tracing::warn!(%error, "inotify cannot be used: containerd's configuration is read from time to time only");
            })
            .ok();
        Self { inotify, armed: Vec::new() }
    }

    /// Watches these directories and no others; whether one of them was not watched before.
    pub(super) async fn begins(&mut self, directories: BTreeSet<PathBuf>) -> bool {
        if self.inotify.is_none() {
            self.inotify = open().ok();
        }
        let Some((watches, _)) = &self.inotify else { return false };
        let watches = watches.clone();
        let adding = spawn_blocking(move || arm(&directories, watches));
        let Ok(Ok(armed)) = timeout(ADD_WITHIN, adding).await else { return false };
        let is_new = armed.iter().any(|watch| !self.armed.contains(watch));
        let before = std::mem::replace(&mut self.armed, armed);
        if let Some((watches, _)) = &mut self.inotify {
            for left in before.into_iter().filter(|watch| !self.armed.contains(watch)) {
                // Fails for a directory that is gone, and the watch with it.
                drop(watches.remove(left));
            }
        }
        is_new
    }

    /// Waits for a change, and for the end of the changes that come with it, or for the time to look again.
    pub(super) async fn changed(&mut self) {
        let Some((_, events)) = &mut self.inotify else { return tokio::time::sleep(UNSEEN).await };
        let Ok(Some(_change)) = timeout(AGAIN, events.next()).await else { return };
        for _ in 0..BURST_MAX {
            let Ok(Some(_change)) = timeout(QUIET, events.next()).await else { return };
        }
    }
}

fn open() -> io::Result<(Watches, EventStream<Vec<u8>>)> {
    let inotify = Inotify::init()?;
    let watches = inotify.watches();
    Ok((watches, inotify.into_event_stream(vec![0; EVENT_BYTES])?))
}

/// Of a directory that is not there, the nearest above it is watched. What cannot be watched is read from time to time.
fn arm(directories: &BTreeSet<PathBuf>, mut watches: Watches) -> Vec<WatchDescriptor> {
    let mask = WatchMask::CLOSE_WRITE
        | WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::MOVE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR;
    let mut armed = Vec::new();
    for directory in directories.iter().take(DIRECTORIES_MAX) {
        let existing = directory.ancestors().filter(|path| *path != Path::new(""));
        armed.extend(existing.flat_map(|path| watches.add(path, mask)).next());
    }
    armed
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn one_that_could_not_be_opened_is_opened_later() {
        let dir = tempfile::TempDir::new().unwrap();
        let directories = BTreeSet::from([dir.path().to_owned()]);
        let mut watched = Watched { inotify: None, armed: Vec::new() };
        assert!(watched.begins(directories.clone()).await, "what changed before is not read");
        assert!(!watched.begins(directories).await);
        fs::write(dir.path().join("file"), "").unwrap();
        timeout(UNSEEN, watched.changed()).await.expect("a change is not seen");
    }
}
