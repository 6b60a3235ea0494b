//! Which streams belong together.

use std::collections::BTreeMap;
use std::time::Duration;

use super::stream::{Kind, Stream};
use crate::spdy::StreamId;

/// How long one stream waits for the other one.
const PAIRING_TIMEOUT: Duration = Duration::from_secs(30);

/// Most streams that wait for the other one. Clients open both at once.
const WAITING_MAX: usize = 256;

/// Both streams of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// The pod's port, as the data stream says it.
    pub port: u16,
    /// The stream with the data.
    pub data: StreamId,
    /// The stream on which failures are told.
    pub error: StreamId,
}

/// What becomes of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Paired {
    /// Accept it. The other one is to come.
    Waiting,
    /// Accept it. The connection begins.
    Complete(Pair),
    /// Refuse it: its connection has such a stream. The error stream of that, if it has one, is told so.
    Twice {
        /// The stream that is told.
        error: Option<StreamId>,
        /// What it is told.
        message: String,
    },
    /// Refuse it: too many wait.
    TooMany,
}

/// A stream whose other one has not come in time. It is told so, if it is an error stream, and then reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    /// The stream.
    pub stream: StreamId,
    /// What it carries.
    pub kind: Kind,
    /// What it is told.
    pub message: String,
}

#[derive(Debug)]
struct Waiting {
    stream: StreamId,
    kind: Kind,
    port: u16,
    until: Duration,
}

/// The streams of a connection to a client that wait for the other one. Times count from one moment, whichever.
#[derive(Debug, Default)]
pub struct Pairs {
    /// By what they call their connection.
    waiting: BTreeMap<String, Waiting>,
}

impl Pairs {
    /// Takes a stream that was opened.
    pub fn opened(&mut self, now: Duration, id: StreamId, stream: Stream) -> Paired {
        let Stream { kind, port, request } = stream;
        let Some(other) = self.waiting.get(&request) else {
            if self.waiting.len() >= WAITING_MAX {
                return Paired::TooMany;
            }
            let until = now.saturating_add(PAIRING_TIMEOUT);
            self.waiting.insert(request, Waiting { stream: id, kind, port, until });
            return Paired::Waiting;
        };
        let pair = match (kind, other.kind) {
            (Kind::Data, Kind::Error) => Pair { port, data: id, error: other.stream },
            (Kind::Error, Kind::Data) => Pair { port: other.port, data: other.stream, error: id },
            (Kind::Data, Kind::Data) | (Kind::Error, Kind::Error) => {
                let name = if kind == Kind::Data { "data" } else { "error" };
                return Paired::Twice {
                    error: (kind == Kind::Error).then_some(other.stream),
                    message: format!("open a stream of request {request}: it has an {name} stream already"),
                };
            }
        };
        self.waiting.remove(&request);
        Paired::Complete(pair)
    }

    /// Forgets a stream that was reset, if it waits. One that is merely finished goes on waiting: clients finish their
    /// half of an error stream before they open the data stream.
    pub fn ended(&mut self, stream: StreamId) {
        self.waiting.retain(|_, waiting| waiting.stream != stream);
    }

    /// When [`expired`](Pairs::expired) has something to say.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.waiting.values().map(|waiting| waiting.until).min()
    }

    /// Takes out the streams that have waited too long.
    pub fn expired(&mut self, now: Duration) -> Vec<Expired> {
        let late = self.waiting.extract_if(.., |_, waiting| waiting.until <= now);
        let expired = |(request, Waiting { stream, kind, .. }): (String, Waiting)| {
            let seconds = PAIRING_TIMEOUT.as_secs();
            let message =
                format!("wait for both streams of request {request}: the other did not come in {seconds} s");
            Expired { stream, kind, message }
        };
        late.map(expired).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn stream(kind: Kind, port: u16, request: &str) -> Stream {
        Stream { kind, port, request: request.to_owned() }
    }

    #[test]
    fn two_streams_of_a_request_are_a_pair() {
        let mut pairs = Pairs::default();
        let mut opened =
            |id, kind, port, request| pairs.opened(Duration::ZERO, StreamId(id), stream(kind, port, request));
        assert_eq!(opened(1, Kind::Error, 1, "a"), Paired::Waiting);
        assert_eq!(opened(3, Kind::Data, 2, "b"), Paired::Waiting);
        let a = Pair { port: 80, data: StreamId(5), error: StreamId(1) };
        assert_eq!(opened(5, Kind::Data, 80, "a"), Paired::Complete(a), "the data stream has the port");
        let b = Pair { port: 2, data: StreamId(3), error: StreamId(7) };
        assert_eq!(opened(7, Kind::Error, 90, "b"), Paired::Complete(b));
        assert_eq!(opened(9, Kind::Error, 1, "a"), Paired::Waiting, "the name is free again");
        assert_eq!(pairs.next_timeout(), Some(30 * SECOND));
    }

    #[test]
    fn a_stream_that_comes_twice_is_refused() {
        let mut pairs = Pairs::default();
        for (kind, told) in [(Kind::Data, None), (Kind::Error, Some(StreamId(1)))] {
            pairs.ended(StreamId(1));
            assert_eq!(pairs.opened(SECOND, StreamId(1), stream(kind, 1, "a")), Paired::Waiting);
            let twice = pairs.opened(SECOND, StreamId(3), stream(kind, 1, "a"));
            assert!(matches!(twice, Paired::Twice { error, .. } if error == told), "{twice:?}");
        }
    }

    #[test]
    fn streams_wait_for_so_long_and_no_more_than_so_many() {
        let mut pairs = Pairs::default();
        for id in 0..u32::try_from(WAITING_MAX).unwrap() {
            let kind = if id == 0 { Kind::Error } else { Kind::Data };
            let paired = pairs.opened(SECOND * id, StreamId(id), stream(kind, 1, &format!("{id:03}")));
            assert_eq!(paired, Paired::Waiting);
        }
        assert_eq!(pairs.opened(SECOND, StreamId(999), stream(Kind::Data, 1, "one more")), Paired::TooMany);
        assert_eq!(pairs.next_timeout(), Some(30 * SECOND));
        assert_eq!(pairs.expired(30 * SECOND - Duration::from_nanos(1)), []);
        let expired = pairs.expired(31 * SECOND);
        let streams: Vec<_> = expired.iter().map(|expired| (expired.stream.0, expired.kind)).collect();
        assert_eq!(streams, [(0, Kind::Error), (1, Kind::Data)]);
        assert_eq!(pairs.next_timeout(), Some(32 * SECOND));
        pairs.ended(StreamId(2));
        assert_eq!(pairs.next_timeout(), Some(33 * SECOND));
        assert_eq!(pairs.expired(Duration::MAX).len(), WAITING_MAX - 3);
        assert_eq!(pairs.next_timeout(), None);
    }
}
