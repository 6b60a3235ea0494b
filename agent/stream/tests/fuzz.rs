//! Mutated frames and messages: no panic, nothing held without bound, and an end, a reset or an event for everything.

#![expect(clippy::unwrap_used, reason = "a failure here is the failure of the test")]

use std::borrow::Cow;
use std::collections::BTreeMap;

use berth_fuzz::{Corpus, Random, cuts, mutate, seeds};
use berth_stream::port_forward::{Pairs, Stream};
use berth_stream::remote_command::{Options, Session, Sizes, Version};
use berth_stream::spdy::{Connection, ConnectionError, Event, Headers, Limits, ResetStatus, StreamId};
use berth_stream::web_socket::{Codec, Encoding, Incoming};

const LIMITS: Limits = Limits {
    control_frame: 1 << 10,
    header_block: 2 << 10,
    headers: 8,
    streams: 8,
    window: 1 << 10,
    unconsumed: 4 << 10,
    output: 4 << 10,
};

/// Bytes of answers that a connection has beyond its output before it holds reading, and those that follow on one more
/// piece of input: the shortest frame that is answered has 8 bytes, the answer 16.
const ANSWERS_MAX: usize = 16 << 10;

/// An application that does with its streams what chance says, and knows what it has heard.
struct Application {
    connection: Connection,
    pairs: Pairs,
    /// Bytes of each open stream that were heard of and not taken, and whether its end was heard.
    heard: BTreeMap<StreamId, (usize, bool)>,
    last: u32,
    is_going: bool,
}

impl Application {
    fn new() -> Application {
        let connection = Connection::new(LIMITS);
        Application { connection, pairs: Pairs::default(), heard: BTreeMap::new(), last: 0, is_going: false }
    }

    fn hear(&mut self, random: &mut Random) {
        while let Some(event) = self.connection.poll() {
            match event {
                Event::Opened { stream, headers, finished } => {
                    assert!(!stream.0.is_multiple_of(2) && stream.0 > self.last, "ids are odd and grow");
                    self.last = stream.0;
                    assert!(self.heard.insert(stream, (0, finished)).is_none());
                    self.begin(stream, &headers, random);
                }
                Event::Data { stream, bytes } => {
                    assert!(!bytes.is_empty());
                    let (waiting, is_finished) = self.heard.get_mut(&stream).expect("it is open");
                    assert!(!*is_finished, "nothing comes after the end");
                    *waiting += bytes.len();
                }
                Event::Finished { stream } => {
                    let (_, is_finished) = self.heard.get_mut(&stream).expect("it is open");
                    assert!(!std::mem::replace(is_finished, true), "a stream ends once");
                }
                Event::Reset { stream, .. } => {
                    assert!(self.heard.remove(&stream).is_some(), "a stream ends once");
                    self.pairs.ended(stream);
                }
                Event::GoAway => assert!(!std::mem::replace(&mut self.is_going, true)),
                Event::Pong { .. } => panic!("nothing was asked"),
            }
        }
        self.act(random);
        let waiting: usize = self.heard.values().map(|(waiting, _)| waiting).sum();
        if waiting >= LIMITS.unconsumed {
            assert!(self.connection.holds_reading(), "{waiting} bytes wait");
        }
    }

    fn begin(&mut self, stream: StreamId, headers: &Headers, random: &mut Random) {
        let mut session = Session::new(Version::V4, Options::of_query([("output", "1")]).unwrap());
        session.opened(stream, headers);
        if let Ok(forwarded) = Stream::of(stream, headers) {
            self.pairs.opened(std::time::Duration::ZERO, stream, forwarded);
        }
        if !random.once_in(4) {
            self.connection.reply(stream, headers);
        }
    }

    fn act(&mut self, random: &mut Random) {
        for stream in self.heard.keys().copied().collect::<Vec<_>>() {
            match random.below(6) {
                0 => self.connection.finish(stream),
                1 => {
                    self.connection.reset(stream, ResetStatus::Cancel);
                    self.heard.remove(&stream);
                }
                2 => {
                    let can = self.connection.can_send(stream);
                    assert_eq!(self.connection.send(stream, &[0; 600]) > 0, can);
                }
                _ => {
                    let (waiting, _) = self.heard.get_mut(&stream).unwrap();
                    let taken = random.below(*waiting + 1);
                    *waiting -= taken;
                    self.connection.consumed(stream, taken);
                }
            }
        }
        // What is over on both sides is over here too.
        let open: Vec<StreamId> = self.connection.streams().collect();
        self.heard.retain(|stream, (waiting, is_finished)| {
            open.contains(stream) || {
                assert!(*is_finished && *waiting == 0, "stream {stream} was forgotten too early");
                false
            }
        });
        assert_eq!(self.heard.keys().copied().collect::<Vec<_>>(), open);
        assert!(open.len() <= LIMITS.streams);
    }

