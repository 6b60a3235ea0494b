//! Tests of the connection.

mod client;
mod flow;
mod hostile;
mod properties;

use client::{Client, data, go_away, ping, reset};

use super::*;

/// What a client with `moby/spdystream` v0.5.1 wrote: streams `error`, `stdin`, `stdout` and `resize` of a session, and
/// one of a forwarded connection; data, and the end of stdin; a reset of the last stream; a ping; its end.
const MOBY: [&str; 5] = [
    "80030001000000290000000100000000000078f9e3c6a7c26260606004a7b392a2d4c45c6851c29a0a0a6800000000ffff\
     800300010000001700000003000000000000c22e555c92929907000000ffff\
     800300010000001900000005000000000000c22ac5565c92925f5a02000000ffff\
     800300010000001800000007000000000000c22e57945a9c59950a000000ffff\
     80030001000000300000000900000000000002257148695f04ce58160616060c0c0c9c4590d49109ca354c864618da41655b\
     22000000ffff",
    "000000030000000668656c6c6f0a00000007000000197b225769647468223a38302c22486569676874223a32347d0a\
     0000000301000000",
    "80030003000000080000000900000005",
    "800300060000000400000001",
    "80030007000000080000000000000000",
];

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn moby() -> Vec<u8> {
    unhex(&MOBY.concat())
}

fn opened(stream: u32, headers: &[(&str, &str)]) -> Event {
    let headers = headers.iter().fold(Headers::default(), |headers, (name, value)| headers.with(name, value));
    Event::Opened { stream: StreamId(stream), headers, finished: false }
}

fn data_of(stream: u32, bytes: &[u8]) -> Event {
    Event::Data { stream: StreamId(stream), bytes: bytes.to_vec() }
}

fn events(connection: &mut Connection) -> Vec<Event> {
    std::iter::from_fn(|| connection.poll()).collect()
}

/// Takes all that waits to be written.
fn written(connection: &mut Connection) -> Vec<u8> {
    let bytes = connection.output().pending().to_vec();
    connection.output().written(bytes.len());
    bytes
}

/// A connection and its client, with one stream that is accepted.
fn with_stream(limits: Limits) -> (Connection, Client) {
    let (mut connection, mut client) = (Connection::new(limits), Client::default());
    connection.feed(&client.open(1)).unwrap();
    assert_eq!(events(&mut connection), [opened(1, &[("streamtype", "data")])]);
    connection.reply(StreamId(1), &Headers::default());
    client.read(&written(&mut connection));
    (connection, client)
}

#[test]
fn a_real_client_is_understood() {
    let mut connection = Connection::new(Limits::default());
    connection.feed(&moby()).unwrap();
    let expected = [
        opened(1, &[("streamtype", "error")]),
        opened(3, &[("streamtype", "stdin")]),
        opened(5, &[("streamtype", "stdout")]),
        opened(7, &[("streamtype", "resize")]),
        opened(9, &[("port", "8080"), ("requestid", "12"), ("streamtype", "data")]),
        data_of(3, b"hello\n"),
        data_of(7, b"{\"Width\":80,\"Height\":24}\n"),
        Event::Finished { stream: StreamId(3) },
        Event::Reset { stream: StreamId(9), status: ResetStatus::Cancel },
        Event::GoAway,
    ];
    // Headers come in no order from Go.
    let sorted = events(&mut connection).into_iter().map(|event| match event {
        Event::Opened { stream, headers, .. } => {
            let mut headers: Vec<_> = headers.iter().collect();
            headers.sort_unstable();
            opened(stream.0, &headers)
        }
        Event::Data { .. }
        | Event::Finished { .. }
        | Event::Reset { .. }
        | Event::GoAway
        | Event::Pong { .. } => event,
    });
    assert_eq!(sorted.collect::<Vec<_>>(), expected);
    assert_eq!(written(&mut connection), unhex(MOBY[3]), "the ping is answered, and nothing else said");
}

#[test]
fn frames_are_these_bytes() {
    let mut connection = Connection::new(Limits::default());
    let mut client = Client::default();
    connection.feed(&[client.open(1), client.open(3)].concat()).unwrap();
    connection.reply(StreamId(1), &Headers::default());
    assert_eq!(connection.send(StreamId(1), b"hi"), 2);
    connection.finish(StreamId(1));
    connection.reply(StreamId(3), &Headers::default().with("A", "b"));
    connection.reset(StreamId(3), ResetStatus::Cancel);
    connection.go_away(GoAwayStatus::Ok);
    let expected: [&[u8]; 6] = [
        b"\x80\x03\x00\x02\x00\x00\x00\x18\x00\x00\x00\x01\x78\x20\xe3\xc6\xa7\xc2\x00\x04\x00\xfb\xff\x00\x00\x00\x00\
          \x00\x00\x00\xff\xff",
        b"\x00\x00\x00\x01\x00\x00\x00\x02hi",
        b"\x00\x00\x00\x01\x01\x00\x00\x00",
        b"\x80\x03\x00\x02\x00\x00\x00\x1c\x00\x00\x00\x03\x00\x0e\x00\xf1\xff\x00\x00\x00\x01\x00\x00\x00\x01a\
          \x00\x00\x00\x01b\x00\x00\x00\xff\xff",
        b"\x80\x03\x00\x03\x00\x00\x00\x08\x00\x00\x00\x03\x00\x00\x00\x05",
        b"\x80\x03\x00\x07\x00\x00\x00\x08\x00\x00\x00\x03\x00\x00\x00\x00",
    ];
    assert_eq!(written(&mut connection), expected.concat());
}

