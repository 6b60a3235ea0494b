use proptest::collection::vec;
use proptest::prelude::*;

use super::super::*;

fn kind() -> impl Strategy<Value = MessageType> {
    any::<u8>().prop_map(MessageType::from)
}

fn frame() -> impl Strategy<Value = Frame> {
    (any::<u32>(), kind(), any::<u8>(), vec(any::<u8>(), 0..200))
        .prop_map(|(stream, kind, flags, payload)| Frame { stream, kind, flags: Flags(flags), payload })
}

/// Bytes that look like frames often enough to get past the header.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let header = (0_u32..40, 0_u32..9, 0_u8..5, 0_u8..8);
    let near = header.prop_flat_map(|(len, stream, kind, flags)| {
        let head = [&len.to_be_bytes()[..], &stream.to_be_bytes(), &[kind, flags]].concat();
        vec(any::<u8>(), 0..50).prop_map(move |body| [&head[..], &body].concat())
    });
    vec(prop_oneof![near, vec(any::<u8>(), 0..30)], 0..12).prop_map(|parts| parts.concat())
}

/// Cuts `bytes` at the given places, in any order, beyond the end or not.
fn split<'b>(bytes: &'b [u8], cuts: &[usize]) -> Vec<&'b [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

fn decode_in(parts: &[&[u8]]) -> Vec<Result<Frame, FrameError>> {
    let mut decoder = Decoder::default();
    let mut seen = Vec::new();
    for part in parts {
        decoder.feed(part);
        seen.extend(std::iter::from_fn(|| decoder.next().transpose()));
    }
    seen
}

proptest! {
    #[test]
    fn frames_survive_the_wire(frames in vec(frame(), 0..10), cuts in vec(any::<usize>(), 0..20)) {
        let mut bytes = Vec::new();
        for frame in &frames {
            encode(frame.stream, frame.kind, frame.flags, &frame.payload, &mut bytes).unwrap();
        }
        let seen: Result<Vec<Frame>, FrameError> = decode_in(&split(&bytes, &cuts)).into_iter().collect();
        prop_assert_eq!(seen.unwrap(), frames);
    }

    #[test]
    fn how_bytes_are_cut_changes_nothing(bytes in hostile(), cuts in vec(any::<usize>(), 0..20)) {
        prop_assert_eq!(decode_in(&split(&bytes, &cuts)), decode_in(&[&bytes]));
    }

    #[test]
    fn no_client_breaks_the_server(bytes in hostile(), cuts in vec(any::<usize>(), 0..20)) {
        let mut server = Server::default();
        let mut open = 0_usize;
        for part in split(&bytes, &cuts) {
            server.feed(part);
            while let Some(event) = server.poll() {
                match event {
                    Event::Call { .. } => open += 1,
                    Event::Aborted { .. } => open -= 1,
                    Event::Data { stream, .. } | Event::HalfClosed { stream } => {
                        prop_assert!(server.is_open(stream));
                    }
                }
            }
        }
        prop_assert_eq!(server.open_streams().count(), open);
    }

    #[test]
    fn no_server_breaks_the_client(bytes in hostile(), calls in 0_usize..6) {
        let mut client = Client::default();
        for call in 0..calls {
            let opened = if call % 2 == 0 {
                client.call(&super::request("A"))
            } else {
                client.call_streaming(&super::request("B"))
            };
            prop_assert_eq!(opened, Ok(u32::try_from(call * 2 + 1).unwrap()));
        }
        client.feed(&bytes);
        let mut ended = 0;
        while let Some(reply) = client.poll() {
            ended += usize::from(matches!(reply, Reply::End { .. }));
        }
        prop_assert_eq!(client.open_streams().count() + ended, calls);
    }
}