    /// Reads as a shell does: not when reading is held, and so many bytes at once.
    fn read(&mut self, piece: &[u8], random: &mut Random) -> Result<(), ConnectionError> {
        for part in piece.chunks(1 << 10) {
            while self.connection.holds_reading() {
                let written = self.connection.output().pending().len();
                self.connection.output().written(written);
                for stream in self.heard.keys().copied().collect::<Vec<_>>() {
                    self.connection.consumed(stream, usize::MAX);
                }
                self.heard.values_mut().for_each(|(waiting, _)| *waiting = 0);
                self.hear(random);
            }
            self.connection.feed(part)?;
            let pending = self.connection.output().pending().len();
            assert!(pending <= LIMITS.output + ANSWERS_MAX + (4 << 10), "{pending} bytes wait to be written");
            if random.once_in(2) {
                self.hear(random);
            }
        }
        Ok(())
    }
}

#[test]
fn no_peer_breaks_a_connection() {
    let corpus = Corpus::load("spdy");
    let (mut well, mut opened) = (0_u32, 0_u32);
    seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let input = mutate(&mut random, &corpus);
        let mut application = Application::new();
        let read =
            cuts(&mut random, &input).into_iter().try_for_each(|piece| application.read(piece, &mut random));
        application.hear(&mut random);
        well += u32::from(read.is_ok());
        opened += u32::from(application.last > 0);
        if let Err(error) = read {
            let pending = application.connection.output().pending();
            let go_away = pending.len().checked_sub(16).map(|at| &pending[at..at + 8]);
            assert_eq!(go_away, Some(b"\x80\x03\x00\x07\x00\x00\x00\x08".as_slice()), "{error}");
            assert_eq!(application.connection.feed(&input), Err(error));
        }
    });
    let is_one = std::env::var_os("SEED").is_some();
    assert!(is_one || (well > 500 && opened > 3000), "{well} went well, {opened} opened a stream");
}

#[test]
fn frames_are_the_same_in_any_pieces() {
    let corpus = Corpus::load("spdy");
    let said = |pieces: &[&[u8]]| {
        let mut connection = Connection::new(LIMITS);
        let ended = pieces.iter().find_map(|piece| connection.feed(piece).err());
        let mut events: Vec<Event> = Vec::new();
        while let Some(event) = connection.poll() {
            match (&event, events.last_mut()) {
                (Event::Data { stream, bytes }, Some(Event::Data { stream: last, bytes: before }))
                    if stream == last =>
                {
                    before.extend_from_slice(bytes);
                }
                _ => events.push(event),
            }
        }
        (events, connection.output().pending().to_vec(), ended)
    };
    seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let input = mutate(&mut random, &corpus);
        assert_eq!(said(&cuts(&mut random, &input)), said(&[&input]));
    });
}

#[test]
fn no_message_breaks_a_session() {
    let corpus = Corpus::load("web_socket");
    let (mut data, mut closed, mut sized) = (0_u32, 0_u32, 0_u32);
    seeds(20_000, |seed| {
        let mut random = Random::new(seed);
        let encoding = *random.pick(&[Encoding::Binary, Encoding::Base64]);
        let codec = Codec::new(encoding, 5, random.once_in(2));
        let mut sizes = Sizes::default();
        for _message in 0..random.below(5) {
            let message = mutate(&mut random, &corpus);
            match codec.decode(&message) {
                Ok(Incoming::Data { channel, bytes }) => {
                    data += 1;
                    assert!(channel < 5 && bytes.len() < message.len());
                    let bytes: Cow<'_, [u8]> = bytes;
                    let again = codec.encode(channel, &bytes);
                    assert_eq!(again, message, "there is one way to say it");
                    let pieces = cuts(&mut random, &bytes);
                    sized += u32::from(pieces.into_iter().filter_map(|piece| sizes.feed(piece)).count() > 0);
                }
                Ok(Incoming::Closed { channel }) => {
                    closed += 1;
                    assert!(channel < 5 && message.len() == 2);
                }
                Ok(Incoming::Nothing) => {}
                Err(_) => return,
            }
        }
    });
    let is_one = std::env::var_os("SEED").is_some();
    assert!(
        is_one || (data > 1000 && closed > 100 && sized > 100),
        "{data} data, {closed} ends, {sized} sizes"
    );
}
