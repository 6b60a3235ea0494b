//! The ttrpc codec under mutated frames, in any pieces: no panic, no growth without bound, and an error stays with the
//! stream or connection that it is about.

#![expect(clippy::unwrap_used, reason = "a failure here is the failure of the test")]

use berth_fuzz::{Corpus, Random, cuts, mutate, seeds};
use berth_proto::ttrpc::{
    Client, Code, Decoder, Event, Flags, Frame, FrameError, HEADER_LEN, MessageType, Reply, Request, Server,
    Status, encode,
};
use prost::Message;

/// Bytes of an answer to one frame that is refused: a status with a sentence.
const REFUSAL_BYTES_MAX: usize = 200;

fn decode(pieces: &[&[u8]]) -> (Vec<Result<Frame, FrameError>>, bool) {
    let mut decoder = Decoder::default();
    let mut frames = Vec::new();
    for piece in pieces {
        decoder.feed(piece);
        while let Some(frame) = decoder.next().transpose() {
            frames.push(frame);
        }
    }
    (frames, decoder.is_mid_frame())
}

#[test]
fn frames_are_the_same_in_any_pieces() {
    let corpus = Corpus::load("ttrpc");
    let mut decoded = 0_usize;
    seeds(20_000, |seed| {
        let mut random = Random::new(seed);
        let input = mutate(&mut random, &corpus);
        let (whole, mid_frame) = decode(&[&input]);
        assert_eq!(decode(&cuts(&mut random, &input)), (whole.clone(), mid_frame));
        // What was decoded is what is there: encoded again it is a part of the input.
        let mut rest = input.as_slice();
        for frame in whole.into_iter().flatten() {
            decoded += 1;
            let mut again = Vec::new();
            encode(frame.stream, frame.kind, frame.flags, &frame.payload, &mut again).unwrap();
            let at = rest.windows(again.len()).position(|part| part == again);
            let at = at.unwrap_or_else(|| panic!("not in the input: {frame:?}"));
            rest = &rest[at + again.len()..];
        }
    });
    assert!(std::env::var_os("SEED").is_some() || decoded > 10_000, "{decoded} frames only");
}

/// What a server that answers as it likes has seen of a client.
#[derive(Default)]
struct Served {
    server: Server,
    open: Vec<u32>,
    last: u32,
    answered: usize,
}

impl Served {
    fn take_all(&mut self, random: &mut Random) {
        while let Some(event) = self.server.poll() {
            match event {
                Event::Call { stream, .. } => {
                    assert!(!stream.is_multiple_of(2) && stream > self.last, "ids are odd and grow");
                    self.last = stream;
                    self.open.push(stream);
                }
                Event::Data { stream, .. } | Event::HalfClosed { stream } => {
                    assert!(self.open.contains(&stream), "only open streams are heard of");
                }
                Event::Aborted { stream } => self.closed(stream),
            }
            self.answer(random);
        }
        assert_eq!(self.server.open_streams().collect::<Vec<_>>(), self.open);
    }

    /// Sends something on a stream, or ends it, or does not.
    fn answer(&mut self, random: &mut Random) {
        if self.open.is_empty() {
            return;
        }
        let stream = *random.pick(&self.open);
        match random.below(6) {
            0 => self.server.respond(stream, Ok(vec![7; 30])),
            1 => self.server.respond(stream, Err(Status::new(Code::NotFound, "no such thing"))),
            2 => self.server.finish(stream),
            3 => return self.server.send(stream, b"a message").unwrap(),
            _ => return,
        }
        self.answered += 1;
        self.closed(stream);
    }

    fn closed(&mut self, stream: u32) {
        let at = self.open.iter().position(|open| *open == stream).expect("a stream ends once");
        self.open.remove(at);
    }
}

#[test]
fn no_client_breaks_a_server() {
    let corpus = Corpus::load("ttrpc");
    seeds(20_000, |seed| {
        let mut random = Random::new(seed);
        let input = mutate(&mut random, &corpus);
        let mut served = Served::default();
        for piece in cuts(&mut random, &input) {
            served.server.feed(piece);
            served.take_all(&mut random);
        }
        let said = served.server.output().take();
        let frames = input.len() / HEADER_LEN + 1;
        assert!(said.len() <= frames * 2 * REFUSAL_BYTES_MAX, "{} bytes for {frames} frames", said.len());
        let (answers, mid_frame) = decode(&[&said]);
        assert!(answers.iter().all(Result::is_ok) && !mid_frame, "a server writes whole frames only");

        // Where the input ends with a frame, the connection goes on as if nothing had been.
        let (frames, mid_frame) = decode(&[&input]);
        let ids_are_used = frames.iter().flatten().any(|frame| frame.stream == u32::MAX);
        if !mid_frame && !ids_are_used {
            let request =
                Request { service: "a.B".to_owned(), method: "Next".to_owned(), ..Request::default() };
            let mut next = Vec::new();
            encode(u32::MAX, MessageType::Request, Flags::NONE, &request.encode_to_vec(), &mut next).unwrap();
            served.server.feed(&next);
            let event = std::iter::from_fn(|| served.server.poll()).last();
            assert!(matches!(event, Some(Event::Call { stream: u32::MAX, .. })), "{event:?}");
        }
    });
}

#[test]
fn no_server_breaks_a_client() {
    let corpus = Corpus::load("ttrpc");
    seeds(20_000, |seed| {
        let mut random = Random::new(seed);
        let mut client = Client::default();
        let request = Request { service: "a.B".to_owned(), method: "C".to_owned(), ..Request::default() };
        let calls = 1 + random.below(5);
        let mut streaming = Vec::new();
        for _ in 0..calls {
            if random.once_in(2) {
                client.call(&request).unwrap();
            } else {
                streaming.push(client.call_streaming(&request).unwrap());
            }
        }
        let mut open: Vec<u32> = client.open_streams().collect();
        let input = mutate(&mut random, &corpus);
        for piece in cuts(&mut random, &input) {
            client.feed(piece);
            while let Some(reply) = client.poll() {
                match reply {
                    Reply::Data { stream, .. } => {
                        assert!(streaming.contains(&stream) && open.contains(&stream));
                    }
                    Reply::End { stream, .. } => {
                        let at = open.iter().position(|open| *open == stream).expect("a stream ends once");
                        open.remove(at);
                    }
                }
            }
        }
        assert_eq!(client.open_streams().collect::<Vec<_>>(), open);
        let next = client.call(&request).unwrap();
        assert_eq!(usize::try_from(next).unwrap(), 2 * calls + 1, "the connection goes on");
    });
}
