//! Peers that break the protocol.

use super::client::{Client, control, data, reset, settings, window_update, words};
use super::*;

#[test]
fn what_no_stream_can_answer_for_ends_the_connection() {
    let tight = Limits { control_frame: 64, ..Limits::default() };
    let long = Headers::default().with("a", &"b".repeat(100));
    let compression = ConnectionError::Compression;
    let length = |kind, len| ConnectionError::Length { kind, len };
    let stream = |kind, stream| ConnectionError::Stream { kind, stream };
    let mut client = Client::default();
    let mut twice = Client::default();
    let mut back = Client::default();
    let table: [(Vec<u8>, ConnectionError); 22] = [
        (b"\x80\x02\x00\x06\x00\x00\x00\x04\x00\x00\x00\x01".to_vec(), ConnectionError::Version(2)),
        (data(0, 0, b"x"), stream("DATA", 0)),
        (
            client.syn_stream(1, 0, &long),
            ConnectionError::TooLong { kind: "SYN_STREAM", len: 10 + 6 + 5 + 113 + 5, max: 64 },
        ),
        (control(1, 0, &[0; 9]), length("SYN_STREAM", 9)),
        (control(2, 0, &[0; 3]), length("SYN_REPLY", 3)),
        (control(3, 0, &[0; 9]), length("RST_STREAM", 9)),
        (control(4, 0, &[0; 3]), length("SETTINGS", 3)),
        (words(4, &[2, 7, 1]), length("SETTINGS", 12)),
        (words(4, &[u32::MAX]), length("SETTINGS", 4)),
        (words(4, &[0, 7, 1]), length("SETTINGS", 12)),
        (control(6, 0, &[0; 5]), length("PING", 5)),
        (control(7, 0, &[0; 4]), length("GOAWAY", 4)),
        (control(8, 0, &[0; 3]), length("HEADERS", 3)),
        (control(9, 0, &[0; 7]), length("WINDOW_UPDATE", 7)),
        (reset(0, 1), stream("RST_STREAM", 0)),
        (Client::default().open(0), stream("SYN_STREAM", 0)),
        (Client::default().open(2), stream("SYN_STREAM", 2)),
        ([twice.open(3), twice.open(3)].concat(), stream("SYN_STREAM", 3)),
        ([back.open(3), back.open(1)].concat(), stream("SYN_STREAM", 1)),
        (Client::default().headers(8, 0, 0, &Headers::default()), stream("HEADERS", 0)),
        (
            control(1, 0, &[&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0], b"not zlib".as_slice()].concat()),
            compression.clone(),
        ),
        (control(1, 0, b"\0\0\0\x01\0\0\0\0\0\0\x78\x9c\x01\0\0\xff\xff"), compression),
    ];
    for (bytes, error) in table {
        let mut connection = Connection::new(tight);
        assert_eq!(connection.feed(&bytes), Err(error.clone()), "{bytes:?}");
        let said = Client::default().read(&written(&mut connection));
        let last = connection.last;
        assert_eq!(said, [format!("GOAWAY {last} 1")], "{error}");
        assert_eq!(connection.feed(b""), Err(error), "and stays so");
        assert!(connection.holds_reading());
        let before = events(&mut connection);
        assert_eq!(before.len(), connection.streams().count(), "what came before is heard");
        connection.reply(StreamId(last), &Headers::default());
        connection.finish(StreamId(last));
        connection.reset(StreamId(last), ResetStatus::Cancel);
        connection.go_away(GoAwayStatus::Ok);
        assert_eq!((connection.ping(), connection.send(StreamId(last), b"x")), (None, 0));
        assert!(connection.output().pending().is_empty(), "nothing is said after the end");
    }
}

#[test]
fn a_small_block_that_becomes_large_ends_the_connection() {
    let zeros = miniz_oxide::deflate::compress_to_vec(&vec![0; 8 << 20], 9);
    assert!(zeros.len() < 16 << 10, "{} bytes", zeros.len());
    let body = [b"\0\0\0\x01\0\0\0\0\0\0\x78\xf9\xe3\xc6\xa7\xc2".as_slice(), &zeros].concat();
    let mut connection = Connection::new(Limits::default());
    assert_eq!(connection.feed(&control(1, 0, &body)), Err(ConnectionError::HeaderBlock(4 << 10)));
}

