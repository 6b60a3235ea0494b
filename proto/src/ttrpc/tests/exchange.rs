use super::super::*;
use super::{exchange, next_call, request, wire};

/// The status that ends `stream` in the only frame that `server` wants to write.
fn only_status(server: &mut Server, stream: u32) -> Status {
    let mut decoder = Decoder::default();
    decoder.feed(&server.output().take());
    let frame = decoder.next().unwrap().expect("a response");
    assert_eq!((frame.stream, frame.kind), (stream, MessageType::Response));
    assert_eq!(decoder.next(), Ok(None));
    let response = <Response as prost::Message>::decode(frame.payload.as_slice()).unwrap();
    response.status.expect("a status").into()
}

fn raw_request(stream: u32, method: &str) -> Vec<u8> {
    wire(stream, MessageType::Request, 0, &prost::Message::encode_to_vec(&request(method)))
}

#[test]
fn answers_may_come_in_any_order() {
    let (mut client, mut server) = (Client::default(), Server::default());
    let first = client.call(&request("A")).unwrap();
    let second = client.call(&request("B")).unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(next_call(&mut server).2.method, "A");
    assert_eq!(next_call(&mut server).2.method, "B");
    server.respond(second, Ok(b"b".to_vec()));
    server.respond(first, Err(Status::new(Code::NotFound, "no a")));
    exchange(&mut client, &mut server);
    assert_eq!(client.poll(), Some(Reply::End { stream: second, result: Ok(b"b".to_vec()) }));
    let not_found = Err(Status::new(Code::NotFound, "no a"));
    assert_eq!(client.poll(), Some(Reply::End { stream: first, result: not_found }));
    assert_eq!(client.poll(), None);
}

#[test]
fn a_stream_carries_messages_both_ways_and_closes_by_halves() {
    let (mut client, mut server) = (Client::default(), Server::default());
    let stream = client.call_streaming(&request("Both")).unwrap();
    client.send(stream, b"in").unwrap();
    client.close_send(stream).unwrap();
    assert_eq!(client.send(stream, b"late"), Err(ClientError::Closed(stream)));
    exchange(&mut client, &mut server);
    assert_eq!(next_call(&mut server).1, Mode::ClientOpen);
    assert_eq!(server.poll(), Some(Event::Data { stream, payload: b"in".to_vec() }));
    assert_eq!(server.poll(), Some(Event::HalfClosed { stream }));
    server.send(stream, b"out").unwrap();
    server.finish(stream);
    server.finish(stream);
    exchange(&mut client, &mut server);
    assert_eq!(client.poll(), Some(Reply::Data { stream, payload: b"out".to_vec() }));
    assert_eq!(client.poll(), Some(Reply::End { stream, result: Ok(Vec::new()) }));
    assert_eq!(client.poll(), None);
    assert_eq!(client.open_streams().count(), 0);
}

#[test]
fn what_is_cancelled_ends_at_the_other_end_alone() {
    let (mut client, mut server) = (Client::default(), Server::default());
    let unary = client.call(&request("Waits")).unwrap();
    let both = client.call_streaming(&request("Both")).unwrap();
    let closed = client.call_streaming(&request("Both")).unwrap();
    client.close_send(closed).unwrap();
    let other = client.call(&request("Other")).unwrap();
    exchange(&mut client, &mut server);
    let told: Vec<Event> = std::iter::from_fn(|| server.poll()).collect();
    assert_eq!(told.len(), 5, "four calls and a half-close: {told:?}");
    for stream in [unary, both, closed, 99] {
        client.cancel(stream);
    }
    client.cancel(both);
    exchange(&mut client, &mut server);
    let told: Vec<Event> = std::iter::from_fn(|| server.poll()).collect();
    let aborted = |stream| Event::Aborted { stream };
    assert_eq!(told, [aborted(unary), Event::HalfClosed { stream: both }, aborted(both), aborted(closed)]);
    assert_eq!(server.open_streams().collect::<Vec<_>>(), [other]);
    server.respond(other, Ok(Vec::new()));
    exchange(&mut client, &mut server);
    assert_eq!(client.poll(), Some(Reply::End { stream: other, result: Ok(Vec::new()) }));
    assert_eq!(client.poll(), None, "what was cancelled is not heard of");
}

