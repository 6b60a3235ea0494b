//! `/containerLogs/{namespace}/{pod}/{container}`: the log of a container, also while it is written.
//!
//! Source: `getContainerLogs` of `pkg/kubelet/server/server.go`, `ReadLogs` of `k8s.io/cri-client/pkg/logs/logs.go`.

use std::{path::PathBuf, sync::Arc};

use berth_core::{
    config::Paths,
    id::{ContainerName, PodUid},
    paths,
    server::{
        ContainerPath, Refusal,
        log_options::{self, LogOptions, LogRun, LogStreams},
        query::Query,
    },
    spec::Pod,
    status::PodStatus,
};
use hyper::body::Bytes;
use jiff::Timestamp;
use tokio::sync::watch;
use tower::BoxError;

use crate::{
    causes::with_causes,
    large::Stopping,
    logs::{Changes, LogFile, LogFileError, Progress, Select, Shown, Stream, Watcher},
    server::{
        Response,
        answer::{refused, streamed},
        held::Kept,
        lanes::{Lane, Lanes},
        log_places::LogPlace,
    },
    view::View,
};

/// About so many bytes are given at once; at most these and the longest line.
const PIECE_BYTES: usize = 128 << 10;

/// So many blocks are read at once where little of them is wanted: who has gone is noticed between two pieces.
const PIECE_BLOCKS: usize = 64;

/// What logs of containers are answered from.
#[derive(Debug)]
pub(in crate::server) struct ContainerLogs<'a> {
    pub(in crate::server) view: &'a View,
    pub(in crate::server) paths: &'a Paths,
    pub(in crate::server) lanes: &'a Lanes,
    /// The feature gate `PodLogsQuerySplitStreams`.
    pub(in crate::server) may_split: bool,
}

impl ContainerLogs<'_> {
    /// Answers a request that came at `now`.
    pub(in crate::server) fn answer(
        &self,
        path: &ContainerPath,
        query: Option<&str>,
        now: Timestamp,
    ) -> Response {
        let options = match LogOptions::parse(&Query::parse(query.unwrap_or_default()), now) {
            Ok(options) => options,
            Err(refusal) => return refused(refusal),
        };
        match self.log(path, &options) {
            Ok((log, place)) => {
                let mut response = streamed("text/plain", futures::stream::unfold(log, Log::next));
                Kept::put(&mut response, place);
                response
            }
            Err(refusal) => refused(refusal),
        }
    }

    fn log(&self, path: &ContainerPath, options: &LogOptions) -> Result<(Log, LogPlace), Refusal> {
        let name = &path.pod.name;
        let is_meant = |uid: &PodUid| path.pod.uid.as_ref().is_none_or(|meant| meant == uid);
        let pod = self.view.pod(name).filter(|pod| is_meant(&pod.pod.uid));
        let pod = pod.ok_or_else(|| log_options::no_pod(&name.name))?;
        let container = &path.container;
        if !has(&pod.pod, &pod.status, container) {
            return Err(log_options::no_container(container, &name.name));
        }
        options.check_streams(self.may_split)?;
        let run = log_options::run(&pod.status, container, options.which)?;
        let file = paths::container_log(self.paths, name, &pod.pod.uid, container, run.attempt);
        let shown = Shown::new(options.timestamps, options.limit);
        let place = self.lanes.logs.of_container((name, &pod.pod.uid), container, options.follow)?;
        let stage = if options.follow {
            let changes = self.view.changes(&pod.pod.uid).ok_or_else(|| log_options::no_pod(&name.name))?;
            Stage::ToFollow(changes)
        } else {
            Stage::ToOpen
        };
        let log = Log {
            lane: self.lanes.containers.clone(),
            watcher: self.lanes.watcher.clone(),
            root: PathBuf::from(&self.paths.pod_logs),
            path: PathBuf::from(file),
            select: Select { since: options.since, tail: options.tail },
            shown: match options.streams {
                LogStreams::All => shown,
                LogStreams::Stdout => shown.only(Stream::Stdout),
                LogStreams::Stderr => shown.only(Stream::Stderr),
            },
            run: Run { view: self.view.clone(), pod: pod.pod, container: container.clone(), run },
            stage,
        };
        Ok((log, place))
    }
}

fn has(pod: &Pod, status: &PodStatus, container: &ContainerName) -> bool {
    let specs = pod.all_containers().map(|spec| &spec.name);
    let statuses = status.all_containers().map(|status| &status.name);
    specs.chain(statuses).any(|name| name == container)
}

/// A log that is given piece by piece, whenever the client takes one.
struct Log {
    lane: Lane,
    watcher: Watcher,
    root: PathBuf,
    path: PathBuf,
    select: Select,
    shown: Shown,
    run: Run,
    stage: Stage,
}

enum Stage {
    /// To be read to its end.
    ToOpen,
    /// To be read until the run has ended.
    ToFollow(watch::Receiver<()>),
    Reading(Box<Reading>),
    Over,
}

