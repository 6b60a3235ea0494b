//! Lines of a log, joined where they were written in parts.

use super::{
    Stream,
    record::{Record, Records},
};

/// Longest line that is joined: beyond it the parts so far are given as a line of their own. Containers can write
/// without ever ending a line.
pub const TEXT_MAX: usize = 1 << 20;

/// One line of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When its first part was written: RFC 3339, as written.
    pub time: String,
    /// Where to.
    pub stream: Stream,
    /// The text, with its newline unless the container is still writing it.
    pub text: Vec<u8>,
}

/// Joins lines, each stream for itself.
#[derive(Debug, Default)]
pub struct Lines {
    records: Records,
    partial: [Option<Line>; 2],
}

impl Lines {
    /// Takes bytes of a file and calls `each` with every line that they complete. Lines of the file that are not in the form of the CRI
    /// are passed over.
    pub fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(Line)) {
        let Self { records, partial } = self;
        records.feed(bytes, |_place, record| join(partial, record).into_iter().for_each(&mut each));
    }

    /// Takes a record; returns the line that it completes.
    pub fn take(&mut self, record: Record<'_>) -> Option<Line> {
        join(&mut self.partial, record)
    }

    /// The parts of lines that were not ended: what a killed container leaves.
    pub fn finish(&mut self) -> impl Iterator<Item = Line> {
        std::mem::take(&mut self.partial).into_iter().flatten()
    }
}

fn join(partial: &mut [Option<Line>; 2], record: Record<'_>) -> Option<Line> {
    let slot = &mut partial[record.stream.index()];
    let line = slot.get_or_insert_with(|| Line {
        time: record.time.to_owned(),
        stream: record.stream,
        text: Vec::with_capacity(record.text.len() + 1),
    });
    line.text.extend_from_slice(record.text);
    if record.is_full {
        line.text.push(b'\n');
    }
    if record.is_full || line.text.len() >= TEXT_MAX { slot.take() } else { None }
}
