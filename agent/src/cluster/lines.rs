//! The lines of an answer that has no end: of a watch, one event each.

use http_body_util::BodyExt;
use hyper::body::Bytes;
use kube::client::Body;

use super::ApiError;

/// Most bytes of a line. A request has three mebibytes at most (`MaxRequestBodyBytes`), of which JSON may make six times as much.
pub(super) const LINE_BYTES_MAX: usize = 20 << 20;
/// What is kept for the next lines once they are read: that a line was long is no reason to keep its memory.
const KEPT_BYTES: usize = 64 << 10;

/// Lines as they come.
#[derive(Debug)]
pub(super) struct Lines {
    body: Body,
    rest: Rest,
    read: usize,
}

/// What came, and is no line yet.
#[derive(Debug, Default)]
struct Rest {
    bytes: Vec<u8>,
    /// In so many of them there is no end of a line.
    looked_at: usize,
    /// So many of them were taken.
    taken: usize,
}

impl Lines {
    pub(super) fn of(body: Body) -> Self {
        Self { body, rest: Rest::default(), read: 0 }
    }

    /// The next line; `None` at the end, where the beginning of a line is none. Nothing is lost when it is given up.
    pub(super) async fn next(&mut self) -> Option<Result<Vec<u8>, ApiError>> {
        loop {
            if let Some(line) = self.rest.line() {
                return Some(Ok(line));
            }
            if self.rest.bytes.len() - self.rest.taken > LINE_BYTES_MAX {
                let why = format!("one line of it is longer than {} MiB", LINE_BYTES_MAX >> 20);
                return Some(Err(ApiError::Unusable(why)));
            }
            match self.body.frame().await? {
                Ok(frame) => {
                    let piece = frame.into_data().unwrap_or_else(|_trailers| Bytes::new());
                    self.read += piece.len();
                    self.rest.push(&piece);
                }
                Err(error) => return Some(Err(ApiError::of_transport(&error))),
            }
        }
    }

    /// How many bytes came so far.
    pub(super) fn bytes_read(&self) -> usize {
        self.read
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
        self.bytes.extend_from_slice(piece);
    }

    /// The next line without its end. Empty lines are none.
    fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            let Some(at) = self.bytes[self.looked_at..].iter().position(|byte| *byte == b'\n') else {
                self.looked_at = self.bytes.len();
                return None;
            };
            let end = self.looked_at + at;
            let line = self.bytes[self.taken..end].trim_ascii().to_vec();
            (self.taken, self.looked_at) = (end + 1, end + 1);
            if !line.is_empty() {
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

    #[tokio::test]
    async fn a_line_is_bounded_and_the_beginning_of_one_is_none() {
        let mut lines = Lines::of(Body::from(b"a\nb".to_vec()));
        assert_eq!(lines.next().await, Some(Ok(b"a".to_vec())));
        assert_eq!(lines.next().await, None);
        assert_eq!(lines.bytes_read(), 3);
        let mut endless = Lines::of(Body::from(vec![b'x'; LINE_BYTES_MAX + 1]));
        let error = endless.next().await.unwrap().unwrap_err().to_string();
        assert!(error.contains("longer than 20 MiB"), "{error}");
    }
}
