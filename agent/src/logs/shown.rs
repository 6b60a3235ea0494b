//! A log as clients of the node get it: text, as the container wrote it.

use std::borrow::Cow;

use super::{
    Stream,
    record::{Record, is_in_form},
};

/// What of a log is shown, and what of it is still to come. Source: `logWriter` of `k8s.io/cri-client/pkg/logs/logs.go`.
#[derive(Debug)]
pub struct Shown {
    streams: [bool; 2],
    timestamps: bool,
    remaining: Option<u64>,
    /// Whether what comes next begins a line.
    begins_line: bool,
}

impl Shown {
    /// Shows `bytes` at most, with or without times before lines.
    #[must_use]
    pub fn new(timestamps: bool, bytes: Option<u64>) -> Self {
        Self { streams: [true; 2], timestamps, remaining: bytes, begins_line: true }
    }

    /// Shows what was written to one stream alone.
    #[must_use]
    pub fn only(mut self, stream: Stream) -> Self {
        self.streams = [Stream::Stdout, Stream::Stderr].map(|other| other == stream);
        self
    }

    /// Appends what is shown of a record. Parts are shown as they come, so that a prompt is seen before its line ends.
    pub fn take(&mut self, record: &Record<'_>, out: &mut Vec<u8>) {
        if !self.streams[record.stream.index()] || self.is_over() {
            return;
        }
        let begins = out.len();
        if self.timestamps && self.begins_line {
            out.extend_from_slice(fixed(record.time).as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(record.text);
        if record.is_full {
            out.push(b'\n');
        }
        self.begins_line = record.is_full || record.text.is_empty();
        if let Some(remaining) = &mut self.remaining {
            let length = u64::try_from(out.len() - begins).unwrap_or(u64::MAX);
            if let Ok(room) = usize::try_from(*remaining) {
                out.truncate(begins.saturating_add(room));
            }
            *remaining = remaining.saturating_sub(length);
        }
    }

    /// Whether nothing more will be shown.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.remaining == Some(0)
    }
}

/// A time with nine digits of its second. Source: `RFC3339NanoFixed` of `k8s.io/cri-client/pkg/logs/logs.go`.
fn fixed(time: &str) -> Cow<'_, str> {
    const SECONDS: usize = "0000-00-00T00:00:00".len();
    const DIGITS: usize = 9;
    let (Some(seconds), Some(rest), false) = (time.get(..SECONDS), time.get(SECONDS..), is_in_form(time))
    else {
        return time.into();
    };
    let rest = rest.strip_prefix('.').unwrap_or(rest);
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (fraction, zone) = rest.split_at(digits);
    let zone = if matches!(zone, "+00:00" | "-00:00") { "Z" } else { zone };
    format!("{seconds}.{:0<DIGITS$}{zone}", &fraction[..digits.min(DIGITS)]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &[u8] = b"2026-11-21T07:00:01.000000000Z stdout P he\n\
        2026-11-21T07:00:02.5Z stdout F llo\n\
        2026-11-21T07:00:03+00:00 stderr F oops\n\
        2026-11-21T07:00:04.123456789+02:00 stdout P \n\
        2026-11-21T07:00:05.000000000Z stdout F \n";

    fn shown(mut shown: Shown) -> String {
        let mut out = Vec::new();
        let records = LOG.split(|byte| *byte == b'\n').filter_map(Record::parse);
        records.for_each(|record| shown.take(&record, &mut out));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn parts_are_shown_as_they_come_and_times_before_lines() {
        let times = "2026-11-21T07:00:01.000000000Z hello\n\
            2026-11-21T07:00:03.000000000Z oops\n\
            2026-11-21T07:00:04.123456789+02:00 2026-11-21T07:00:05.000000000Z \n";
        for (of, expected) in [
            (Shown::new(false, None), "hello\noops\n\n"),
            (Shown::new(true, None), times),
            (Shown::new(false, None).only(Stream::Stdout), "hello\n\n"),
            (Shown::new(false, None).only(Stream::Stderr), "oops\n"),
        ] {
            assert_eq!(shown(of), expected);
        }
    }

    #[test]
    fn so_many_bytes_are_shown_and_no_more() {
        let all = shown(Shown::new(true, None));
        for bytes in 1..=all.len() + 1 {
            assert_eq!(shown(Shown::new(true, Some(bytes as u64))), all[..bytes.min(all.len())]);
        }
        // What is not shown does not count.
        assert_eq!(shown(Shown::new(false, Some(3)).only(Stream::Stderr)), "oop");
    }
}
