//! Records: what a line of a log's file says.

use std::ops::Range;

use jiff::Timestamp;
use memchr::memchr;

use super::TEXT_MAX;

/// Longest line of the file: a part (16 KiB by the shim) and its head. What is longer is cut.
const RAW_MAX: usize = TEXT_MAX + 128;

/// The form in which the shim writes times: those in it are in the order of their bytes.
const TIME_FORM: &[u8; 30] = b"0000-00-00T00:00:00.000000000Z";

/// Where a line was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// Its place in an array of two.
    pub(super) fn index(self) -> usize {
        usize::from(self == Self::Stderr)
    }
}

/// A line of a container, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was written: RFC 3339, as written.
    pub time: &'a str,
    /// Where to.
    pub stream: Stream,
    /// Whether it ends a line.
    pub is_full: bool,
    /// The text, without a newline.
    pub text: &'a [u8],
}

impl<'a> Record<'a> {
    /// What is in another form is none.
    pub(super) fn parse(raw: &'a [u8]) -> Option<Self> {
        let mut rest = raw;
        let mut field = || {
            let end = memchr(b' ', rest)?;
            let field = &rest[..end];
            rest = &rest[end + 1..];
            Some(field)
        };
        let (time, stream) = (field()?, field()?);
        let stream = match stream {
            b"stdout" => Stream::Stdout,
            b"stderr" => Stream::Stderr,
            _ => return None,
        };
        let (tag, text) = match field() {
            Some(tag) => (tag, rest),
            None => (rest, &[][..]),
        };
        // Tags after the first are for later versions of the format.
        let is_full = match tag.split(|byte| *byte == b':').next()? {
            b"F" => true,
            b"P" => false,
            _ => return None,
        };
        let time = std::str::from_utf8(time).ok()?;
        (is_in_form(time) || time.parse::<Timestamp>().is_ok()).then_some(Self {
            time,
            stream,
            is_full,
            text,
        })
    }
}

/// A time before which nothing is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Since {
    time: Timestamp,
    text: String,
}

impl Since {
    pub(super) fn new(time: Timestamp) -> Self {
        Self { time, text: format!("{time:.9}") }
    }

    pub(super) fn is_after(&self, record: &Record<'_>) -> bool {
        if is_in_form(record.time) {
            return record.time < self.text.as_str();
        }
        record.time.parse::<Timestamp>().is_ok_and(|time| time < self.time)
    }
}

/// Makes records out of the bytes of a file. Lines that are not in the form of the CRI are passed over.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// The beginning of a line whose end was not there yet.
    raw: Vec<u8>,
    /// Where in the file that line begins.
    begins: u64,
    /// How far the file was fed.
    fed: u64,
}

impl Records {
    /// What is fed from now on is of another file, from here on.
    pub(super) fn go_to(&mut self, at: u64) {
        self.begins = at;
        self.fed = at;
    }

    /// How far the file was fed.
    pub(super) fn fed(&self) -> u64 {
        self.fed
    }

    /// Takes bytes of the file, and calls `each` with every record that they complete, and its place in the file.
    pub(super) fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(Range<u64>, Record<'_>)) {
        let mut rest = bytes;
        while let Some(end) = memchr(b'\n', rest) {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            self.fed += rest.len() as u64 - after.len() as u64;
            let range = self.begins..self.fed;
            self.begins = self.fed;
            rest = after;
            if self.raw.is_empty() {
                if let Some(record) = Record::parse(line) {
                    each(range, record);
                }
                continue;
            }
            self.keep(line);
            let raw = std::mem::take(&mut self.raw);
            if let Some(record) = Record::parse(&raw) {
                each(range, record);
            }
        }
        self.fed += rest.len() as u64;
        self.keep(rest);
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = RAW_MAX.saturating_sub(self.raw.len());
        self.raw.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// Whether a time is in the form of the shim.
pub(super) fn is_in_form(time: &str) -> bool {
    let Ok(time) = <&[u8; 30]>::try_from(time.as_bytes()) else { return false };
    time.iter().zip(TIME_FORM).all(|(byte, form)| match form {
        b'0' => byte.is_ascii_digit(),
        sign => byte == sign,
    })
}
