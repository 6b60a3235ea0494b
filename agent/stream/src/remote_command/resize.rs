//! Sizes of the client's terminal.

use serde_json::{Deserializer, Value};

/// Most bytes of one size, with room for members that are not known and for white space.
const SIZE_BYTES_MAX: usize = 1 << 10;

/// A terminal's size in characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TerminalSize {
    /// Characters of a line.
    pub width: u16,
    /// Lines.
    pub height: u16,
}

/// The sizes in what comes on the resize channel: JSON objects, one after the other, cut anywhere. The first bytes that
/// are none end it, without a word, as in the kubelet: the session goes on.
#[derive(Debug, Default)]
pub struct Sizes {
    buffer: Vec<u8>,
    is_broken: bool,
}

impl Sizes {
    /// Takes bytes and returns the last size in them. The sizes before it are out of date.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<TerminalSize> {
        let mut last = None;
        // Pieces bound what is held, and with it what is read again when a size comes byte by byte.
        for piece in bytes.chunks(SIZE_BYTES_MAX) {
            if self.is_broken {
                break;
            }
            self.buffer.extend_from_slice(piece);
            last = self.read().or(last);
        }
        last
    }

    fn read(&mut self) -> Option<TerminalSize> {
        let mut last = None;
        let mut values = Deserializer::from_slice(&self.buffer).into_iter::<Value>();
        let taken = loop {
            let before = values.byte_offset();
            match values.next() {
                Some(Ok(value)) => match size(&value) {
                    Some(size) => last = Some(size),
                    None => self.is_broken = true,
                },
                Some(Err(error)) if error.is_eof() => break before,
                Some(Err(_)) => self.is_broken = true,
                None => break self.buffer.len(),
            }
            if self.is_broken {
                break self.buffer.len();
            }
        };
        self.buffer.drain(..taken);
        self.is_broken |= self.buffer.len() > SIZE_BYTES_MAX;
        if self.is_broken {
            self.buffer = Vec::new();
        }
        last
    }
}

/// Reads an object as Go reads it: names in any case, what is missing or null is zero, what is not known is skipped.
fn size(value: &Value) -> Option<TerminalSize> {
    let mut size = TerminalSize::default();
    for (name, value) in value.as_object()? {
        let member = if name.eq_ignore_ascii_case("width") {
            &mut size.width
        } else if name.eq_ignore_ascii_case("height") {
            &mut size.height
        } else {
            continue;
        };
        if !value.is_null() {
            *member = u16::try_from(value.as_u64()?).ok()?;
        }
    }
    Some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn of(width: u16, height: u16) -> TerminalSize {
        TerminalSize { width, height }
    }

    #[test]
    fn the_last_size_counts() {
        let table: [(&[&str], &[Option<TerminalSize>]); 7] = [
            (&[r#"{"Width":80,"Height":24}"#], &[Some(of(80, 24))]),
            (&[r#"{"Width":80,"#, r#""Height":24}"#, "\n"], &[None, Some(of(80, 24)), None]),
            (&[r#"{"Width":1,"Height":2}{"Width":3,"Height":4}"#], &[Some(of(3, 4))]),
            (&[r#"{"width":1,"HEIGHT":2}{"#, r#""Width":5}"#], &[Some(of(1, 2)), Some(of(5, 0))]),
            (&[r#" {"Width":null,"Depth":[1]} "#], &[Some(of(0, 0))]),
            (&[r#"{"Width":65535,"Height":65535}"#], &[Some(of(u16::MAX, u16::MAX))]),
            (&[""], &[None]),
        ];
        for (pieces, expected) in table {
            let mut sizes = Sizes::default();
            let said: Vec<_> = pieces.iter().map(|piece| sizes.feed(piece.as_bytes())).collect();
            assert_eq!(said, expected, "{pieces:?}");
        }
    }

    #[test]
    fn what_is_no_size_ends_them() {
        let long = format!("{{\"Width\":{}", " ".repeat(2 * SIZE_BYTES_MAX));
        for broken in [
            "[]",
            "7 ",
            "}",
            r#"{"Width":65536}"#,
            r#"{"Width":-1}"#,
            r#"{"Width":"80"}"#,
            "\u{0}",
            long.as_str(),
        ] {
            let mut sizes = Sizes::default();
            assert_eq!(sizes.feed(br#"{"Width":80,"Height":24}"#), Some(of(80, 24)));
            assert_eq!(sizes.feed(broken.as_bytes()), None, "{broken}");
            assert_eq!(sizes.feed(br#"{"Width":80,"Height":24}"#), None, "after {broken}");
            assert_eq!(sizes.buffer.capacity(), 0, "nothing is held after {broken}");
        }
    }
}
