//! What a server of HTTP/2 says of itself first: how many streams it takes on a connection (RFC 9113, 3.4 and 6.5).
//!
//! The client knows it too, and lets requests beyond it wait without telling anybody. What the server says later counts there alone.

/// Bytes of the head of a frame.
const HEAD_BYTES: usize = 9;
/// Type of a frame of settings.
const SETTINGS: u8 = 4;
/// Bytes of a frame, unless somebody has allowed more.
const FRAME_BYTES_MAX: usize = 1 << 14;
/// Bytes of one setting: two of its name, four of its value.
const SETTING_BYTES: usize = 6;
/// `SETTINGS_MAX_CONCURRENT_STREAMS`.
const STREAMS: [u8; 2] = [0, 3];

/// The beginning of what a server sends.
#[derive(Debug, Default)]
pub(super) struct Beginning(Vec<u8>);

impl Beginning {
    /// Takes what came. The streams that the server takes, once it has said so or that it does not say.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<usize> {
        self.0.extend_from_slice(bytes);
        let (&[high, middle, low, kind, ..], rest) = self.0.split_first_chunk::<HEAD_BYTES>()?;
        let length = u32::from_be_bytes([0, high, middle, low]);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if kind != SETTINGS || length > FRAME_BYTES_MAX {
            // It speaks something else, which whoever reads it next refuses.
            return Some(usize::MAX);
        }
        let settings = rest.get(..length)?.chunks_exact(SETTING_BYTES);
        let said = settings.rev().find_map(|setting| setting.strip_prefix(&STREAMS)?.try_into().ok());
        let said = said.map(u32::from_be_bytes);
        Some(said.map_or(usize::MAX, |said| usize::try_from(said).unwrap_or(usize::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_streams_are_read_however_they_are_cut() {
        let frame = |kind: u8, settings: &[[u8; 6]]| {
            let length = u8::try_from(settings.len() * 6).unwrap();
            [&[0, 0, length, kind, 0, 0, 0, 0, 0][..], &settings.concat()].concat()
        };
        let (streams, other) = ([0, 3, 0, 0, 1, 2], [0, 4, 0, 0, 0, 7]);
        for (frame, said) in [
            (frame(4, &[streams]), 258),
            (frame(4, &[other, streams, other]), 258),
            (frame(4, &[streams, [0, 3, 0, 0, 0, 0]]), 0),
            (frame(4, &[other]), usize::MAX),
            (frame(4, &[]), usize::MAX),
            (frame(0, &[streams]), usize::MAX),
            (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), usize::MAX),
        ] {
            let mut whole = Beginning::default();
            assert_eq!(whole.push(&[&frame[..], b"more"].concat()), Some(said), "{frame:?}");
            let mut cut = Beginning::default();
            let first = frame.iter().find_map(|byte| cut.push(&[*byte]));
            assert_eq!(first, Some(said), "{frame:?}");
        }
    }
}
