//! What holds whatever a peer says, and however what it says is cut.

use proptest::prelude::*;

use super::client::{data, go_away, ping, reset, settings, window_update};
use super::*;

/// Something that a peer or the application does.
#[derive(Debug, Clone)]
enum Step {
    Open { flags: u8 },
    Data { stream: u32, len: usize, flags: u8 },
    Reset { stream: u32 },
    WindowUpdate { stream: u32, delta: u32 },
    Settings { window: u32 },
    Ping { id: u32 },
    GoAway,
    Reply { stream: u32 },
    Send { stream: u32, len: usize },
    Finish { stream: u32 },
    Abort { stream: u32 },
    Consume { stream: u32, len: usize },
    Poll,
}

fn stream() -> impl Strategy<Value = u32> {
    (0_u32..6).prop_map(|at| 2 * at + 1)
}

fn frames() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u8..4).prop_map(|flags| Step::Open { flags }),
        5 => (stream(), 0_usize..400, 0_u8..2).prop_map(|(stream, len, flags)| Step::Data { stream, len, flags }),
        1 => stream().prop_map(|stream| Step::Reset { stream }),
        1 => (stream(), 0_u32..300).prop_map(|(stream, delta)| Step::WindowUpdate { stream, delta }),
        1 => (1_u32..300).prop_map(|delta| Step::WindowUpdate { stream: 0, delta }),
        1 => (0_u32..500).prop_map(|window| Step::Settings { window }),
        1 => (0_u32..9).prop_map(|id| Step::Ping { id }),
        1 => Just(Step::GoAway),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => frames(),
        1 => stream().prop_map(|stream| Step::Reply { stream }),
        2 => (stream(), 0_usize..900).prop_map(|(stream, len)| Step::Send { stream, len }),
        1 => stream().prop_map(|stream| Step::Finish { stream }),
        1 => stream().prop_map(|stream| Step::Abort { stream }),
        2 => (stream(), 0_usize..900).prop_map(|(stream, len)| Step::Consume { stream, len }),
        2 => Just(Step::Poll),
    ]
}

/// The bytes of a step of the peer's.
fn frame(step: &Step, client: &mut Client, next: &mut u32) -> Vec<u8> {
    match step {
        Step::Open { flags } => {
            *next += 2;
            client.syn_stream(*next - 2, *flags, &Headers::default().with("port", &next.to_string()))
        }
        Step::Data { stream, len, flags } => data(*stream, *flags, &vec![stream.to_le_bytes()[0]; *len]),
        Step::Reset { stream } => reset(*stream, 5),
        Step::WindowUpdate { stream, delta } => window_update(*stream, *delta),
        Step::Settings { window } => settings(&[(7, *window)]),
        Step::Ping { id } => ping(*id),
        Step::GoAway => go_away(),
        Step::Reply { .. }
        | Step::Send { .. }
        | Step::Finish { .. }
        | Step::Abort { .. }
        | Step::Consume { .. }
        | Step::Poll => Vec::new(),
    }
}

/// Events with all data that follows on data of the same stream in one.
fn joined(events: impl IntoIterator<Item = Event>) -> Vec<Event> {
    let mut joined: Vec<Event> = Vec::new();
    for event in events {
        if let (Event::Data { stream, bytes }, Some(Event::Data { stream: last, bytes: before })) =
            (&event, joined.last_mut())
            && stream == last
        {
            before.extend_from_slice(bytes);
            continue;
        }
        joined.push(event);
    }
    joined
}

fn fed(pieces: &[&[u8]], is_polled: bool) -> (Vec<Event>, Vec<u8>, bool) {
    let mut connection = Connection::new(Limits { window: 1000, ..Limits::default() });
    let mut said = Vec::new();
    let mut is_well = true;
    for piece in pieces {
        is_well = connection.feed(piece).is_ok();
        if is_polled {
            said.extend(events(&mut connection));
        }
    }
    said.extend(events(&mut connection));
    (joined(said), written(&mut connection), is_well)
}

fn in_pieces<'b>(bytes: &'b [u8], cuts: &[usize]) -> Vec<&'b [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

