//! What the headers of a SPDY stream say.

use crate::spdy::{Headers, StreamId};

/// What a stream carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The connection's data, both ways.
    Data,
    /// What went wrong.
    Error,
}

/// A stream of a forwarded connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// What it carries.
    pub kind: Kind,
    /// The pod's port.
    pub port: u16,
    /// What its connection is called: both streams say the same.
    pub request: String,
}

/// A stream that is none of a forwarded connection. It is reset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotForwarded {
    /// It has no port.
    #[error("read the headers of a stream: there is no {0}")]
    Missing(&'static str),
    /// Its port is no number from 1 to 65535.
    #[error("read the headers of a stream: {0:?} is not a port")]
    Port(String),
    /// It carries something else.
    #[error("read the headers of a stream: stream type {0:?} is neither data nor error")]
    Kind(String),
}

impl Stream {
    /// Reads the headers of a stream. One without `requestID` is of a client before Kubernetes 1.2, which opens the
    /// error stream, then the data stream.
    ///
    /// # Errors
    /// When the stream belongs to no forwarded connection.
    pub fn of(stream: StreamId, headers: &Headers) -> Result<Stream, NotForwarded> {
        let get = |name| headers.get(name).filter(|value| !value.is_empty());
        let port = get("port").ok_or(NotForwarded::Missing("port"))?;
        let port = super::ports::port(port).ok_or_else(|| NotForwarded::Port(port.to_owned()))?;
        let kind = match get("streamtype").ok_or(NotForwarded::Missing("streamType"))? {
            "data" => Kind::Data,
            "error" => Kind::Error,
            other => return Err(NotForwarded::Kind(other.to_owned())),
        };
        let request = match (get("requestid"), kind) {
            (Some(request), _) => request.to_owned(),
            (None, Kind::Error) => stream.to_string(),
            (None, Kind::Data) => stream.0.saturating_sub(2).to_string(),
        };
        Ok(Stream { kind, port, request })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(id: u32, headers: &[(&str, &str)]) -> Result<Stream, NotForwarded> {
        let headers =
            headers.iter().fold(Headers::default(), |headers, (name, value)| headers.with(name, value));
        Stream::of(StreamId(id), &headers)
    }

    #[test]
    fn streams_say_what_they_are_for() {
        let stream = |kind, port, request: &str| Ok(Stream { kind, port, request: request.to_owned() });
        assert_eq!(
            of(1, &[("streamType", "error"), ("port", "80"), ("requestID", "7")]),
            stream(Kind::Error, 80, "7")
        );
        assert_eq!(of(3, &[("streamType", "data"), ("port", "65535")]), stream(Kind::Data, 65535, "1"));
        assert_eq!(of(1, &[("streamType", "error"), ("port", "1")]), stream(Kind::Error, 1, "1"));
        assert_eq!(
            of(1, &[("streamType", "data"), ("port", "1"), ("requestID", "")]),
            stream(Kind::Data, 1, "0"),
            "no stream has number 0"
        );
    }

    #[test]
    fn others_are_refused() {
        assert_eq!(of(1, &[("streamType", "data")]), Err(NotForwarded::Missing("port")));
        assert_eq!(of(1, &[("port", "80")]), Err(NotForwarded::Missing("streamType")));
        assert_eq!(
            of(1, &[("port", "80"), ("streamType", "stdin")]),
            Err(NotForwarded::Kind("stdin".to_owned()))
        );
        for port in ["0", "65536", "-1", "+80", " 80", "80x", "99999999999999999999"] {
            assert_eq!(
                of(1, &[("port", port), ("streamType", "data")]),
                Err(NotForwarded::Port(port.to_owned()))
            );
        }
    }
}
