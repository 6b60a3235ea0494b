//! Logs of the node's services: from its journal, or from the files that they write.
//!
//! Source: `Copy`, `copyServiceLogs` and `heuristicsCopyFileLogs` of `pkg/kubelet/kubelet_server_journal.go`.

use std::{collections::VecDeque, fs::File, io, path::PathBuf, time::Duration};

use berth_core::server::node_log::{self, NodeLogQuery, UNITS};
use flate2::{Compression, write::GzEncoder};
use futures::{Stream, StreamExt as _, stream::BoxStream};
use http::{HeaderValue, header, request::Parts};
use hyper::body::Bytes;
use tokio::io::AsyncReadExt as _;
use tower::BoxError;

use super::{
    NodeLogs,
    files::{PIECE, piece_at},
    opened::{Found, found},
};
use crate::{
    program::{Printed, Program},
    server::{Response, answer::streamed, lanes::Lanes},
};

/// How long journalctl may take, whether or not anybody reads what it prints.
pub(in crate::server) const JOURNAL_LIMIT: Duration = Duration::from_secs(30);

/// What is left to be given.
struct Services {
    root: PathBuf,
    journalctl: Program,
    lanes: Lanes,
    parts: VecDeque<Part>,
}

enum Part {
    /// What journalctl prints with these arguments.
    Journal(Vec<String>),
    /// It runs.
    Printed(Printed),
    /// The file of a service, whatever it is called.
    Service(String),
    /// From here on.
    File {
        file: File,
        at: u64,
        service: String,
    },
    Text(String),
}

impl NodeLogs {
    /// Gives the logs of services that were checked.
    pub(super) async fn services(&self, query: NodeLogQuery, parts: &Parts) -> Response {
        const KIND: &str = "text/plain;charset=UTF-8";
        let units = with_arguments(&self.journalctl, UNITS.map(str::to_owned).to_vec());
        let place = self.lanes.journals.place().await;
        // Without a journal services are looked for in files.
        let units = units.answer("", JOURNAL_LIMIT).await.unwrap_or_default();
        drop(place);
        let (in_journal, in_files): (Vec<_>, Vec<_>) =
            query.services.iter().cloned().partition(|service| node_log::is_in_journal(&units, service));
        let mut wanted = VecDeque::new();
        if !in_journal.is_empty() {
            wanted.push_back(Part::Journal(query.journal_arguments(&in_journal)));
        }
        if !in_files.is_empty() && query.options != node_log::Options::default() {
            wanted.push_back(Part::Text(node_log::options_with_files(&in_files)));
        } else {
            wanted.extend(in_files.into_iter().map(Part::Service));
        }
        let services = Services {
            root: self.root.clone(),
            journalctl: self.journalctl.clone(),
            lanes: self.lanes.clone(),
            parts: wanted,
        };
        let pieces = futures::stream::unfold(services, |mut services| async move {
            Some((services.next().await?, services))
        });
        if parts.headers.get(header::ACCEPT_ENCODING).is_none_or(|value| value != "gzip") {
            return streamed(KIND, pieces.map(Ok));
        }
        let mut response = streamed(KIND, compressed(pieces.boxed()));
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response
    }
}

impl Services {
    /// The next piece. What fails is told in it: the answer has begun.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.parts.pop_front()? {
                Part::Text(text) => return Some(text.into()),
                Part::Journal(args) => {
                    let part = self.journal(args).await;
                    self.parts.push_front(part);
                }
                Part::Printed(mut printed) => {
                    let mut piece = Vec::with_capacity(PIECE);
                    // One that breaks off has ended.
                    if printed.pipe.read_buf(&mut piece).await.is_ok_and(|count| count > 0) {
                        self.parts.push_front(Part::Printed(printed));
                        return Some(piece.into());
                    }
                }
                Part::Service(service) => {
                    let part = self.file_of(service).await;
                    self.parts.push_front(part);
                }
                Part::File { file, at, service } => {
                    let read = self.lanes.node.run(move || piece_at(file, at, PIECE)).await;
                    let (file, piece) = read.ok()?;
                    match piece {
                        Ok(piece) if piece.is_empty() => {}
                        Ok(piece) => {
                            let at = at + piece.len() as u64;
                            self.parts.push_front(Part::File { file, at, service });
                            return Some(piece);
                        }
                        Err(error) => return Some(failed(&service, &error).into()),
                    }
                }
            }
        }
    }

    async fn journal(&self, args: Vec<String>) -> Part {
        let unavailable = || Part::Text("\nerror: journal output not available\n".to_owned());
        let Ok(place) = self.lanes.journals.place().await else { return unavailable() };
        let program = with_arguments(&self.journalctl, args);
        match program.stream(JOURNAL_LIMIT, place).await {
            Ok(printed) => Part::Printed(printed),
            Err(error) => {
                tracing::warn!(%error, "the journal cannot be read");
                unavailable()
            }
        }
    }

    /// The first file that there is of those that a service may write.
    async fn file_of(&self, service: String) -> Part {
        let (root, names) = (self.root.clone(), node_log::files_of(&service));
        let look = move || {
            for name in names {
                match found(&root, &name) {
                    Ok(Found::File(opened)) => return Ok(Some(opened.file)),
                    Ok(Found::Directory { .. }) => {}
                    Err(error)
                        if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(None)
        };
        match self.lanes.node.run(look).await {
            Ok(Ok(Some(file))) => Part::File { file, at: 0, service },
            Ok(Ok(None)) => Part::Text(node_log::not_found(&service)),
            Ok(Err(error)) => Part::Text(failed(&service, &error)),
            Err(stopping) => Part::Text(failed(&service, &io::Error::other(stopping))),
        }
    }
}

fn with_arguments(program: &Program, more: Vec<String>) -> Program {
    let mut program = program.clone();
    program.args.extend(more);
    program
}

fn failed(service: &str, error: &io::Error) -> String {
    format!("\nerror getting log for {service}: {error}\n")
}

/// The pieces in one stream of gzip, each of which can be read as soon as it is there.
fn compressed(pieces: BoxStream<'static, Bytes>) -> impl Stream<Item = Result<Bytes, BoxError>> + Send {
    let encoder = GzEncoder::new(Vec::new(), Compression::fast());
    futures::stream::try_unfold(Some((pieces, encoder)), |state| async move {
        use io::Write as _;
        let Some((mut pieces, mut encoder)) = state else { return Ok(None) };
        let Some(piece) = pieces.next().await else {
            return Ok(Some((encoder.finish()?.into(), None)));
        };
        encoder.write_all(&piece)?;
        encoder.flush()?;
        Ok(Some((std::mem::take(encoder.get_mut()).into(), Some((pieces, encoder)))))
    })
}
