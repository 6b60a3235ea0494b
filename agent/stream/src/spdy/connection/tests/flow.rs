//! Windows, and what holds a peer that keeps to none.

use super::super::super::window::{INITIAL, MAX};
use super::client::{Client, data, ping, settings, window_update};
use super::*;

const KIB: usize = 1 << 10;

#[test]
fn a_peer_without_flow_control_is_held_by_not_reading() {
    let limits = Limits { unconsumed: 300 * KIB, ..Limits::default() };
    let (mut connection, mut client) = with_stream(limits);
    let mut sent = 0;
    while !connection.holds_reading() {
        connection.feed(&data(1, 0, &[7; 10 * KIB])).unwrap();
        sent += 10 * KIB;
    }
    assert_eq!(sent, 300 * KIB, "far beyond a window of 64 KiB");
    let got: usize = events(&mut connection).iter().map(len).sum();
    assert_eq!(got, sent, "nothing was reset");
    assert!(connection.holds_reading(), "polled is not consumed");
    assert!(connection.output().pending().is_empty(), "no window is told before anything was taken");
    connection.consumed(StreamId(1), 1);
    assert!(!connection.holds_reading());
    connection.consumed(StreamId(1), 32 * KIB - 1);
    assert_eq!(client.read(&written(&mut connection)), ["WINDOW_UPDATE 1 32768", "WINDOW_UPDATE 0 32768"]);
    connection.consumed(StreamId(1), usize::MAX);
    assert_eq!(
        client.read(&written(&mut connection)),
        ["WINDOW_UPDATE 1 274432", "WINDOW_UPDATE 0 274432"],
        "no more than came"
    );
}

fn len(event: &Event) -> usize {
    match event {
        Event::Data { bytes, .. } => bytes.len(),
        Event::Opened { .. }
        | Event::Finished { .. }
        | Event::Reset { .. }
        | Event::GoAway
        | Event::Pong { .. } => 0,
    }
}

#[test]
fn a_peer_with_flow_control_keeps_to_the_window_of_a_stream() {
    for shown in [settings(&[(7, 1000)]), window_update(1, 1), window_update(0, 1)] {
        let (mut connection, mut client) = with_stream(Limits::default());
        connection.feed(&[shown.clone(), client.open(3)].concat()).unwrap();
        connection.feed(&data(1, 0, &[7; 64 * KIB])).unwrap();
        assert_eq!(
            client.read(&written(&mut connection)),
            ["WINDOW_UPDATE 0 983040"],
            "all of 1 MiB may come"
        );
        assert_eq!(events(&mut connection).len(), 2);
        connection.feed(&data(1, 0, b"x")).unwrap();
        let status = ResetStatus::FlowControlError;
        assert_eq!(events(&mut connection), [Event::Reset { stream: StreamId(1), status }], "{shown:?}");
        // What was for it is given back to the connection, and the other stream goes on.
        connection.feed(&data(3, 0, &[7; 64 * KIB])).unwrap();
        assert_eq!(client.read(&written(&mut connection)), ["RST_STREAM 1 7"]);
        assert_eq!(events(&mut connection), [data_of(3, &[7; 64 * KIB])]);
        connection.consumed(StreamId(3), 32 * KIB);
        connection.feed(&data(3, 0, &[7; 32 * KIB])).unwrap();
        assert_eq!(events(&mut connection), [data_of(3, &[7; 32 * KIB])]);
    }
}

#[test]
fn a_window_of_another_size_is_announced() {
    let limits = Limits { window: 100, ..Limits::default() };
    let mut connection = Connection::new(limits);
    let mut client = Client::default();
    assert_eq!(
        written(&mut connection),
        b"\x80\x03\x00\x04\x00\x00\x00\x0c\x00\x00\x00\x01\x00\x00\x00\x07\x00\x00\x00\x64"
    );
    connection.feed(&[window_update(0, 1), client.open(1), data(1, 0, &[7; 101])].concat()).unwrap();
    assert_eq!(client.read(&written(&mut connection)), ["WINDOW_UPDATE 0 983040", "RST_STREAM 1 7"]);
}

#[test]
fn the_window_of_the_connection_is_kept_by_peers_that_have_one() {
    let limits = Limits { unconsumed: 100 * KIB, ..Limits::default() };
    for (shown, is_ended) in [(window_update(0, 1), true), (settings(&[(7, 9)]), false)] {
        let (mut connection, mut client) = with_stream(limits);
        connection.feed(&[shown, client.open(3)].concat()).unwrap();
        connection.feed(&[data(1, 0, &[7; 60 * KIB]), data(3, 0, &[7; 40 * KIB])].concat()).unwrap();
        assert!(connection.holds_reading());
        let ended = connection.feed(&data(3, 0, b"x"));
        let error = ConnectionError::BeyondWindow { len: 1 };
        assert_eq!(ended, if is_ended { Err(error) } else { Ok(()) });
    }
}

