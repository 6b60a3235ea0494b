//! The three URIs that say where a process's standard streams lead.
//!
//! containerd hands them over as they are. The stock forms are those of `containerd-shim-runc-v2`; `cri-log` and
//! `attach` are ours.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use thiserror::Error;

/// The kubelet's and containerd's default for the content of one log line.
const LINE_BYTES_DEFAULT: usize = 16 << 10;
/// Upper bound for the same, since a line is kept in memory until it ends.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Where standard output or error leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamUri {
    /// Nowhere.
    Null,
    /// A named pipe that the client reads.
    Fifo(PathBuf),
    /// A file that bytes are appended to.
    File(PathBuf),
    /// A program that gets both streams as descriptors 3 and 4: containerd's logging binary protocol.
    Binary { program: PathBuf, arguments: Vec<String> },
    /// A log in the CRI format, written and rotated by the shim.
    CriLog(LogOptions),
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
    #[error("open stream {0:?}: expected a path, fifo://, file://, binary:// or cri-log://")]
    Scheme(String),
    #[error("open stream {0:?}: the path is not absolute")]
    Relative(String),
    #[error("open stream {uri:?}: parameter {name} has no such value as {value:?}")]
    Parameter { uri: String, name: String, value: String },
}

impl StreamUri {
    pub(crate) fn parse(uri: &str) -> Result<Self, UriError> {
        if uri.is_empty() {
            return Ok(Self::Null);
        }
        let (scheme, rest) = split(uri);
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !path.starts_with('/') {
            return Err(UriError::Relative(uri.to_owned()));
        }
        match scheme {
            "" | "fifo" => Ok(Self::Fifo(rest.into())),
            "file" => Ok(Self::File(path.into())),
            "binary" => Ok(Self::Binary { program: path.into(), arguments: binary_arguments(query) }),
            "cri-log" => log_options(uri, path, query).map(Self::CriLog),
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
            ("" | "fifo", path) if path.starts_with('/') => Ok(Self::Fifo(path.into())),
            ("" | "fifo", _) => Err(UriError::Relative(uri.to_owned())),
            _ => Err(UriError::Scheme(uri.to_owned())),
        }
    }
}

fn split(uri: &str) -> (&str, &str) {
    uri.split_once("://").unwrap_or(("", uri))
}

/// Each `key=value` becomes two arguments, and an empty value none (`cmd/containerd-shim-runc-v2/process/io.go`).
fn binary_arguments(query: &str) -> Vec<String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .flat_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            [key, value].into_iter().filter(|part| !part.is_empty()).map(str::to_owned)
        })
        .collect()
}

fn log_options(uri: &str, path: &str, query: &str) -> Result<LogOptions, UriError> {
    let line_bytes_max = NonZeroUsize::new(LINE_BYTES_DEFAULT).unwrap_or(NonZeroUsize::MIN);
    let mut options = LogOptions { path: path.into(), size_max: None, files_max: usize::MAX, line_bytes_max };
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
mod tests {
    use super::*;

    #[test]
    fn stock_forms_are_read_as_the_stock_shim_reads_them() {
        assert_eq!(StreamUri::parse(""), Ok(StreamUri::Null));
        assert_eq!(StreamUri::parse("/run/f"), Ok(StreamUri::Fifo("/run/f".into())));
        assert_eq!(StreamUri::parse("fifo:///run/f"), Ok(StreamUri::Fifo("/run/f".into())));
        assert_eq!(StreamUri::parse("file:///l.txt"), Ok(StreamUri::File("/l.txt".into())));
        let arguments = vec!["-a".to_owned(), "b".to_owned(), "flag".to_owned()];
        let binary = StreamUri::Binary { program: "/bin/l".into(), arguments };
        assert_eq!(StreamUri::parse("binary:///bin/l?-a=b&flag"), Ok(binary));
        assert_eq!(StreamUri::parse("tcp://x"), Err(UriError::Relative("tcp://x".to_owned())));
        assert_eq!(StreamUri::parse("tcp:///x"), Err(UriError::Scheme("tcp:///x".to_owned())));
        assert_eq!(StreamUri::parse("rel"), Err(UriError::Relative("rel".to_owned())));
    }

    #[test]
    fn a_cri_log_has_limits() {
        let uri = "cri-log:///var/log/pods/p/c/0.log?max_size=1000&max_files=5&max_line=100";
        let Ok(StreamUri::CriLog(options)) = StreamUri::parse(uri) else { panic!("expected a log") };
        assert_eq!(options.path, PathBuf::from("/var/log/pods/p/c/0.log"));
        assert_eq!((options.size_max.map(NonZeroU64::get), options.files_max), (Some(1000), 5));
        assert_eq!(options.line_bytes_max.get(), 100);
        for bad in ["max_line=0", "max_line=1048577", "max_files=1", "max_size=-1", "max_size=x", "frob=1"] {
            StreamUri::parse(&format!("cri-log:///l?{bad}")).expect_err(bad);
        }
    }

    #[test]
    fn stdin_comes_from_a_fifo_or_from_attached_clients() {
        assert_eq!(StdinUri::parse("attach:"), Ok(StdinUri::Attach { once: false }));
        assert_eq!(StdinUri::parse("attach:?once=true"), Ok(StdinUri::Attach { once: true }));
        assert_eq!(StdinUri::parse("/f"), Ok(StdinUri::Fifo("/f".into())));
        StdinUri::parse("attach:?twice").expect_err("unknown parameter");
        StdinUri::parse("file:///f").expect_err("not an input");
    }
}