#[test]
fn a_compressed_stream_that_ends_ends_the_connection() {
    let block = miniz_oxide::deflate::compress_to_vec(&Headers::default().encode(), 9);
    let body = [b"\0\0\0\x01\0\0\0\0\0\0\x78\xf9\xe3\xc6\xa7\xc2".as_slice(), &block].concat();
    let mut connection = Connection::new(Limits::default());
    assert_eq!(connection.feed(&control(1, 0, &body)), Err(ConnectionError::Compression));
}

#[test]
fn what_a_stream_can_answer_for_ends_the_stream() {
    type Frames = fn(&mut Client) -> Vec<u8>;
    let table: [(Frames, &[&str]); 11] = [
        (|client| client.syn_stream_of(3, 0, b"\0\0\0\x01\0\0\0\x01A\0\0\0\0"), &["RST_STREAM 3 1"]),
        (|client| client.syn_stream_of(5, 0, b""), &["RST_STREAM 5 1"]),
        (|client| client.headers(2, 1, 0, &Headers::default()), &["RST_STREAM 1 8"]),
        (|client| client.headers(2, 99, 0, &Headers::default()), &["RST_STREAM 99 2"]),
        (|client| client.headers(8, 99, 0, &Headers::default()), &["RST_STREAM 99 2"]),
        (
            |client| [data(1, 1, b""), client.headers(8, 1, 0, &Headers::default())].concat(),
            &["RST_STREAM 1 9"],
        ),
        (|_| [data(1, 1, b""), data(1, 0, b"x"), data(1, 1, b"")].concat(), &["RST_STREAM 1 9"]),
        (|_| data(7, 0, b"x"), &["RST_STREAM 7 2"]),
        (|_| data(2, 0, b"x"), &["RST_STREAM 2 2"]),
        (|_| [reset(99, 1), reset(2, 0), window_update(4, 1)].concat(), &["WINDOW_UPDATE 0 983040"]),
        (|_| [settings(&[(4, 100)]), control(10, 0, &[7; 99]), control(0xff, 9, b"")].concat(), &[]),
    ];
    for (frames, said) in table {
        let (mut connection, mut client) = with_stream(Limits::default());
        let bytes = frames(&mut client);
        connection.feed(&bytes).unwrap();
        assert_eq!(client.read(&written(&mut connection)), said, "{bytes:?}");
        // The connection goes on.
        connection.feed(&client.open(101)).unwrap();
        assert_eq!(events(&mut connection).last(), Some(&opened(101, &[("streamtype", "data")])));
    }
}

#[test]
fn streams_and_headers_have_a_largest_number() {
    let limits = Limits { streams: 2, headers: 2, ..Limits::default() };
    let (mut connection, mut client) = (Connection::new(limits), Client::default());
    let three = Headers::default().with("a", "").with("b", "").with("c", "");
    let frames = [client.open(1), client.syn_stream(3, 0, &three), client.open(5), client.open(7)];
    connection.feed(&frames.concat()).unwrap();
    assert_eq!(client.read(&written(&mut connection)), ["RST_STREAM 3 1", "RST_STREAM 7 3"]);
    // The place of a stream is free when the application has heard of its end.
    connection.feed(&[reset(1, 5), client.open(9)].concat()).unwrap();
    assert_eq!(client.read(&written(&mut connection)), ["RST_STREAM 9 3"]);
    assert_eq!(events(&mut connection).len(), 3);
    connection.feed(&client.open(11)).unwrap();
    assert_eq!(events(&mut connection), [opened(11, &[("streamtype", "data")])]);
}

#[test]
fn what_was_not_polled_holds_reading() {
    let limits = Limits { streams: usize::MAX, ..Limits::default() };
    let (mut connection, mut client) = (Connection::new(limits), Client::default());
    let mut stream = 1;
    while !connection.holds_reading() {
        connection.feed(&client.open(stream)).unwrap();
        stream += 2;
    }
    assert_eq!(connection.events.len(), EVENTS_MAX);
    assert_eq!(events(&mut connection).len(), EVENTS_MAX);
    assert!(!connection.holds_reading());
}
