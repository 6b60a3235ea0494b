//! Workers, started when they are needed and kept for a moment.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt,
    net::UnixStream,
    process::{Child, Command},
    time::Instant,
};

use super::{frame, load::SMALL_MAX, record, serve::ARGUMENT};

/// How long a worker is kept without work: a burst of pods starts a few, a node at rest has none.
const KEPT: Duration = Duration::from_secs(10);

/// This program, as it was started: also after its file was replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Workers at rest. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    records: PathBuf,
    /// Part of the names of records, which no earlier agent had.
    generation: String,
    started: AtomicU64,
    idle: Mutex<Vec<(Instant, Worker)>>,
}

/// A process that performs one piece of work after another.
#[derive(Debug)]
pub(super) struct Worker {
    connection: UnixStream,
    child: Child,
    record: PathBuf,
}

impl Pool {
    /// One whose workers have their records in a directory.
    pub(super) fn new(records: &Path) -> Self {
        let generation = jiff::Timestamp::now().as_nanosecond().to_string();
        Self(Arc::new(Inner {
            records: records.to_owned(),
            generation,
            started: AtomicU64::new(0),
            idle: Mutex::default(),
        }))
    }

    /// A worker at rest, or a new one.
    pub(super) async fn take(&self) -> io::Result<Worker> {
        let rested = self.idle().pop();
        if let Some((_, worker)) = rested {
            return Ok(worker);
        }
        let (own, other) = StdStream::pair()?;
        own.set_nonblocking(true)?;
        let connection = UnixStream::from_std(own)?;
        let number = self.0.started.fetch_add(1, Ordering::Relaxed);
        let given = self.0.records.join(format!("{}-{number}", self.0.generation));
        let mut command = Command::new(PROGRAM);
        let content = record::content()?;
        command.arg(ARGUMENT).arg(&given).stdin(OwnedFd::from(other)).stdout(content).current_dir("/");
        // The thread waits until the program is loaded.
        let started = tokio::task::spawn_blocking(move || command.spawn());
        let child = started.await.unwrap_or_else(|_stopping| Err(io::ErrorKind::Interrupted.into()))?;
        let record = record::path_of(&given, child.id().unwrap_or_default());
        Ok(Worker { connection, child, record })
    }

    /// Keeps a worker for what comes next.
    pub(super) fn put(&self, worker: Worker) {
        let mut idle = self.idle();
        idle.push((Instant::now(), worker));
        if idle.len() == 1 {
            tokio::spawn(self.clone().rest());
        }
    }

    /// Ends workers that were not needed for a while, until there are none.
    async fn rest(self) {
        loop {
            let Some(oldest) = self.idle().first().map(|(since, _)| *since) else { return };
            tokio::time::sleep_until(oldest + KEPT).await;
            let mut idle = self.idle();
            let rested = idle.extract_if(.., |(since, _)| since.elapsed() >= KEPT).collect::<Vec<_>>();
            let is_last = idle.is_empty();
            drop(idle);
            for (_, worker) in rested {
                tokio::spawn(worker.end());
            }
            if is_last {
                return;
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Instant, Worker)>> {
        // Nothing that can panic is done under it.
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    /// Its process.
    pub(super) fn process(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// Has a piece of work done. Not cancel-safe: a worker whose answer was not taken is only good to be killed.
    pub(super) async fn perform(&mut self, busy: &[u8], work: &[u8]) -> io::Result<Vec<u8>> {
        let mut message = frame::encode(busy)?;
        message.extend_from_slice(&frame::head(work)?);
        // What is small goes with it, what is large is not copied.
        let (with_it, after_it) = work.split_at(if work.len() <= SMALL_MAX { work.len() } else { 0 });
        message.extend_from_slice(with_it);
        self.connection.write_all(&message).await?;
        self.connection.write_all(after_it).await?;
        frame::receive(&mut self.connection).await
    }

    /// Kills it and waits until it has ended, however long the kernel holds it.
    pub(super) async fn kill(mut self) {
        // It may have ended by itself.
        drop(self.child.start_kill());
        drop(self.child.wait().await);
        // Else the next agent does it.
        drop(std::fs::remove_file(&self.record));
    }

    /// Lets it end.
    async fn end(self) {
        let Self { connection, mut child, record: _ } = self;
        drop(connection);
        drop(child.wait().await);
    }
}
