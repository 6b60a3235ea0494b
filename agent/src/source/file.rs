//! Pods of manifest files: one file, or a directory of them (`staticPodPath`).
//!
//! Source: `pkg/kubelet/config/{file,file_linux}.go`. As there: not recursive, names that begin with a dot are passed
//! over, symbolic links are followed, what is no regular file is passed over; changes are noticed at once by inotify and
//! at the latest after `fileCheckFrequency`. Beyond that: a file that becomes unreadable or wrong keeps the pods that it
//! last gave, so that a slip in an editor stops nothing; the fault is logged and shown until it is mended. What gave
//! nothing yet because it cannot be read makes the source partial, so that a restart of the agent stops nothing either.
//!
//! They are read by a worker (decision 0019), since the directory may be on a file system that does not answer. That is a
//! fault like another.

mod check;
mod scan;

use std::{
    collections::BTreeSet,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use berth_core::{
    event::Event,
    id::PodUid,
    spec::{Pod, Source},
};
use futures::{
    FutureExt, Stream, StreamExt,
    future::{BoxFuture, Either},
    stream,
};
use inotify::{EventMask, EventOwned, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::{sync::mpsc::Sender, time::timeout};
use tokio_util::sync::CancellationToken;

pub use self::check::{Looked, look};
pub use self::scan::Found;
use self::scan::{Scan, Seen};
use crate::{config::Config, manifest::Manifest, view::View};

/// After a change that is not known to be the last step, the time without another one after which files are read: an
/// editor's several steps become one.
const QUIET: Duration = Duration::from_millis(10);

/// Changes that may follow one another before files are read all the same.
const BURST_MAX: usize = 20;

/// Changes that have come and are taken for one: some for each file that is read, so that who writes on and on does not keep
/// them from being read.
const CHANGES_MAX: usize = 4096;

/// How long a directory that has just answered may take to be watched.
const ADD_WITHIN: Duration = Duration::from_secs(1);

/// Bytes of inotify events read at once: some dozens of names.
const EVENT_BYTES: usize = 4096;

/// Finds out what is at a path of manifests. A failure in words.
pub type Read = Box<dyn Fn(PathBuf) -> BoxFuture<'static, Result<Found, String>> + Send + Sync>;

/// Watches the manifests and sends every change of what they want, and what they want at start. Returns when cancelled,
/// when nobody receives any more, or at once when no path is configured (after having sent that nothing is wanted).
pub async fn run(config: &Config, read: Read, view: View, sender: Sender<Event>, cancel: CancellationToken) {
    let Some(path) = config.static_pod_path.clone() else {
        let nothing = Event::Desired { source: Source::File, pods: Vec::new(), is_whole: true };
        if sender.send(nothing).await.is_err() {
            tracing::debug!("nobody receives desired pods any more");
        }
        return;
    };
    let scan = Scan { path: path.clone(), node: config.node.name.clone() };
    let mut reader = Reader { scan, read, seen: Seen::default(), sent: None, view, sender };
    let mut watch = Watch::new();
    let work = async {
        loop {
            let Ok(directory) = reader.read().await else { return };
            if let Some(directory) = directory
                && watch.begins(directory).await
            {
                // What changed before it was watched.
                continue;
            }
            watch.changed(config.file_check).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = cancel.cancelled() => {}
    }
}

/// Nobody receives any more.
struct Closed;

struct Reader {
    scan: Scan,
    read: Read,
    seen: Seen,
    /// Pods, and whether they are all.
    sent: Option<(Vec<Arc<Pod>>, bool)>,
    view: View,
    sender: Sender<Event>,
}

impl Reader {
    /// Tells what is wanted now, and the directory to watch. `None` when it is not known: what does not answer must not hold
    /// up anything else, and is asked again.
    async fn read(&mut self) -> Result<Option<PathBuf>, Closed> {
        let path = self.scan.path.clone();
        let found = (self.read)(path.clone()).await;
        let directory =
            found.as_ref().ok().map(|found| if found.is_dir { path.clone() } else { above(&path) });
        let seen = match found {
            Ok(found) => self.scan.run(&self.seen, found),
            Err(why) => self.scan.unread(&self.seen, format!("cannot be read: {why}")),
        };
        for problem in seen.problems.iter().filter(|problem| !self.seen.problems.contains(problem)) {
            tracing::error!(file = problem.place, "manifest cannot be used: {}", problem.message);
        }
        self.seen = seen;
        let now = (self.seen.pods(), self.seen.is_whole());
        self.view.set_problems(Source::File, self.seen.problems.clone());
        self.view.set_unsupported(Source::File, self.unsupported());
        // Nothing is wanted yet when nothing could be read yet.
        let is_known = directory.is_some() || self.sent.is_some();
        if !is_known || self.sent.as_ref() == Some(&now) {
            return Ok(directory);
        }
        let (pods, is_whole) = now.clone();
        self.sent = Some(now);
        tracing::info!(pods = pods.len(), is_whole, path = %self.scan.path.display(), "manifests read");
        let desired = Event::Desired { source: Source::File, pods, is_whole };
        self.sender.send(desired).await.map(|()| directory).map_err(|_closed| Closed)
    }

    fn unsupported(&self) -> std::collections::BTreeMap<PodUid, Vec<String>> {
        let fields = |manifest: &Manifest| [&manifest.unsupported[..], &manifest.unknown].concat();
        let manifests = self.seen.manifests();
        manifests.map(|manifest| (manifest.pod.uid.clone(), fields(manifest))).collect()
    }
}

/// Inotify on the directory of the manifests, where that works; nothing but time, as long as not.
struct Watch {
    watches: Option<Watches>,
    changes: Either<stream::BoxStream<'static, Change>, stream::Pending<Change>>,
    /// Files that were made and not yet closed, as far as was seen since the last read.
    being_written: BTreeSet<OsString>,
    watched: Option<WatchDescriptor>,
}

/// What inotify says of one file.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    /// It was made: its content comes next.
    Begun(OsString),
    /// It was closed after writing, or moved here or away, or removed: nothing more of this step will come.
    Whole(OsString),
    /// Something else, or events were lost.
    Other,
}

impl Change {
    fn of(event: EventOwned) -> Self {
        let whole = EventMask::CLOSE_WRITE | EventMask::MOVED_TO | EventMask::MOVED_FROM | EventMask::DELETE;
        match event.name {
            Some(name) if event.mask.intersects(whole) => Self::Whole(name),
            Some(name) if event.mask.contains(EventMask::CREATE) => Self::Begun(name),
            Some(_) | None => Self::Other,
        }
    }
}

impl Watch {
    fn new() -> Self {
        match open() {
            Ok((watches, changes)) => {
                let changes = Either::Left(changes);
                Self { watches: Some(watches), changes, being_written: BTreeSet::new(), watched: None }
            }
            Err(error) => {
                tracing::warn!(%error, "inotify cannot be used, manifests are read from time to time only");
                let changes = Either::Right(stream::pending());
                Self { watches: None, changes, being_written: BTreeSet::new(), watched: None }
            }
        }
    }

    /// Watches a directory, which has just answered; whether it was not watched yet.
    async fn begins(&mut self, directory: PathBuf) -> bool {
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        if self.watches.is_none()
            && let Ok((watches, changes)) = open()
        {
            (self.watches, self.changes) = (Some(watches), Either::Left(changes));
        }
        let Some(mut watches) = self.watches.clone() else { return false };
        let path = directory.clone();
        // Adding the same directory again changes nothing; a directory made anew is another one.
        let adding = tokio::task::spawn_blocking(move || watches.add(path, mask));
        let Ok(Ok(added)) = timeout(ADD_WITHIN, adding).await else { return false };
        match added {
            Ok(added) => self.watched.replace(added.clone()) != Some(added),
            Err(error) => {
                if self.watched.take().is_some() {
                    tracing::warn!(%error, directory = %directory.display(), "manifests cannot be watched, they are read from time to time");
                }
                false
            }
        }
    }

    /// Waits for a change, and for the end of the changes that come with it, or for the time to look again.
    async fn changed(&mut self, check: Duration) {
        self.being_written.clear();
        let Ok(mut change) = timeout(check, self.changes.next()).await else { return };
        for _ in 0..BURST_MAX {
            if self.is_settled_after(change) {
                return;
            }
            let Ok(next) = timeout(QUIET, self.changes.next()).await else { return };
            change = next;
        }
    }

    /// The same of a change and those that have come since: one read shows them all.
    fn is_settled_after(&mut self, change: Option<Change>) -> bool {
        let mut is_settled = self.is_settled(change);
        for _ in 0..CHANGES_MAX {
            let Some(change) = self.changes.next().now_or_never() else { break };
            is_settled = self.is_settled(change);
        }
        is_settled
    }

    /// Whether what is in the directory now is whole: waiting longer would only make a pod start later.
    fn is_settled(&mut self, change: Option<Change>) -> bool {
        match change {
            Some(Change::Begun(name)) => {
                self.being_written.insert(name);
                false
            }
            Some(Change::Whole(name)) => {
                self.being_written.remove(&name);
                self.being_written.is_empty()
            }
            Some(Change::Other) | None => false,
        }
    }
}

fn above(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("/")).to_owned()
}

fn open() -> std::io::Result<(Watches, stream::BoxStream<'static, Change>)> {
    let inotify = Inotify::init()?;
    let watches = inotify.watches();
    let events = inotify.into_event_stream(vec![0; EVENT_BYTES])?;
    Ok((watches, endless(events).boxed()))
}

/// Every event is a change, and so is a failure to read events: looking again is right. An end never comes.
fn endless<E>(
    events: impl Stream<Item = Result<EventOwned, E>> + Send + 'static,
) -> impl Stream<Item = Change> + Send + 'static {
    events.map(|event| event.map_or(Change::Other, Change::of)).chain(stream::pending())
}

#[cfg(test)]
mod tests;
