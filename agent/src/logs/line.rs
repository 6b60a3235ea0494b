//! Lines of a log: parsed, and joined where they were written in parts.

use jiff::Timestamp;

/// Longest line that is joined: beyond it the parts so far are given as a line of their own. Containers can write
/// without ever ending a line.
pub const TEXT_MAX: usize = 1 << 20;

/// Longest line of the file: a part (16 KiB by the shim) and its head. What is longer is cut.
const RAW_MAX: usize = TEXT_MAX + 128;

/// Where a line was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One line of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When its first part was written.
    pub time: Timestamp,
    /// The time as written.
    pub time_text: String,
    /// Where to.
    pub stream: Stream,
    /// The text, with its newline unless the container is still writing it.
    pub text: Vec<u8>,
}

/// Makes lines out of bytes of a log file. Lines that are not in the form of the CRI are passed over.
#[derive(Debug, Default)]
pub struct Lines {
    raw: Vec<u8>,
    cut: bool,
    partial: [Option<Line>; 2],
}

impl Lines {
    /// Takes bytes of the file and calls `each` with every line that they complete.
    pub fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(Line)) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.keep(&rest[..end]);
            rest = &rest[end + 1..];
            let raw = std::mem::take(&mut self.raw);
            self.cut = false;
            if let Some(line) = self.join(&raw) {
                each(line);
            }
        }
        self.keep(rest);
    }

    /// The parts of lines that were not ended: what a killed container leaves.
    pub fn finish(&mut self) -> impl Iterator<Item = Line> {
        std::mem::take(&mut self.partial).into_iter().flatten()
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = RAW_MAX.saturating_sub(self.raw.len());
        self.cut |= bytes.len() > room;
        self.raw.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn join(&mut self, raw: &[u8]) -> Option<Line> {
        let (part, full) = parse(raw)?;
        let slot = &mut self.partial[usize::from(part.stream == Stream::Stderr)];
        let line = match slot {
            Some(line) => {
                line.text.extend_from_slice(&part.text);
                line
            }
            None => slot.insert(part),
        };
        if full {
            line.text.push(b'\n');
        }
        if full || line.text.len() >= TEXT_MAX { slot.take() } else { None }
    }
}

/// One line of the file: a part, and whether it ends a line.
fn parse(raw: &[u8]) -> Option<(Line, bool)> {
    let mut fields = raw.splitn(4, |byte| *byte == b' ');
    let (time, stream, tag) = (fields.next()?, fields.next()?, fields.next()?);
    let text = fields.next().unwrap_or_default().to_vec();
    let time_text = std::str::from_utf8(time).ok()?.to_owned();
    let time = time_text.parse().ok()?;
    let stream = match stream {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        _ => return None,
    };
    // Tags after the first are for later versions of the format.
    let full = match tag.split(|byte| *byte == b':').next()? {
        b"F" => true,
        b"P" => false,
        _ => return None,
    };
    Some((Line { time, time_text, stream, text }, full))
}
