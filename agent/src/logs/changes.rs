//! Waiting for a log to change.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
};

use futures::{FutureExt as _, StreamExt as _};
use inotify::{EventStream, Inotify, WatchMask};

use super::{LogFileError, place::Place};

/// What changes in the directory of a log is kept from now on.
#[derive(Debug)]
pub struct Watch(Inotify);

/// What has changed in the directory of a log.
#[derive(Debug)]
pub struct Changes(EventStream<Vec<u8>>);

impl Watch {
    /// Watches the directory of the log `path` below `root`: what comes after is told, whatever the directory is called later.
    ///
    /// # Errors
    /// There is no such directory, or the node has too many watches (`fs.inotify.max_user_instances`).
    pub fn begin(root: &Path, path: &Path) -> Result<Self, LogFileError> {
        let place = Place::new(root, path)?;
        let directory = place.directory()?;
        add(&directory).map(Self).map_err(|source| LogFileError::Watch { path: place.path, source })
    }

    /// Needs a runtime of Tokio.
    ///
    /// # Errors
    /// The runtime cannot wait for it.
    pub fn changes(self) -> io::Result<Changes> {
        const EVENTS_BYTES: usize = 4096;
        Ok(Changes(self.0.into_event_stream(vec![0; EVENTS_BYTES])?))
    }
}

impl Changes {
    /// Comes back when something has changed since the last time.
    pub async fn next(&mut self) {
        // Where the kernel tells nothing any more there is nothing to come back for.
        if !matches!(self.0.next().await, Some(Ok(_))) {
            std::future::pending::<()>().await;
        }
        while let Some(Some(_)) = self.0.next().now_or_never() {}
    }
}

/// The directory that was opened, not one that may have its name now.
fn add(directory: &OwnedFd) -> io::Result<Inotify> {
    let inotify = Inotify::init()?;
    let mask =
        WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVE | WatchMask::DELETE_SELF | WatchMask::ONLYDIR;
    inotify.watches().add(format!("/proc/self/fd/{}", directory.as_raw_fd()), mask)?;
    Ok(inotify)
}
