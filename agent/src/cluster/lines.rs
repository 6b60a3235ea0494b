//! The lines of an answer that has no end: of a watch, one event each.

use http_body_util::BodyExt;
use hyper::body::Bytes;
use kube::client::Body;

use super::{ApiError, head::HEAD_BYTES};

/// Most bytes of a line that is kept. A request has three mebibytes at most (`MaxRequestBodyBytes`), of which JSON may make six times as
/// much.
pub(super) const LINE_BYTES_MAX: usize = 20 << 20;
/// Most bytes of a line whose end is waited for: what has none is no line.
const END_WITHIN: usize = 64 << 20;
/// What is kept for the next lines once they are read: that a line was long is no reason to keep its memory.
const KEPT_BYTES: usize = 64 << 10;

/// A line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// All of it.
    Whole(Vec<u8>),
    /// Its beginning: it has more bytes than are kept.
    Head {
        /// What it begins with.
        bytes: Vec<u8>,
        /// How long it is.
        length: usize,
    },
}

/// Lines as they come.
#[derive(Debug)]
pub(super) struct Lines {
    body: Body,
    rest: Rest,
}

/// What came, and is no line yet.
#[derive(Debug, Default)]
struct Rest {
    bytes: Vec<u8>,
    /// In so many of them there is no end of a line.
    looked_at: usize,
    /// So many of them were taken.
    taken: usize,
    /// Of a line that is too long: so many bytes after its beginning were given up.
    given_up: usize,
}

impl Lines {
    pub(super) fn of(body: Body) -> Self {
        Self { body, rest: Rest::default() }
    }

    /// The next line; `None` at the end, where the beginning of a line is none. Nothing is lost when it is given up.
    pub(super) async fn next(&mut self) -> Option<Result<Line, ApiError>> {
        loop {
            if let Some(line) = self.rest.line() {
                return Some(Ok(line));
            }
            if self.rest.waiting() > END_WITHIN {
                let why = format!("one line of it is longer than {} MiB", END_WITHIN >> 20);
                return Some(Err(ApiError::Unusable(why)));
            }
            match self.body.frame().await? {
                Ok(frame) => self.rest.push(&frame.into_data().unwrap_or_else(|_trailers| Bytes::new())),
                Err(error) => return Some(Err(ApiError::of_transport(&error))),
            }
        }
    }
}

impl Rest {
    fn push(&mut self, piece: &[u8]) {
        self.bytes.drain(..self.taken);
        self.looked_at -= self.taken;
        self.taken = 0;
        if self.bytes.is_empty() {
            self.bytes.shrink_to(KEPT_BYTES);
        }
        self.give_up();
        self.bytes.extend_from_slice(piece);
    }

    /// Of a line that is too long, and goes on, nothing but its beginning is kept.
    fn give_up(&mut self) {
        let is_too_long = self.bytes.len() > LINE_BYTES_MAX || self.given_up > 0;
        if is_too_long && self.bytes.len() > HEAD_BYTES {
            self.given_up += self.bytes.len() - HEAD_BYTES;
            self.bytes.truncate(HEAD_BYTES);
            self.bytes.shrink_to(HEAD_BYTES + KEPT_BYTES);
            self.looked_at = HEAD_BYTES;
        }
    }

    /// Bytes that came of a line whose end has not come.
    fn waiting(&self) -> usize {
        self.bytes.len() - self.taken + self.given_up
    }

    /// The next line without its end. Empty lines are none.
    fn line(&mut self) -> Option<Line> {
        loop {
            let Some(at) = memchr::memchr(b'\n', &self.bytes[self.looked_at..]) else {
                self.looked_at = self.bytes.len();
                return None;
            };
            let end = self.looked_at + at;
            let (line, given_up) =
                (self.bytes[self.taken..end].trim_ascii(), std::mem::take(&mut self.given_up));
            let length = line.len() + given_up;
            let line = if length > LINE_BYTES_MAX {
                Line::Head { bytes: line[..line.len().min(HEAD_BYTES)].to_vec(), length }
            } else {
                Line::Whole(line.to_vec())
            };
            (self.taken, self.looked_at) = (end + 1, end + 1);
            if length > 0 {
                return Some(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(pieces: &[&str]) -> Vec<String> {
        let mut rest = Rest::default();
        let mut lines = Vec::new();
        for piece in pieces {
            rest.push(piece.as_bytes());
            while let Some(line) = rest.line() {
                let Line::Whole(line) = line else { panic!("{line:?}") };
                lines.push(String::from_utf8(line).unwrap());
            }
        }
        lines
    }

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        for (pieces, lines) in [
            (vec!["a\nb\n"], vec!["a", "b"]),
            (vec!["a", "\n", "b\nc", "c\n"], vec!["a", "b", "cc"]),
            (vec!["\n\r\n \na\r\n"], vec!["a"]),
            (vec!["", "a", "", "\n\n", "b"], vec!["a"]),
            (vec![], vec![]),
        ] {
            assert_eq!(pushed(&pieces), lines, "{pieces:?}");
        }
        let text = "one\ntwo\n\nthree\n";
        for at in 0..text.len() {
            for to in at..text.len() {
                let pieces = [&text[..at], &text[at..to], &text[to..]];
                assert_eq!(pushed(&pieces), ["one", "two", "three"], "{pieces:?}");
            }
        }
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.as_bytes().to_vec())
    }

    #[tokio::test]
    async fn the_beginning_of_a_line_is_none_and_one_without_end_is_given_up() {
        let mut lines = Lines::of(Body::from(b"a\nb".to_vec()));
        assert_eq!(lines.next().await, Some(Ok(whole("a"))));
        assert_eq!(lines.next().await, None);
        let mut endless = Lines::of(Body::from(vec![b'x'; END_WITHIN + 1]));
        let error = endless.next().await.unwrap().unwrap_err().to_string();
        assert!(error.contains("longer than 64 MiB"), "{error}");
    }

    /// However it is cut, and with the memory of its beginning alone.
    #[test]
    fn of_a_line_that_is_too_long_the_beginning_is_kept_and_the_next_one_is_whole() {
        for (length, piece, is_whole) in [
            (LINE_BYTES_MAX, 1 << 20, true),
            (LINE_BYTES_MAX + 1, 1 << 20, false),
            (LINE_BYTES_MAX + 1, usize::MAX, false),
            (2 * LINE_BYTES_MAX, 16 << 10, false),
            (2 * LINE_BYTES_MAX, 3 << 20, false),
        ] {
            let text = [&b"first\n"[..], &vec![b'x'; length], b"\nlast\n"].concat();
            let (mut rest, mut found, mut most) = (Rest::default(), Vec::new(), 0);
            for piece in text.chunks(piece.min(text.len())) {
                rest.push(piece);
                most = most.max(rest.bytes.capacity());
                while let Some(line) = rest.line() {
                    found.push(match line {
                        Line::Whole(bytes) => (true, bytes.len(), bytes.len()),
                        Line::Head { bytes, length } => (false, bytes.len(), length),
                    });
                }
            }
            let long = if is_whole { (true, length, length) } else { (false, HEAD_BYTES, length) };
            assert_eq!(found, [(true, 5, 5), long, (true, 4, 4)], "{length} by {piece}");
            assert!(piece == usize::MAX || most <= 2 * LINE_BYTES_MAX + (8 << 20), "{most}");
        }
    }
}
