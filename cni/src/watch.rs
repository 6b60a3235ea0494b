//! Noticing that the network configuration may have changed.
//!
//! Level-triggered: a change says "load again" and nothing else, and may say so without need. The directory, its
//! networks' folders, or, while it does not exist, the nearest directory above it, are watched with inotify.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use inotify::{EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::time::{Instant, timeout, timeout_at};

/// Room for events of one read.
const BUFFER_SIZE: usize = 4096;
/// Events this close together are one change: a file is often written in steps.
const QUIET: Duration = Duration::from_millis(50);
/// A directory that never falls quiet is still reported this often.
const QUIET_MAX: Duration = Duration::from_millis(500);
/// Folders of networks that are watched; more are not expected, and each costs a kernel object.
const FOLDERS_MAX: usize = 64;

/// Watches one configuration directory.
#[derive(Debug)]
pub struct Watch {
    dir: PathBuf,
    events: EventStream<[u8; BUFFER_SIZE]>,
    watches: Watches,
    armed: Vec<WatchDescriptor>,
    /// An event was read and not yet reported.
    unreported: bool,
}

/// The directory cannot be watched.
#[derive(Debug, thiserror::Error)]
#[error("cannot watch {dir} for changes of the network configuration")]
pub struct WatchError {
    dir: PathBuf,
    source: io::Error,
}

impl Watch {
    /// Starts to watch. Load after this, and again after every [`Watch::changed`].
    ///
    /// # Errors
    /// The kernel refuses, for instance when the limit of inotify instances is reached.
    pub async fn new(dir: &Path) -> Result<Self, WatchError> {
        let error = |source| WatchError { dir: dir.to_owned(), source };
        let inotify = Inotify::init().map_err(error)?;
        let watches = inotify.watches();
        let events = inotify.into_event_stream([0; BUFFER_SIZE]).map_err(error)?;
        let mut watch = Self { dir: dir.to_owned(), events, watches, armed: Vec::new(), unreported: false };
        watch.arm().await?;
        Ok(watch)
    }

    /// Waits until something changed. Cancel-safe: a change that this call did not get to report, the next one does.
    ///
    /// # Errors
    /// The kernel refuses to go on.
    pub async fn changed(&mut self) -> Result<(), WatchError> {
        if !self.unreported {
            self.next().await?;
            self.unreported = true;
        }
        let latest = Instant::now() + QUIET_MAX;
        while let Ok(Ok(event)) = timeout_at(latest, timeout(QUIET, self.next())).await {
            event?;
        }
        self.arm().await?;
        self.unreported = false;
        Ok(())
    }

    async fn next(&mut self) -> Result<(), WatchError> {
        let failed = |source| WatchError { dir: self.dir.clone(), source };
        match self.events.next().await {
            Some(Ok(_event)) => Ok(()),
            Some(Err(error)) => Err(failed(error)),
            None => Err(failed(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Watches what exists now. Adding a watch that is there already changes nothing, so that a call that was given up
    /// leaves nothing to undo.
    async fn arm(&mut self) -> Result<(), WatchError> {
        let (dir, watches, before) = (self.dir.clone(), self.watches.clone(), self.armed.clone());
        // Paths are looked up on the disk that the configuration is on.
        let armed = tokio::task::spawn_blocking(move || arm(&dir, watches, &before)).await;
        self.armed = armed
            .map_err(|stopping| WatchError { dir: self.dir.clone(), source: io::Error::other(stopping) })??;
        Ok(())
    }
}

fn arm(
    dir: &Path,
    mut watches: Watches,
    before: &[WatchDescriptor],
) -> Result<Vec<WatchDescriptor>, WatchError> {
    let content = WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::MOVE
        | WatchMask::CLOSE_WRITE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR;
    let mut armed = Vec::new();
    // Bounded by the depth of the path; its root always exists.
    for dir in dir.ancestors() {
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        match watches.add(dir, content) {
            Ok(watch) => {
                armed.push(watch);
                break;
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(source) => return Err(WatchError { dir: dir.to_owned(), source }),
        }
    }
    for folder in folders(dir) {
        // A folder that vanished meanwhile has made an event of its own.
        armed.extend(watches.add(folder, content));
    }
    for left in before.iter().filter(|watch| !armed.contains(watch)) {
        // Fails for a directory that is gone, and the watch with it.
        drop(watches.remove(left.clone()));
    }
    Ok(armed)
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).take(FOLDERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    async fn changes(watch: &mut Watch) {
        timeout(LONG, watch.changed()).await.expect("a change within 10 s").unwrap();
    }

    #[tokio::test]
    async fn a_change_survives_a_call_that_was_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = Watch::new(dir.path()).await.unwrap();
        let mut tries = 0..100;
        while !watch.unreported {
            tries.next().expect("one call in a hundred is given up while it waits for quiet");
            fs::write(dir.path().join("a.conflist"), "").unwrap();
            drop(timeout(QUIET / 2, watch.changed()).await);
        }
        changes(&mut watch).await;
        assert!(!watch.unreported);
    }

    /// The clock stands still while anything works, and ticks in milliseconds: no machine is too busy for that.
    #[tokio::test(start_paused = true)]
    async fn a_change_is_told_within_half_a_second_however_many_follow() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = Watch::new(dir.path()).await.unwrap();
        for last in [1, 1000] {
            let changing = async {
                for _ in 0..last {
                    fs::write(dir.path().join("a.conflist"), "").unwrap();
                    tokio::time::sleep(QUIET / 2).await;
                }
                std::future::pending::<()>().await;
            };
            let began = Instant::now();
            tokio::select! {
                () = changes(&mut watch) => {}
                () = changing => {}
            }
            let took = began.elapsed();
            assert!(took <= Duration::from_millis(510), "{last} changes were told after {took:?}");
        }
    }

    #[tokio::test]
    async fn every_kind_of_change_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("cni/net.d");
        let mut watch = Watch::new(&dir).await.unwrap();
        // The directory appears, level by level.
        fs::create_dir(root.path().join("cni")).unwrap();
        changes(&mut watch).await;
        fs::create_dir(&dir).unwrap();
        changes(&mut watch).await;
        // A file appears, changes, is replaced by rename, and goes.
        fs::write(dir.join("a.conflist"), "1").unwrap();
        changes(&mut watch).await;
        fs::write(dir.join("a.conflist"), "2").unwrap();
        changes(&mut watch).await;
        fs::write(root.path().join("new"), "3").unwrap();
        fs::rename(root.path().join("new"), dir.join("a.conflist")).unwrap();
        changes(&mut watch).await;
        fs::remove_file(dir.join("a.conflist")).unwrap();
        changes(&mut watch).await;
        // A network's folder.
        fs::create_dir(dir.join("net")).unwrap();
        changes(&mut watch).await;
        fs::write(dir.join("net/1.conf"), "").unwrap();
        changes(&mut watch).await;
        // The directory goes and comes back.
        fs::remove_dir_all(&dir).unwrap();
        changes(&mut watch).await;
        fs::create_dir(&dir).unwrap();
        changes(&mut watch).await;
        fs::write(dir.join("b.conflist"), "").unwrap();
        changes(&mut watch).await;
    }
}
