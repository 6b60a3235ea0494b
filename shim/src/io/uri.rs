//! The three URIs that say where a process's standard streams lead.
//!
//! containerd hands them over as they are. The stock forms are read as `containerd-shim-runc-v2` reads them
//! (`cmd/containerd-shim-runc-v2/process/io.go` of containerd 2.3); `cri-log` and `attach` are ours. Nothing else says
//! where streams lead: no annotation and no label does.

use std::ffi::{OsStr, OsString};
use std::num::{NonZeroU64, NonZeroUsize};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The kubelet's and containerd's default for the content of one log line.
const LINE_BYTES_DEFAULT: usize = 16 << 10;
/// Upper bound for the same, since a line is kept in memory until it ends.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Longest path that the kernel takes, with the byte that ends it (`PATH_MAX`).
const PATH_BYTES_MAX: usize = 4096;

/// Where standard output or error leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamUri {
    /// Nowhere.
    Null,
    /// A named pipe that the client reads.
    Fifo(PathBuf),
    /// A file that bytes are appended to.
    File(PathBuf),
    /// A program that gets both streams as descriptors 3 and 4.
    Binary(Program),
    /// A log in the CRI format, written and rotated by the shim.
    CriLog(LogOptions),
}

/// `binary:///abs/path?key=value` or `binary-v2://…`: containerd's logging binary protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) readiness: Readiness,
}

/// How a logging program says on descriptor 5 that it is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// `binary`: it closes the descriptor, which it does too when it crashes.
    ByClosing,
    /// `binary-v2`: it writes a byte; closing the descriptor before that is a failure.
    ByWriting,
}

/// `cri-log:///abs/path?max_size=BYTES&max_files=N&max_line=BYTES`. The path is taken as it stands, without escapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogOptions {
    pub(crate) path: PathBuf,
    pub(crate) size_max: Option<NonZeroU64>,
    pub(crate) files_max: usize,
    pub(crate) line_bytes_max: NonZeroUsize,
}

/// Where standard input comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StdinUri {
    /// Nothing: its end, at once.
    Null,
    /// A named pipe that the client writes.
    Fifo(PathBuf),
    /// `attach:` clients of the shim's own service; with `?once=true` the first one to leave ends it.
    Attach { once: bool },
}

/// Why a URI is refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum UriError {
    #[error("open stream {0:?}: expected a path, fifo://, file://, binary://, binary-v2:// or cri-log://")]
    Scheme(String),
    #[error("open stream {0:?}: the path is not absolute")]
    Relative(String),
    #[error("open stream {0:?}: the path has a \"..\" in it, so it may be another file than it seems")]
    Upward(String),
    #[error("open stream {0:?}: a path cannot contain a NUL byte or have {PATH_BYTES_MAX} bytes")]
    NoPath(String),
    #[error("open stream {0:?}: a percent sign must be followed by two hexadecimal digits")]
    Escape(String),
    #[error("open stream {uri:?}: parameter {name} has no such value as {value:?}")]
    Parameter { uri: String, name: String, value: String },
}

impl StreamUri {
    pub(crate) fn parse(uri: &str) -> Result<Self, UriError> {
        if uri.is_empty() {
            return Ok(Self::Null);
        }
        let (scheme, rest) = split(uri);
        match scheme {
            "" | "fifo" => path(uri, rest).map(Self::Fifo),
            "file" => url_path(uri, without_fragment(rest)).map(|(path, _)| Self::File(path)),
            "binary" => program(uri, rest, Readiness::ByClosing).map(Self::Binary),
            "binary-v2" => program(uri, rest, Readiness::ByWriting).map(Self::Binary),
            "cri-log" => {
                let (file, query) = rest.split_once('?').unwrap_or((rest, ""));
                log_options(uri, path(uri, file)?, query).map(Self::CriLog)
            }
            _ => Err(UriError::Scheme(uri.to_owned())),
        }
    }
}