#[test]
fn a_cancellation_that_meets_the_answer_is_no_mistake() {
    let (mut client, mut server) = (Client::default(), Server::default());
    let stream = client.call(&request("Quick")).unwrap();
    exchange(&mut client, &mut server);
    next_call(&mut server);
    server.respond(stream, Ok(b"answer".to_vec()));
    client.cancel(stream);
    exchange(&mut client, &mut server);
    assert_eq!((server.poll(), client.poll()), (None, None));
    assert!(server.output().pending().is_empty());
}

#[test]
fn a_last_message_may_close_its_stream() {
    let (mut client, mut server) = (Client::default(), Server::default());
    let stream = client.call_streaming(&request("Both")).unwrap();
    exchange(&mut client, &mut server);
    server.feed(&wire(stream, MessageType::Data, 1, b"last"));
    next_call(&mut server);
    assert_eq!(server.poll(), Some(Event::Data { stream, payload: b"last".to_vec() }));
    assert_eq!(server.poll(), Some(Event::HalfClosed { stream }));
    client.feed(&wire(stream, MessageType::Data, 1, b"last"));
    assert_eq!(client.poll(), Some(Reply::Data { stream, payload: b"last".to_vec() }));
    assert_eq!(client.poll(), Some(Reply::End { stream, result: Ok(Vec::new()) }));
}

#[test]
fn a_stream_that_was_ended_here_is_not_closed_there() {
    let (mut client, mut server) = (Client::default(), Server::default());
    let stream = client.call_streaming(&request("Both")).unwrap();
    let other = client.call(&request("Other")).unwrap();
    exchange(&mut client, &mut server);
    next_call(&mut server);
    next_call(&mut server);
    server.feed(&wire(stream, MessageType::Data, 1, b"last"));
    assert_eq!(server.poll(), Some(Event::Data { stream, payload: b"last".to_vec() }));
    server.respond(other, Ok(Vec::new()));
    server.finish(stream);
    assert_eq!(server.poll(), None);

    client.feed(&wire(stream, MessageType::Data, 1, b"last"));
    client.feed(&server.output().take());
    assert_eq!(client.poll(), Some(Reply::Data { stream, payload: b"last".to_vec() }));
    client.forget(stream);
    assert_eq!(client.poll(), Some(Reply::End { stream: other, result: Ok(Vec::new()) }));
}

#[test]
fn an_oversized_request_is_answered_and_the_connection_goes_on() {
    let mut server = Server::default();
    let len = MESSAGE_LEN_MAX + 1;
    let mut bytes = u32::try_from(len).unwrap().to_be_bytes().to_vec();
    bytes.extend([0, 0, 0, 1, 1, 0]);
    server.feed(&bytes);
    assert_eq!(server.poll(), None);
    assert_eq!(only_status(&mut server, 1).code, Code::ResourceExhausted);
    server.feed(&vec![0; len]);
    server.feed(&raw_request(1, "Again"));
    assert_eq!(next_call(&mut server).2.method, "Again", "the id was not used");
}

#[test]
fn an_oversized_message_ends_its_stream_only() {
    let mut server = Server::default();
    server.feed(&wire(1, MessageType::Request, 2, &[]));
    server.feed(&raw_request(3, "Other"));
    next_call(&mut server);
    next_call(&mut server);
    server.feed(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 3, 0]);
    assert_eq!(server.poll(), Some(Event::Aborted { stream: 1 }));
    assert_eq!(only_status(&mut server, 1).code, Code::ResourceExhausted);
    assert!(server.is_open(3));
    server.respond(1, Ok(Vec::new()));
    assert!(server.output().pending().is_empty(), "a stream is answered once");
}

#[test]
fn an_oversized_answer_fails_its_call_only() {
    let mut client = Client::default();
    let (first, second) = (client.call(&request("A")).unwrap(), client.call(&request("B")).unwrap());
    let len = u32::try_from(MESSAGE_LEN_MAX + 1).unwrap();
    client.feed(&[&len.to_be_bytes()[..], &first.to_be_bytes(), &[2, 0]].concat());
    let Some(Reply::End { stream, result: Err(status) }) = client.poll() else { panic!("an end") };
    assert_eq!((stream, status.code), (first, Code::ResourceExhausted));
    assert_eq!(client.open_streams().collect::<Vec<_>>(), [second]);
}

#[test]
fn an_answer_that_does_not_fit_becomes_a_status() {
    let mut server = Server::default();
    server.feed(&raw_request(1, "Big"));
    next_call(&mut server);
    server.respond(1, Ok(vec![0; MESSAGE_LEN_MAX]));
    assert_eq!(only_status(&mut server, 1).code, Code::ResourceExhausted);
}

