//! The SPDY streams of a session, as they are opened.

use super::channel::{Channel, STREAM_TYPE};
use super::options::Options;
use super::version::Version;
use crate::spdy::{Headers, StreamId};

/// What becomes of a stream that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// It belongs to the session: reply to it. Others are to come.
    Waiting,
    /// It belongs to the session, which has all its streams now: reply to it, and begin.
    Complete(Streams),
    /// The session has no such stream, or has it already: refuse it
    /// ([`ResetStatus::RefusedStream`](crate::spdy::ResetStatus::RefusedStream)).
    Refused,
}

/// The streams of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Streams([Option<StreamId>; Channel::ALL.len()]);

impl Streams {
    /// The stream of a channel.
    pub fn get(&self, channel: Channel) -> Option<StreamId> {
        *self.0.get(usize::from(channel.number()))?
    }

    /// The channel of a stream.
    pub fn channel(&self, stream: StreamId) -> Option<Channel> {
        Channel::ALL.into_iter().find(|channel| self.get(*channel) == Some(stream))
    }
}

/// A session over SPDY, whose client opens a stream for each channel. It may take
/// [`STREAM_CREATION_TIMEOUT`](super::STREAM_CREATION_TIMEOUT) for that.
#[derive(Debug)]
pub struct Session {
    version: Version,
    options: Options,
    streams: Streams,
}

impl Session {
    /// A session without any stream.
    pub fn new(version: Version, options: Options) -> Session {
        Session { version, options, streams: Streams::default() }
    }

    /// Takes a stream that was opened.
    pub fn opened(&mut self, stream: StreamId, headers: &Headers) -> Joined {
        let channel = headers.get(STREAM_TYPE).and_then(Channel::of_stream_type);
        let channel = channel.filter(|channel| self.options.uses(*channel, self.version));
        let place = channel.and_then(|channel| self.streams.0.get_mut(usize::from(channel.number())));
        let Some(place @ None) = place else { return Joined::Refused };
        *place = Some(stream);
        if self.missing().next().is_none() { Joined::Complete(self.streams) } else { Joined::Waiting }
    }

    /// Forgets a stream that was reset before the session began.
    pub fn ended(&mut self, stream: StreamId) {
        for place in &mut self.streams.0 {
            place.take_if(|known| *known == stream);
        }
    }

    /// The channels whose streams are still to come.
    pub fn missing(&self) -> impl Iterator<Item = Channel> + '_ {
        let is_used = |channel: &Channel| self.options.uses(*channel, self.version);
        Channel::ALL.into_iter().filter(is_used).filter(|channel| self.streams.get(*channel).is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Options = Options { stdin: false, stdout: false, stderr: false, tty: false };

    fn open(session: &mut Session, id: u32, stream_type: &str) -> Joined {
        session.opened(StreamId(id), &Headers::default().with("streamType", stream_type))
    }

    #[test]
    fn a_session_begins_with_its_last_stream() {
        let all = Options { stdin: true, stdout: true, stderr: true, tty: false };
        let terminal = Options { stdin: true, stdout: true, stderr: false, tty: true };
        let table: [(Version, Options, &[&str]); 6] = [
            (Version::V4, all, &["error", "stdin", "stdout", "stderr"]),
            (Version::V4, all, &["stderr", "stdout", "stdin", "error"]),
            (Version::V4, terminal, &["error", "stdin", "stdout", "resize"]),
            (Version::V3, terminal, &["error", "stdin", "stdout", "resize"]),
            (Version::V2, terminal, &["error", "stdin", "stdout"]),
            (Version::V1, Options { stdout: true, ..NONE }, &["error", "stdout"]),
        ];
        for (version, options, types) in table {
            let mut session = Session::new(version, options);
            let joined: Vec<Joined> = (1..)
                .step_by(2)
                .zip(types)
                .map(|(id, stream_type)| open(&mut session, id, stream_type))
                .collect();
            let (last, others) = joined.split_last().unwrap();
            assert!(others.iter().all(|joined| *joined == Joined::Waiting), "{version:?} {types:?}");
            let Joined::Complete(streams) = last else { panic!("{version:?} {types:?}: {last:?}") };
            for (id, stream_type) in (1..).step_by(2).zip(types) {
                let channel = Channel::of_stream_type(stream_type).unwrap();
                assert_eq!(streams.get(channel), Some(StreamId(id)));
                assert_eq!(streams.channel(StreamId(id)), Some(channel));
            }
        }
    }

    #[test]
    fn streams_that_a_session_has_not_are_refused() {
        let mut session = Session::new(Version::V4, Options { stdout: true, ..NONE });
        for stream_type in ["stdin", "stderr", "resize", "data", ""] {
            assert_eq!(open(&mut session, 1, stream_type), Joined::Refused, "{stream_type}");
        }
        assert_eq!(session.opened(StreamId(1), &Headers::default()), Joined::Refused);
        assert_eq!(open(&mut session, 3, "error"), Joined::Waiting);
        assert_eq!(open(&mut session, 5, "error"), Joined::Refused, "it has one");
        assert_eq!(session.missing().collect::<Vec<_>>(), [Channel::Stdout]);
        session.ended(StreamId(3));
        assert_eq!(open(&mut session, 7, "stdout"), Joined::Waiting);
        assert!(matches!(open(&mut session, 9, "error"), Joined::Complete(_)));
    }
}