impl StdinUri {
    pub(crate) fn parse(uri: &str) -> Result<Self, UriError> {
        match uri {
            "" => return Ok(Self::Null),
            "attach:" => return Ok(Self::Attach { once: false }),
            "attach:?once=true" => return Ok(Self::Attach { once: true }),
            _ => {}
        }
        match split(uri) {
            ("" | "fifo", file) => path(uri, file).map(Self::Fifo),
            _ => Err(UriError::Scheme(uri.to_owned())),
        }
    }
}

fn split(uri: &str) -> (&str, &str) {
    uri.split_once("://").unwrap_or(("", uri))
}

/// A path that leads where it says.
fn path(uri: &str, text: impl AsRef<OsStr>) -> Result<PathBuf, UriError> {
    let path = Path::new(text.as_ref());
    let bytes = text.as_ref().as_bytes();
    if !path.is_absolute() {
        return Err(UriError::Relative(uri.to_owned()));
    }
    if bytes.contains(&0) || bytes.len() >= PATH_BYTES_MAX {
        return Err(UriError::NoPath(uri.to_owned()));
    }
    if path.components().any(|part| part == std::path::Component::ParentDir) {
        return Err(UriError::Upward(uri.to_owned()));
    }
    Ok(path.to_owned())
}

fn without_fragment(rest: &str) -> &str {
    rest.split_once('#').map_or(rest, |(before, _)| before)
}

/// The path of a URL, unescaped, and its query.
fn url_path<'u>(uri: &str, rest: &'u str) -> Result<(PathBuf, &'u str), UriError> {
    let (text, query) = rest.split_once('?').unwrap_or((rest, ""));
    let bytes = unescape(text, Plus::Itself).ok_or_else(|| UriError::Escape(uri.to_owned()))?;
    Ok((path(uri, OsString::from_vec(bytes))?, query))
}

fn program(uri: &str, rest: &str, readiness: Readiness) -> Result<Program, UriError> {
    let (path, query) = url_path(uri, without_fragment(rest))?;
    let arguments = arguments(query);
    if arguments.iter().any(|argument| argument.as_bytes().contains(&0)) {
        return Err(UriError::NoPath(uri.to_owned()));
    }
    Ok(Program { path, arguments, readiness })
}

/// Each key and its first value become two arguments, in the order in which they stand; a key without a value is
/// followed by an empty one. What Go's `url.ParseQuery` cannot read is left out, as there.
fn arguments(query: &str) -> Vec<OsString> {
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Some(key), Some(value)) = (unescape(key, Plus::Space), unescape(value, Plus::Space))
            && pairs.iter().all(|(known, _)| *known != key)
        {
            pairs.push((key, value));
        }
    }
    pairs.into_iter().flat_map(|(key, value)| [key, value]).map(OsString::from_vec).collect()
}

/// What a `+` stands for.
#[derive(Clone, Copy)]
enum Plus {
    Itself,
    Space,
}

fn unescape(text: &str, plus: Plus) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match (byte, plus) {
            (b'%', _) => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            (b'+', Plus::Space) => b' ',
            (other, _) => other,
        });
    }
    Some(out)
}

fn log_options(uri: &str, path: PathBuf, query: &str) -> Result<LogOptions, UriError> {
    let line_bytes_max = NonZeroUsize::new(LINE_BYTES_DEFAULT).unwrap_or(NonZeroUsize::MIN);
    let mut options = LogOptions { path, size_max: None, files_max: usize::MAX, line_bytes_max };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let bad =
            || UriError::Parameter { uri: uri.to_owned(), name: name.to_owned(), value: value.to_owned() };
        let number: u64 = value.parse().map_err(|_not_a_number| bad())?;
        let small = usize::try_from(number).map_err(|_too_large| bad())?;
        match name {
            "max_size" => options.size_max = NonZeroU64::new(number),
            "max_files" if small >= 2 => options.files_max = small,
            "max_line" => {
                options.line_bytes_max =
                    NonZeroUsize::new(small).filter(|line| line.get() <= LINE_BYTES_MAX).ok_or_else(bad)?;
            }
            _ => return Err(bad()),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests;