struct Reading {
    file: LogFile,
    follow: Option<Follow>,
}

/// What is waited for at the end of a log.
struct Follow {
    log: Changes,
    pod: watch::Receiver<()>,
}

/// The run whose log it is.
struct Run {
    view: View,
    pod: Arc<Pod>,
    container: ContainerName,
    run: LogRun,
}

/// Why no more of a log is given.
#[derive(Debug, thiserror::Error)]
enum LogError {
    #[error(transparent)]
    File(#[from] LogFileError),
    #[error(transparent)]
    Stopping(#[from] Stopping),
}

impl Run {
    fn goes_on(&self) -> bool {
        let status = self.view.status(&self.pod.uid);
        status.is_some_and(|status| log_options::goes_on(&status, &self.container, &self.run))
    }
}

impl Log {
    /// The next piece. What fails is told at the end of what was given, as the kubelet does: the answer has begun.
    async fn next(mut self) -> Option<(Result<Bytes, BoxError>, Self)> {
        let piece = match self.piece().await {
            Ok(piece) => piece?,
            Err(error) => self.told(&error).into(),
        };
        Some((Ok(piece), self))
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, LogError> {
        loop {
            let (file, follow) = match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Over => return Ok(None),
                Stage::ToOpen => (self.open(false).await?.0, None),
                Stage::ToFollow(pod) => {
                    let (file, log) = self.open(true).await?;
                    (file, log.map(|log| Follow { log, pod }))
                }
                Stage::Reading(reading) => (reading.file, reading.follow),
            };
            // Asked before the last look, so that what was written before the end is seen by it.
            let goes_on = follow.is_some() && self.run.goes_on();
            let (file, mut out, read) = self.read(file).await?;
            let progress = match read {
                Ok(progress) => progress,
                Err(error) => {
                    out.extend_from_slice(self.told(&error.into()).as_bytes());
                    return Ok(Some(out.into()));
                }
            };
            self.stage = match (progress, follow) {
                _ if self.shown.is_over() => Stage::Over,
                (Progress::More, follow) => Stage::Reading(Box::new(Reading { file, follow })),
                (Progress::AtEnd, Some(mut follow)) if goes_on => {
                    if out.is_empty() {
                        follow.change(&self.run).await;
                    }
                    Stage::Reading(Box::new(Reading { file, follow: Some(follow) }))
                }
                (Progress::AtEnd, _) => Stage::Over,
            };
            if !out.is_empty() {
                return Ok(Some(out.into()));
            }
        }
    }

    async fn open(&self, is_followed: bool) -> Result<(LogFile, Option<Changes>), LogError> {
        let (root, path, select) = (self.root.clone(), self.path.clone(), self.select);
        let watcher = self.watcher.clone();
        let open = move || {
            let changes = is_followed.then(|| watcher.watch(&root, &path)).transpose()?;
            Ok((LogFile::open(&root, &path, select)?, changes))
        };
        self.lane.run(open).await?
    }

    async fn read(
        &mut self,
        mut file: LogFile,
    ) -> Result<(LogFile, Vec<u8>, Result<Progress, LogFileError>), Stopping> {
        let nothing = Shown::new(false, Some(0));
        let mut shown = std::mem::replace(&mut self.shown, nothing);
        let read = move || {
            let mut out = Vec::new();
            let read = read_piece(&mut file, &mut shown, &mut out);
            (file, shown, out, read)
        };
        let (mut file, shown, out, read) = self.lane.run(read).await?;
        self.shown = shown;
        for error in file.take_unreadable() {
            tracing::warn!(
                error = with_causes(&error),
                "lines of a log are missing from what a client is shown"
            );
        }
        Ok((file, out, read))
    }

    fn told(&self, error: &LogError) -> String {
        match error {
            LogError::File(LogFileError::Absent(_)) => log_options::no_log(&self.run.run.id),
            LogError::File(error) => {
                format!("failed to read log file {:?}: {}", self.path, with_causes(error))
            }
            LogError::Stopping(_) => with_causes(error),
        }
    }
}

impl Follow {
    /// Comes back when there may be more to read, or the run may have ended.
    async fn change(&mut self, run: &Run) {
        let Self { log, pod, .. } = self;
        tokio::select! {
            () = log.next() => {}
            changed = pod.changed() => {
                // One that was shown no longer may be shown again since.
                if changed.is_err() && let Some(again) = run.view.changes(&run.pod.uid) {
                    *pod = again;
                }
            }
        }
    }
}

fn read_piece(file: &mut LogFile, shown: &mut Shown, out: &mut Vec<u8>) -> Result<Progress, LogFileError> {
    for _ in 0..PIECE_BLOCKS {
        let progress = file.read_block(|record| shown.take(&record, out))?;
        if progress == Progress::AtEnd || out.len() >= PIECE_BYTES || shown.is_over() {
            return Ok(progress);
        }
    }
    Ok(Progress::More)
}

#[cfg(test)]
mod tests;
