//! Files and directories, as Go's `http.FileServer` gives them.

use std::{fs::File, io, os::unix::fs::FileExt as _, path::Path};

use berth_core::server::file_server::{Part, SNIFFED, content_type, listing, relative};
use futures::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, request::Parts};
use hyper::body::Bytes;
use jiff::{Timestamp, fmt::rfc2822};
use tokio::sync::OwnedSemaphorePermit;
use tower::BoxError;

use super::{
    NodeLogs,
    opened::{Found, Opened, found, listed},
};
use crate::{
    causes::with_causes,
    large::Stopping,
    server::{
        Response,
        answer::{empty, error, of, streamed},
        held::Kept,
        lanes::Lane,
        parts::OfUser,
    },
};

/// Bytes read at once.
pub(super) const PIECE: usize = 128 << 10;

const INDEX: &str = "index.html";

/// A request for a file.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    path: String,
    /// Whether it was named by a query, where no path can lead astray.
    is_query: bool,
    ends_in_slash: bool,
    query: Option<String>,
    range: Option<String>,
    if_modified_since: Option<Timestamp>,
    places: OfUser,
}

impl Asked {
    pub(super) fn new(path: &str, is_query: bool, parts: &Parts) -> Self {
        let header = |name: HeaderName| {
            parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let since =
            header(header::IF_MODIFIED_SINCE).filter(|_| !parts.headers.contains_key(header::IF_NONE_MATCH));
        // Without an entity tag only a time could say that the range is of the same file.
        let range = header(header::RANGE).filter(|_| !parts.headers.contains_key(header::IF_RANGE));
        Self {
            path: path.to_owned(),
            is_query,
            ends_in_slash: path.is_empty() || path.ends_with('/') || parts.uri.path().ends_with('/'),
            query: parts.uri.query().map(str::to_owned),
            range,
            places: OfUser::had_by(&parts.extensions),
            if_modified_since: since
                .and_then(|text| rfc2822::DateTimeParser::new().parse_timestamp(text.as_str()).ok()),
        }
    }

    fn name(&self) -> &str {
        self.path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
    }

    /// Beside or below what was asked for, and nowhere else. Source: `localRedirect`.
    fn redirected(&self, to: &str) -> Response {
        let to = match &self.query {
            Some(query) => format!("{to}?{query}"),
            None => to.to_owned(),
        };
        let Ok(to) = HeaderValue::from_str(&to) else {
            return error(StatusCode::NOT_FOUND, "404 page not found");
        };
        let mut response = Response::new(empty());
        *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
        response.headers_mut().insert(header::LOCATION, to);
        response
    }

    fn is_unmodified(&self, modified: Option<Timestamp>) -> bool {
        let (Some(since), Some(modified)) = (self.if_modified_since, modified) else { return false };
        modified.as_second() <= since.as_second()
    }
}

/// What is answered, as far as it is known without sending it.
enum Prepared {
    Names(String, Option<Timestamp>),
    File { opened: Opened, kind: &'static str },
    Elsewhere(String),
}

impl NodeLogs {
    /// Gives a file or the names of a directory.
    pub(super) async fn file(&self, asked: Asked) -> Response {
        let is_index = asked.path == INDEX || asked.path.ends_with(&format!("/{INDEX}"));
        if is_index && !asked.is_query {
            return asked.redirected("./");
        }
        let (prepared, places) = match self.prepared(&asked).await {
            Err(stopping) => return error(StatusCode::SERVICE_UNAVAILABLE, &stopping.to_string()),
            Ok((Err(failure), _)) => return failed(&failure),
            Ok((Ok(prepared), places)) => (prepared, places),
        };
        let (mut response, modified) = match prepared {
            Prepared::Elsewhere(to) => return asked.redirected(&to),
            Prepared::Names(_, modified) | Prepared::File { opened: Opened { modified, .. }, .. }
                if asked.is_unmodified(modified) =>
            {
                (not_modified(), modified)
            }
            Prepared::Names(page, modified) => {
                let mut response = of(StatusCode::OK, "text/html; charset=utf-8", page);
                Kept::put(&mut response, places);
                (response, modified)
            }
            Prepared::File { opened, kind } => {
                let modified = opened.modified;
                (sent(opened, kind, asked.range.as_deref(), &self.lanes.node), modified)
            }
        };
        let date =
            modified.and_then(|time| rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&time).ok());
        if let Some(date) = date.and_then(|date| HeaderValue::from_str(&date).ok())
            && response.status() != StatusCode::RANGE_NOT_SATISFIABLE
        {
            response.headers_mut().insert(header::LAST_MODIFIED, date);
        }
        response
    }