#[test]
fn a_stream_is_accepted_before_anything_is_sent_on_it() {
    let (mut connection, mut client) = (Connection::new(Limits::default()), Client::default());
    connection.feed(&[client.open(1), client.open(3)].concat()).unwrap();
    assert!(!connection.can_send(StreamId(1)));
    assert_eq!(connection.send(StreamId(1), b"early"), 0);
    connection.finish(StreamId(1));
    connection.reply(StreamId(1), &Headers::default());
    connection.reply(StreamId(3), &Headers::default().with("X", "y"));
    connection.reply(StreamId(3), &Headers::default());
    assert!(connection.can_send(StreamId(3)));
    connection.finish(StreamId(3));
    connection.finish(StreamId(3));
    assert_eq!(connection.send(StreamId(3), b"late"), 0);
    assert_eq!(
        client.read(&written(&mut connection)),
        ["SYN_REPLY 1 [] FIN", r#"SYN_REPLY 3 [("x", "y")]"#, "DATA 3 0 FIN"]
    );
}

#[test]
fn a_stream_is_forgotten_when_nothing_can_happen_to_it() {
    let (mut connection, mut client) = with_stream(Limits::default());
    let unidirectional = client.syn_stream(3, 2, &Headers::default());
    let both = client.syn_stream(5, 3, &Headers::default());
    connection.feed(&[data(1, 1, b"bye"), unidirectional, both, data(3, 1, b"")].concat()).unwrap();
    assert_eq!(connection.streams().count(), 3);
    assert!(!connection.can_send(StreamId(3)) && !connection.can_send(StreamId(5)));
    let said = events(&mut connection);
    assert_eq!(said[..2], [data_of(1, b"bye"), Event::Finished { stream: StreamId(1) }]);
    assert!(matches!(said[3], Event::Opened { finished: true, .. }));
    assert_eq!(said[4..], [Event::Finished { stream: StreamId(3) }]);
    assert_eq!(connection.streams().collect::<Vec<_>>(), [StreamId(1)]);
    connection.finish(StreamId(1));
    assert_eq!(connection.streams().count(), 1, "its data was not taken");
    connection.consumed(StreamId(1), 3);
    assert_eq!(connection.streams().count(), 0);
    written(&mut connection);
    connection.finish(StreamId(1));
    connection.reset(StreamId(1), ResetStatus::Cancel);
    connection.consumed(StreamId(1), 1);
    assert!(connection.output().pending().is_empty(), "nothing is said of a stream that is over");
}

#[test]
fn a_reset_ends_a_stream_on_both_sides() {
    let (mut connection, mut client) = with_stream(Limits::default());
    connection.feed(&[data(1, 0, b"abc"), client.open(3)].concat()).unwrap();
    connection.reset(StreamId(1), ResetStatus::InternalError);
    assert_eq!(events(&mut connection), [opened(3, &[("streamtype", "data")])], "its data is dropped");
    // What the peer has sent before it knew is dropped, and what it says of itself.
    connection.feed(&[data(1, 1, b"def"), reset(1, 5)].concat()).unwrap();
    assert_eq!(events(&mut connection), []);
    connection.feed(&[data(3, 0, b"abc"), reset(3, 77), data(3, 0, b"def"), reset(3, 1)].concat()).unwrap();
    assert!(!connection.can_send(StreamId(3)));
    let status = ResetStatus::Other(77);
    assert_eq!(events(&mut connection), [data_of(3, b"abc"), Event::Reset { stream: StreamId(3), status }]);
    assert_eq!(connection.streams().count(), 0);
    connection.reset(StreamId(3), ResetStatus::Cancel);
    assert_eq!(client.read(&written(&mut connection)), ["RST_STREAM 1 6"]);
}

#[test]
fn pings_are_answered_and_asked() {
    let mut connection = Connection::new(Limits::default());
    connection.feed(&[ping(1), ping(7), ping(0), ping(2)].concat()).unwrap();
    assert_eq!(Client::default().read(&written(&mut connection)), ["PING 1", "PING 7"]);
    assert_eq!(events(&mut connection), [], "nothing was asked");
    let asked: Vec<u32> = std::iter::from_fn(|| connection.ping()).collect();
    assert_eq!(asked, [2, 4, 6, 8, 10, 12, 14, 16]);
    connection.feed(&[ping(4), ping(4), ping(16)].concat()).unwrap();
    assert_eq!(events(&mut connection), [Event::Pong { id: 4 }, Event::Pong { id: 16 }]);
    assert_eq!([connection.ping(), connection.ping(), connection.ping()], [Some(18), Some(20), None]);
}

#[test]
fn an_end_that_goes_takes_no_streams_and_keeps_those_that_it_has() {
    let (mut connection, mut client) = with_stream(Limits::default());
    connection.feed(&[go_away(), go_away(), client.open(3)].concat()).unwrap();
    assert_eq!(events(&mut connection), [Event::GoAway, opened(3, &[("streamtype", "data")])]);
    connection.go_away(GoAwayStatus::Ok);
    connection.go_away(GoAwayStatus::InternalError);
    connection.feed(&[client.open(5), data(5, 0, b"x"), data(1, 0, b"y")].concat()).unwrap();
    assert_eq!(events(&mut connection), [data_of(1, b"y")]);
    assert_eq!(connection.send(StreamId(1), b"z"), 1);
    assert_eq!(client.read(&written(&mut connection)), ["GOAWAY 3 0", "DATA 1 1"]);
}

#[test]
fn headers_may_end_a_stream() {
    let (mut connection, mut client) = with_stream(Limits::default());
    let more = Headers::default().with("more", "");
    connection.feed(&[client.headers(8, 1, 0, &more), client.headers(8, 1, 1, &more)].concat()).unwrap();
    assert_eq!(events(&mut connection), [Event::Finished { stream: StreamId(1) }]);
}