#[test]
fn bad_frames_are_answered_on_their_own_stream() {
    let table: [(&str, Vec<u8>, u32); 5] = [
        ("an even id", raw_request(2, "A"), 2),
        ("stream zero", raw_request(0, "A"), 0),
        ("an id that was used", raw_request(5, "A"), 5),
        ("a request that is not one", wire(7, MessageType::Request, 0, &[0xff]), 7),
        ("data on a stream that was never opened", wire(9, MessageType::Data, 0, b"x"), 9),
    ];
    for (what, bytes, stream) in table {
        let mut server = Server::default();
        server.feed(&raw_request(5, "Live"));
        next_call(&mut server);
        server.feed(&bytes);
        assert_eq!(server.poll(), None, "{what}");
        assert_eq!(only_status(&mut server, stream).code, Code::InvalidArgument, "{what}");
        assert!(server.is_open(5), "{what}");
    }
}

#[test]
fn data_on_a_unary_call_ends_it() {
    let mut server = Server::default();
    server.feed(&raw_request(1, "A"));
    next_call(&mut server);
    server.feed(&wire(1, MessageType::Data, 0, b"x"));
    assert_eq!(server.poll(), Some(Event::Aborted { stream: 1 }));
    assert_eq!(only_status(&mut server, 1).code, Code::InvalidArgument);

    let mut client = Client::default();
    let stream = client.call(&request("A")).unwrap();
    client.feed(&wire(stream, MessageType::Data, 0, b"x"));
    assert!(matches!(
        client.poll(),
        Some(Reply::End { result: Err(Status { code: Code::Internal, .. }), .. })
    ));
}

/// A last message as the client writes it: with the request, alone, or behind a message.
#[test]
fn nothing_is_taken_on_a_stream_that_the_client_has_closed() {
    let message = |flags| wire(1, MessageType::Data, flags, b"x");
    let closed_by: [(&str, u8, &[Vec<u8>]); 3] = [
        ("the request", 1, &[]),
        ("a message", 2, &[message(1)]),
        ("an empty frame", 2, &[wire(1, MessageType::Data, 1 | 4, &[])]),
    ];
    for (what, flags, frames) in closed_by {
        let mut server = Server::default();
        let payload = prost::Message::encode_to_vec(&request("A"));
        server.feed(&wire(1, MessageType::Request, flags, &payload));
        next_call(&mut server);
        for frame in frames {
            server.feed(frame);
        }
        let mut last = None;
        while let Some(event) = server.poll() {
            last = Some(event);
        }
        assert_eq!(last.is_some(), !frames.is_empty(), "{what}: {last:?}");
        assert!(last.is_none_or(|event| event == Event::HalfClosed { stream: 1 }), "{what}");
        server.feed(&message(0));
        assert_eq!(server.poll(), Some(Event::Aborted { stream: 1 }), "{what}");
        assert_eq!(only_status(&mut server, 1).code, Code::InvalidArgument, "{what}");
    }
}

#[test]
fn what_arrives_for_an_ended_stream_is_dropped() {
    let (mut client, mut server) = (Client::default(), Server::default());
    let stream = client.call_streaming(&request("Both")).unwrap();
    exchange(&mut client, &mut server);
    next_call(&mut server);
    server.respond(stream, Err(Status::new(Code::Aborted, "enough")));
    let answer = server.output().take();
    server.feed(&wire(stream, MessageType::Data, 0, b"still sending"));
    assert_eq!(server.poll(), None);
    assert!(server.output().pending().is_empty(), "what the client sent meanwhile is refused");
    client.forget(stream);
    client.feed(&answer);
    assert_eq!(client.poll(), None);
}

#[test]
fn open_streams_are_bounded_at_both_ends() {
    let (mut client, mut server) = (Client::default(), Server::default());
    for _ in 0..STREAMS_MAX {
        client.call(&request("Wait")).unwrap();
    }
    assert_eq!(client.call(&request("Wait")), Err(ClientError::TooManyStreams));
    exchange(&mut client, &mut server);
    while server.poll().is_some() {}
    let next = u32::try_from(STREAMS_MAX * 2 + 1).unwrap();
    server.feed(&raw_request(next, "Wait"));
    assert_eq!(server.poll(), None);
    assert_eq!(only_status(&mut server, next).code, Code::ResourceExhausted);
}
