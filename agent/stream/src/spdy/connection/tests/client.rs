//! The client's half, as much of it as tests need: frames as bytes, and frames of the server as text.

use super::super::super::deflate::Deflater;
use super::super::super::headers::Headers;
use super::super::super::inflate::Inflater;

#[derive(Default)]
pub(super) struct Client {
    deflater: Deflater,
    inflater: Inflater,
}

impl Client {
    pub(super) fn open(&mut self, stream: u32) -> Vec<u8> {
        self.syn_stream(stream, 0, &Headers::default().with("streamType", "data"))
    }

    pub(super) fn syn_stream(&mut self, stream: u32, flags: u8, headers: &Headers) -> Vec<u8> {
        self.syn_stream_of(stream, flags, &headers.encode())
    }

    pub(super) fn syn_stream_of(&mut self, stream: u32, flags: u8, block: &[u8]) -> Vec<u8> {
        let block = self.deflater.block(block);
        control(1, flags, &[&stream.to_be_bytes(), [0; 6].as_slice(), &block].concat())
    }

    /// A frame of a stream and headers: SYN_REPLY or HEADERS.
    pub(super) fn headers(&mut self, kind: u8, stream: u32, flags: u8, headers: &Headers) -> Vec<u8> {
        let block = self.deflater.block(&headers.encode());
        control(kind, flags, &[&stream.to_be_bytes(), block.as_slice()].concat())
    }

    /// What the server said, a line for each frame.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(8);
            let word = |at: usize, from: &[u8]| u32::from_be_bytes(from[at..at + 4].try_into().unwrap());
            let (flags, len) = (head[4], usize::try_from(word(4, head) & 0xff_ffff).unwrap());
            let (body, after) = rest.split_at(len);
            bytes = after;
            let flags = if flags == 1 { " FIN" } else { "" };
            lines.push(match (head[0], word(0, head) & 0xffff) {
                (0x80, 2) => {
                    let block = self.inflater.block(&body[4..], 1 << 20).unwrap();
                    let headers = Headers::decode(&block, 9).unwrap();
                    let headers: Vec<_> = headers.iter().collect();
                    format!("SYN_REPLY {} {headers:?}{flags}", word(0, body))
                }
                (0x80, 3) => format!("RST_STREAM {} {}", word(0, body), word(4, body)),
                (0x80, 4) => format!("SETTINGS {} {} {}", word(0, body), word(4, body), word(8, body)),
                (0x80, 6) => format!("PING {}", word(0, body)),
                (0x80, 7) => format!("GOAWAY {} {}", word(0, body), word(4, body)),
                (0x80, 9) => format!("WINDOW_UPDATE {} {}", word(0, body), word(4, body)),
                (0x80, kind) => panic!("the server sent a frame of kind {kind}"),
                _ => format!("DATA {} {len}{flags}", word(0, head)),
            });
        }
        lines
    }
}

pub(super) fn control(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).unwrap();
    let [_, high, middle, low] = len.to_be_bytes();
    [&[0x80, 3, 0, kind, flags, high, middle, low], body].concat()
}

/// A control frame whose body is words.
pub(super) fn words(kind: u8, words: &[u32]) -> Vec<u8> {
    let body: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    control(kind, 0, &body)
}

pub(super) fn data(stream: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).unwrap();
    let [_, high, middle, low] = len.to_be_bytes();
    [&stream.to_be_bytes(), [flags, high, middle, low].as_slice(), bytes].concat()
}

pub(super) fn settings(settings: &[(u32, u32)]) -> Vec<u8> {
    let count = u32::try_from(settings.len()).unwrap();
    let mut body = vec![count];
    body.extend(settings.iter().flat_map(|(id, value)| [*id, *value]));
    words(4, &body)
}

pub(super) fn reset(stream: u32, status: u32) -> Vec<u8> {
    words(3, &[stream, status])
}

pub(super) fn ping(id: u32) -> Vec<u8> {
    words(6, &[id])
}

pub(super) fn go_away() -> Vec<u8> {
    words(7, &[0, 0])
}

pub(super) fn window_update(stream: u32, delta: u32) -> Vec<u8> {
    words(9, &[stream, delta])
}