    /// What is answered, and the places that a page keeps: one of the user's and one among all pages.
    async fn prepared(
        &self,
        asked: &Asked,
    ) -> Result<(io::Result<Prepared>, [OwnedSemaphorePermit; 2]), Stopping> {
        let own = asked.places.place_of_logs().await?;
        let page = self.lanes.pages.place().await?;
        let (root, wanted) = (self.root.clone(), asked.clone());
        let prepared = self.lanes.node.run(move || prepare(&root, &wanted)).await?;
        Ok((prepared, [own, page]))
    }
}

fn prepare(root: &Path, asked: &Asked) -> io::Result<Prepared> {
    let path = asked.path.trim_end_matches('/');
    let (opened, name) = match found(root, path)? {
        Found::Directory { .. } if !asked.ends_in_slash && !asked.is_query => {
            return Ok(Prepared::Elsewhere(relative(&format!("{}/", asked.name()))));
        }
        Found::Directory { names, modified } => match found(root, &format!("{path}/{INDEX}")) {
            Ok(Found::File(index)) => (index, INDEX),
            Ok(Found::Directory { .. }) | Err(_) => {
                return Ok(Prepared::Names(listing(listed(names)?), modified));
            }
        },
        Found::File(_) if asked.ends_in_slash && !asked.is_query => {
            return Ok(Prepared::Elsewhere(format!("../{}", relative(asked.name()))));
        }
        Found::File(opened) => (opened, asked.name()),
    };
    let mut begins = [0; SNIFFED];
    let count = opened.file.read_at(&mut begins, 0)?;
    Ok(Prepared::File { opened, kind: content_type(name, &begins[..count]) })
}

/// A file, or a part of it. Source: `serveContent`.
fn sent(opened: Opened, kind: &'static str, range: Option<&str>, lane: &Lane) -> Response {
    let Opened { file, bytes, modified: _ } = opened;
    let (status, first, length) = match Part::of(range, bytes) {
        Part::Whole => (StatusCode::OK, 0, bytes),
        Part::Range { first, length } => (StatusCode::PARTIAL_CONTENT, first, length),
        Part::Beyond => {
            let mut response = error(StatusCode::RANGE_NOT_SATISFIABLE, "invalid range: failed to overlap");
            put(response.headers_mut(), header::CONTENT_RANGE, format!("bytes */{bytes}"));
            return response;
        }
        Part::Unreadable => return error(StatusCode::RANGE_NOT_SATISFIABLE, "invalid range"),
    };
    let mut response = streamed(kind, pieces(lane.clone(), file, first, first + length));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if status == StatusCode::PARTIAL_CONTENT {
        put(headers, header::CONTENT_RANGE, format!("bytes {first}-{}/{bytes}", first + length - 1));
    }
    put(headers, header::ACCEPT_RANGES, "bytes".to_owned());
    put(headers, header::CONTENT_LENGTH, length.to_string());
    response
}

/// The bytes of a file between two places. One that has become shorter breaks the answer off.
fn pieces(lane: Lane, file: File, from: u64, to: u64) -> impl Stream<Item = Result<Bytes, BoxError>> + Send {
    futures::stream::try_unfold((file, from), move |(file, at)| {
        let lane = lane.clone();
        async move {
            let most = usize::try_from(to - at).unwrap_or(PIECE).min(PIECE);
            if most == 0 {
                return Ok(None);
            }
            let (file, piece) = lane.run(move || piece_at(file, at, most)).await?;
            let piece = piece?;
            if piece.is_empty() {
                return Err(BoxError::from(io::Error::from(io::ErrorKind::UnexpectedEof)));
            }
            let at = at + piece.len() as u64;
            Ok(Some((piece, (file, at))))
        }
    })
}

/// The next bytes of a file; none at its end.
pub(super) fn piece_at(file: File, at: u64, most: usize) -> (File, io::Result<Bytes>) {
    let mut piece = vec![0; most];
    let read = file.read_at(&mut piece, at).map(|count| {
        piece.truncate(count);
        piece.into()
    });
    (file, read)
}

/// Source: `toHTTPError`: what is on the node is told to nobody.
fn failed(failure: &io::Error) -> Response {
    match failure.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            error(StatusCode::NOT_FOUND, "404 page not found")
        }
        io::ErrorKind::PermissionDenied => error(StatusCode::FORBIDDEN, "403 Forbidden"),
        _ => {
            tracing::warn!(error = with_causes(failure), "a file of the node's logs cannot be read");
            error(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error")
        }
    }
}

fn not_modified() -> Response {
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response
}

fn put(headers: &mut HeaderMap, name: HeaderName, value: String) {
    // Numbers and words of ours are values.
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}