#[test]
fn windows_of_a_peer_count_once_it_has_shown_them() {
    let (mut connection, mut client) = with_stream(Limits { output: 200 * KIB, ..Limits::default() });
    let offered = vec![7; 100 * KIB];
    assert_eq!(connection.send(StreamId(1), &offered), 100 * KIB, "64 KiB would be its window");
    written(&mut connection);
    connection.feed(&window_update(1, 20 * 1024)).unwrap();
    assert!(!connection.can_send(StreamId(1)), "it has 16 KiB too many still");
    connection.feed(&window_update(1, 20 * 1024)).unwrap();
    assert_eq!(connection.send(StreamId(1), &offered), 4 * KIB);
    assert_eq!(connection.send(StreamId(1), &offered), 0);
    // The first value of a setting counts. Streams get the difference, new ones all of it.
    connection.feed(&settings(&[(4, 1), (0x0100_0007, INITIAL + 10), (7, 1)])).unwrap();
    assert_eq!(connection.send(StreamId(1), &offered), 10);
    connection.feed(&[settings(&[(7, 5)]), client.open(3), window_update(1, INITIAL + 5)].concat()).unwrap();
    connection.reply(StreamId(3), &Headers::default());
    assert_eq!(connection.send(StreamId(1), &offered), 0, "five less than nothing, and five more");
    assert_eq!(connection.send(StreamId(3), &offered), 5);
    connection.feed(&window_update(3, 100)).unwrap();
    assert_eq!(connection.send(StreamId(3), &offered), 100, "it has shown no window of the connection");
    // Of the connection 64 KiB were there, and 106611 bytes were sent.
    connection.feed(&[window_update(3, 1000), window_update(0, 41_075 + 3)].concat()).unwrap();
    let sent = 104 * KIB + 10 + 5 + 100;
    assert_eq!(sent, 106_611);
    assert_eq!(connection.send(StreamId(3), &offered), 3);
    assert_eq!(connection.send(StreamId(3), &offered), 0);
    connection.feed(&window_update(0, 500)).unwrap();
    assert_eq!(connection.send(StreamId(3), &offered), 500);
    connection.feed(&window_update(3, 1)).unwrap();
    assert_eq!(connection.send(StreamId(3), &offered), 0, "the window of the connection still counts");
    connection.feed(&window_update(0, 2000)).unwrap();
    assert_eq!(connection.send(StreamId(3), &offered), 498);
}

#[test]
fn a_stream_on_which_nothing_more_comes_is_told_no_window() {
    let (mut connection, mut client) = with_stream(Limits::default());
    connection.feed(&data(1, 1, &[7; 64 * KIB])).unwrap();
    events(&mut connection);
    connection.consumed(StreamId(1), 64 * KIB);
    assert_eq!(client.read(&written(&mut connection)), ["WINDOW_UPDATE 0 65536"]);
}

#[test]
fn data_that_nobody_wants_is_given_back() {
    let (mut connection, mut client) = with_stream(Limits::default());
    let half_a_frame = &data(1, 0, &[7; 40 * KIB])[..30 * KIB];
    connection.feed(half_a_frame).unwrap();
    connection.reset(StreamId(1), ResetStatus::Cancel);
    assert_eq!(client.read(&written(&mut connection)), ["RST_STREAM 1 5"]);
    connection.feed(&[7; 10 * KIB + 8]).unwrap();
    assert_eq!(client.read(&written(&mut connection)), ["WINDOW_UPDATE 0 40960"]);
    connection.feed(&data(1, 0, &[7; 32 * KIB])).unwrap();
    assert_eq!(client.read(&written(&mut connection)), ["WINDOW_UPDATE 0 32768"]);
}

#[test]
fn windows_have_a_largest_size() {
    let (mut connection, mut client) = with_stream(Limits::default());
    connection.feed(&window_update(1, MAX - INITIAL)).unwrap();
    written(&mut connection);
    connection.feed(&window_update(1, 1)).unwrap();
    assert_eq!(client.read(&written(&mut connection)), ["RST_STREAM 1 7"]);
    connection.feed(&[client.open(3), window_update(3, 0), window_update(99, 5)].concat()).unwrap();
    assert_eq!(client.read(&written(&mut connection)), ["RST_STREAM 3 1"], "one without meaning");
    for (kind, bytes) in [
        ("WINDOW_UPDATE", window_update(0, 0)),
        ("WINDOW_UPDATE", window_update(0, MAX)),
        ("SETTINGS", settings(&[(7, MAX + 1)])),
        ("SETTINGS", [window_update(1, MAX - INITIAL), settings(&[(7, INITIAL + 1)])].concat()),
    ] {
        let (mut connection, mut client) = with_stream(Limits::default());
        assert_eq!(connection.feed(&bytes), Err(ConnectionError::Window { kind }), "{bytes:?}");
        assert_eq!(client.read(&written(&mut connection)).last().map(String::as_str), Some("GOAWAY 1 1"));
    }
}

#[test]
fn no_more_data_waits_to_be_written_than_may() {
    let (mut connection, mut client) = with_stream(Limits { output: 50 * KIB, ..Limits::default() });
    let offered = vec![7; 100 * KIB];
    assert_eq!(connection.send(StreamId(1), &offered), 50 * KIB);
    assert!(!connection.can_send(StreamId(1)));
    assert!(!connection.holds_reading(), "a peer that is slow to read may send");
    assert_eq!(connection.output().pending().len(), 50 * KIB + 2 * 8, "two frames");
    connection.output().written(20 * KIB);
    assert_eq!(connection.send(StreamId(1), &offered), 20 * KIB - 16);
    written(&mut connection);
    assert_eq!(connection.send(StreamId(1), b"x"), 1);
    assert_eq!(client.read(&written(&mut connection)), ["DATA 1 1"]);
}

#[test]
fn answers_that_nobody_reads_hold_reading() {
    let mut connection = Connection::new(Limits::default());
    let questions = ping(1).repeat(1000);
    let mut fed = 0;
    while !connection.holds_reading() {
        connection.feed(&questions).unwrap();
        fed += questions.len();
    }
    assert_eq!(connection.output().pending().len(), fed, "each is answered");
    assert!(fed < 100 * KIB);
    written(&mut connection);
    assert!(!connection.holds_reading());
}
