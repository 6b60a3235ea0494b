use prost::Message;

use super::super::*;
use super::{next_call, request, wire};

fn frames(bytes: &[u8]) -> Vec<Result<Frame, FrameError>> {
    let mut decoder = Decoder::default();
    decoder.feed(bytes);
    std::iter::from_fn(|| decoder.next().transpose()).collect()
}

#[test]
fn header_is_length_stream_kind_flags_big_endian() {
    let bytes = wire(0x0102_0305, MessageType::Data, 4, b"xyz");
    assert_eq!(bytes, [0, 0, 0, 3, 1, 2, 3, 5, 3, 4, b'x', b'y', b'z']);
    let frame = Frame {
        stream: 0x0102_0305,
        kind: MessageType::Data,
        flags: Flags::NO_DATA,
        payload: b"xyz".to_vec(),
    };
    assert_eq!(frames(&bytes), [Ok(frame)]);
}

#[test]
fn kinds_of_later_versions_are_returned_and_do_not_disturb() {
    let mut bytes = wire(1, MessageType::Other(9), 0xff, b"future");
    bytes.extend(wire(3, MessageType::Request, 0, b""));
    let kinds: Vec<_> = frames(&bytes).into_iter().map(|frame| frame.unwrap().kind).collect();
    assert_eq!(kinds, [MessageType::Other(9), MessageType::Request]);
}

#[test]
fn a_frame_waits_for_its_last_byte() {
    let bytes = wire(1, MessageType::Request, 0, b"abc");
    let mut decoder = Decoder::default();
    for byte in &bytes[..bytes.len() - 1] {
        decoder.feed(&[*byte]);
        assert_eq!(decoder.next(), Ok(None));
        assert!(decoder.is_mid_frame());
    }
    decoder.feed(&bytes[bytes.len() - 1..]);
    assert_eq!(decoder.next().unwrap().unwrap().payload, b"abc");
    assert!(!decoder.is_mid_frame());
}

#[test]
fn the_largest_message_passes_and_one_byte_more_does_not() {
    let largest = vec![7; MESSAGE_LEN_MAX];
    assert_eq!(
        frames(&wire(1, MessageType::Data, 0, &largest))[0].as_ref().unwrap().payload.len(),
        MESSAGE_LEN_MAX
    );
    let mut out = vec![1];
    let error = encode(1, MessageType::Data, Flags::NONE, &[largest, vec![7]].concat(), &mut out);
    let len = u32::try_from(MESSAGE_LEN_MAX + 1).unwrap();
    assert_eq!(error, Err(FrameError::Oversized { stream: 1, kind: MessageType::Data, len }));
    assert_eq!(out, [1], "nothing of a refused frame is written");
}

#[test]
fn an_oversized_frame_is_skipped_wherever_the_reads_end() {
    let len = MESSAGE_LEN_MAX + 1;
    let mut bytes = u32::try_from(len).unwrap().to_be_bytes().to_vec();
    bytes.extend([0, 0, 0, 5, 1, 0]);
    bytes.resize(HEADER_LEN + len, 0xee);
    bytes.extend(wire(7, MessageType::Request, 0, b"after"));
    let announced = u32::try_from(len).unwrap();
    for chunk in [HEADER_LEN - 1, HEADER_LEN, 4096, len + 3, bytes.len()] {
        let mut decoder = Decoder::default();
        let mut seen = Vec::new();
        for part in bytes.chunks(chunk) {
            decoder.feed(part);
            seen.extend(std::iter::from_fn(|| decoder.next().transpose()));
        }
        let oversized = FrameError::Oversized { stream: 5, kind: MessageType::Request, len: announced };
        let after =
            Frame { stream: 7, kind: MessageType::Request, flags: Flags::NONE, payload: b"after".to_vec() };
        assert_eq!(seen, [Err(oversized), Ok(after)], "in reads of {chunk} bytes");
    }
}

#[test]
fn codes_are_numbered_as_grpc_numbers_them() {
    for number in 0..=16 {
        assert_eq!(Code::from(number) as i32, number);
    }
    assert_eq!(Code::from(17), Code::Unknown);
    assert_eq!(Code::from(-1), Code::Unknown);
}

#[test]
fn output_returns_what_was_not_written() {
    let mut client = Client::default();
    client.call(&request("Unary")).unwrap();
    let whole = client.output().pending().to_vec();
    client.output().written(4);
    assert_eq!(client.output().pending(), &whole[4..]);
    assert_eq!(client.output().take(), &whole[4..]);
    assert!(client.output().pending().is_empty());
}

#[test]
fn a_reader_that_is_always_behind_costs_no_more_than_what_it_is_behind() {
    const MESSAGE: usize = 1000;
    let mut server = Server::default();
    server.feed(&wire(1, MessageType::Request, Flags::REMOTE_OPEN.0, &request("Stream").encode_to_vec()));
    next_call(&mut server);
    server.send(1, &[0; MESSAGE]).unwrap();
    for _round in 0..10_000 {
        server.send(1, &[0; MESSAGE]).unwrap();
        let behind = server.output().pending().len() - MESSAGE;
        server.output().written(behind);
        assert_eq!(server.output().pending().len(), MESSAGE);
    }
    assert!(server.output().take().capacity() < 100 * MESSAGE);
}