proptest! {
    #[test]
    fn pieces_mean_the_same_as_the_whole(
        steps in prop::collection::vec(frames(), 0..40),
        cuts in prop::collection::vec(any::<usize>(), 0..40),
        noise in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let (mut client, mut next) = (Client::default(), 1);
        let mut bytes: Vec<u8> = steps.iter().flat_map(|step| frame(step, &mut client, &mut next)).collect();
        bytes.extend(noise);
        let whole = fed(&[&bytes], false);
        prop_assert_eq!(&fed(&in_pieces(&bytes, &cuts), false), &whole);
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(&fed(&single, false), &whole);
    }

    #[test]
    fn a_real_client_may_be_cut_anywhere(cuts in prop::collection::vec(any::<usize>(), 0..40)) {
        let bytes = moby();
        prop_assert_eq!(fed(&in_pieces(&bytes, &cuts), true), fed(&[&bytes], true));
    }

    #[test]
    fn headers_go_there_and_back(
        headers in prop::collection::btree_map("[a-z-]{1,20}", "[^\\x00]{0,60}(\\x00[^\\x00]{1,9})?", 0..9),
    ) {
        let headers = headers.iter().fold(Headers::default(), |headers, (name, value)| headers.with(name, value));
        let mut connection = Connection::new(Limits { header_block: 1 << 20, ..Limits::default() });
        let mut client = Client::default();
        connection.feed(&client.syn_stream(1, 0, &headers)).unwrap();
        let opened = Event::Opened { stream: StreamId(1), headers: headers.clone(), finished: false };
        prop_assert_eq!(events(&mut connection), [opened]);
        connection.reply(StreamId(1), &headers);
        let values: Vec<_> = headers.iter().collect();
        prop_assert_eq!(client.read(&written(&mut connection)), [format!("SYN_REPLY 1 {values:?}")]);
    }

    #[test]
    fn what_is_counted_is_what_is_there(steps in prop::collection::vec(steps(), 0..80)) {
        let limits = Limits { window: 1000, streams: 4, output: 1000, unconsumed: 100 << 10, ..Limits::default() };
        let mut connection = Connection::new(limits);
        let (mut client, mut next) = (Client::default(), 1);
        client.read(&written(&mut connection));
        for step in &steps {
            let bytes = frame(step, &mut client, &mut next);
            // A window of the connection that is used up is a failure of the peer's.
            if connection.feed(&bytes).is_err() {
                let is_beyond = matches!(connection.failed, Some(ConnectionError::BeyondWindow { .. }));
                prop_assert!(is_beyond);
                return Ok(());
            }
            apply(&mut connection, step)?;
            counted(&connection)?;
            client.read(&written(&mut connection));
        }
        events(&mut connection);
        for stream in connection.streams().collect::<Vec<_>>() {
            connection.reset(stream, ResetStatus::Cancel);
        }
        prop_assert_eq!((connection.unconsumed, connection.streams.len()), (0, 0));
    }
}

fn apply(connection: &mut Connection, step: &Step) -> Result<(), TestCaseError> {
    match step {
        Step::Reply { stream } => connection.reply(StreamId(*stream), &Headers::default()),
        Step::Send { stream, len } => {
            let stream = StreamId(*stream);
            let can = connection.can_send(stream);
            let sent = connection.send(stream, &vec![0; *len]);
            prop_assert!(sent <= *len);
            prop_assert_eq!(can && *len > 0, sent > 0);
        }
        Step::Finish { stream } => {
            connection.finish(StreamId(*stream));
            prop_assert_eq!(connection.send(StreamId(*stream), b"x"), 0);
        }
        Step::Abort { stream } => {
            connection.reset(StreamId(*stream), ResetStatus::Cancel);
            prop_assert!(!connection.streams.contains_key(stream));
        }
        Step::Consume { stream, len } => connection.consumed(StreamId(*stream), *len),
        Step::Poll => drop(connection.poll()),
        Step::Open { .. }
        | Step::Data { .. }
        | Step::Reset { .. }
        | Step::WindowUpdate { .. }
        | Step::Settings { .. }
        | Step::Ping { .. }
        | Step::GoAway => {}
    }
    Ok(())
}

/// What a connection remembers fits together.
fn counted(connection: &Connection) -> Result<(), TestCaseError> {
    let unconsumed: usize = connection.streams.values().map(|known| known.unconsumed).sum();
    prop_assert_eq!(connection.unconsumed, unconsumed);
    prop_assert!(connection.streams.len() <= connection.limits.streams);
    for (id, known) in &connection.streams {
        let told = connection.events.iter().filter(|event| stream_of(event) == Some(StreamId(*id))).count();
        prop_assert_eq!(known.untold, told, "events of stream {}", id);
        prop_assert!(!known.is_over(), "stream {} is over", id);
        if known.remote != Remote::Reset {
            prop_assert!(known.receive.left() <= i64::from(connection.limits.window));
            prop_assert_eq!(known.receive.waiting(), bytes(known.unconsumed));
        }
    }
    // All that is not held was given back to the peer, or will be.
    prop_assert_eq!(connection.receive.waiting(), bytes(connection.unconsumed));
    let others = connection.events.iter().filter_map(stream_of);
    prop_assert!(others.into_iter().all(|stream| connection.streams.contains_key(&stream.0)));
    Ok(())
}

fn bytes(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}
