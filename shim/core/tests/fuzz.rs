//! The log framer under mutated output, in any pieces, with flushes, rotations and failing disks at any point: nothing is
//! lost that is not counted, and every file has whole lines only.

#![expect(clippy::unwrap_used, reason = "a failure here is the failure of the test")]

use std::num::{NonZeroU64, NonZeroUsize};

use berth_fuzz::{Corpus, Random, cuts, mutate, seeds};
use berth_shim_core::Now;
use berth_shim_core::log::{
    Attempt, EXPANSION_MAX, Framer, IDLE_FLUSH_MS, Names, STAMP_LEN, Sink, Step, Stream, compression, excess,
    rotated_name,
};

/// Longest lines of a log.
const LINES: [usize; 5] = [1, 2, 16, 64, 16 << 10];

/// A log line, read back as a strict reader would.
struct Line<'l> {
    full: bool,
    content: &'l [u8],
}

fn lines(file: &[u8]) -> Vec<Line<'_>> {
    assert!(file.is_empty() || file.ends_with(b"\n"), "a file ends with a line");
    let text = file.strip_suffix(b"\n").unwrap_or(file);
    let parts = text.split(|byte| *byte == b'\n').filter(|_| !file.is_empty());
    parts
        .map(|line| {
            let (head, content) = line.split_at_checked(STAMP_LEN + 10).expect("a whole prefix");
            let (stamp, rest) = head.split_at(STAMP_LEN);
            assert!(stamp.ends_with(b"Z") && stamp.starts_with(b"1970-01-01T"), "a time");
            assert!(rest == b" stderr F " || rest == b" stderr P ", "a stream and a tag");
            Line { full: rest.ends_with(b"F "), content }
        })
        .collect()
}

/// What a reader shows: parts joined, lines ended.
fn shown(file: &[u8]) -> Vec<u8> {
    lines(file).iter().fold(Vec::new(), |mut text, line| {
        text.extend_from_slice(line.content);
        text.extend(line.full.then_some(b'\n'));
        text
    })
}

/// What was written, without one `\r` before each `\n`.
fn expected(input: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(input.len());
    for (at, byte) in input.iter().enumerate() {
        if !(*byte == b'\r' && input.get(at + 1) == Some(&b'\n')) {
            text.push(*byte);
        }
    }
    text
}

/// Feeds an input in pieces; `take` gets the lines of each, and may take them away.
fn frame(
    random: &mut Random,
    input: &[u8],
    line_bytes_max: usize,
    mut take: impl FnMut(&mut Random, Now, &mut Vec<u8>),
) {
    let mut framer = Framer::new(Stream::Stderr, NonZeroUsize::new(line_bytes_max).unwrap());
    let mut now = Now { unix_ns: 0, mono_ms: 0 };
    for piece in cuts(random, input) {
        let mut out = Vec::new();
        framer.push(now, piece, &mut out);
        assert!(out.len() <= (piece.len() + 1) * EXPANSION_MAX + line_bytes_max, "bounded by what was read");
        take(random, now, &mut out);
        if random.once_in(4) {
            now.mono_ms += u64::try_from(random.below(150)).unwrap();
            let due = framer.flush_at_ms().is_some_and(|at| at <= now.mono_ms);
            let mut out = Vec::new();
            framer.flush(now, &mut out);
            assert_eq!(out.is_empty(), !due, "a flush writes when it said that it would");
            take(random, now, &mut out);
        }
    }
    let mut out = Vec::new();
    framer.finish(now, &mut out);
    framer.finish(now, &mut out);
    take(random, now, &mut out);
    assert_eq!(framer.flush_at_ms(), None, "nothing is left");
}

#[test]
fn every_byte_is_in_the_log_once() {
    let corpus = Corpus::load("log");
    seeds(20_000, |seed| {
        let mut random = Random::new(seed);
        let input = mutate(&mut random, &corpus);
        let line_bytes_max = *random.pick(&LINES);
        let mut log = Vec::new();
        frame(&mut random, &input, line_bytes_max, |_, _, out| log.append(out));
        assert!(lines(&log).iter().all(|line| line.content.len() <= line_bytes_max));
        assert_eq!(shown(&log), expected(&input));
    });
}

#[test]
fn parts_are_full_unless_they_were_waited_for() {
    let corpus = Corpus::load("log");
    seeds(5_000, |seed| {
        let mut random = Random::new(seed);
        let input = mutate(&mut random, &corpus);
        let line_bytes_max = *random.pick(&LINES);
        let mut framer = Framer::new(Stream::Stderr, NonZeroUsize::new(line_bytes_max).unwrap());
        let now = Now { unix_ns: 0, mono_ms: 0 };
        let mut log = Vec::new();
        for piece in cuts(&mut random, &input) {
            framer.push(now, piece, &mut log);
            framer.flush(Now { mono_ms: IDLE_FLUSH_MS - 1, ..now }, &mut log);
        }
        for line in lines(&log) {
            assert!(line.full || line.content.len() == line_bytes_max);
        }
    });
}

/// A directory of log files, the live one last, and a disk that may fail.
struct Disk {
    files: Vec<Vec<u8>>,
    sink: Sink,
    lost: u64,
}

impl Disk {
    /// What the shell does with a batch, with failures where `random` has them.
    fn write(&mut self, random: &mut Random, now: Now, batch: &[u8]) {
        for _attempt in 0..2 {
            let len = u64::try_from(batch.len()).unwrap();
            match self.sink.offer(now, len) {
                Attempt::Write => return self.try_write(random, now, batch),
                Attempt::WriteOnNewLine => panic!("only whole lines stay"),
                Attempt::Drop => return self.lost += len,
                Attempt::Reopen if random.once_in(2) => {
                    self.lost += len;
                    return self.sink.failed(now, 0, len);
                }
                Attempt::Reopen => self.sink.opened(u64::try_from(self.files.last().unwrap().len()).unwrap()),
            }
        }
        panic!("a file that was opened takes its batch");
    }

    fn try_write(&mut self, random: &mut Random, now: Now, batch: &[u8]) {
        let file = self.files.last_mut().unwrap();
        let len = |bytes: &[u8]| u64::try_from(bytes.len()).unwrap();
        if random.once_in(8) {
            let there = &batch[..random.below(batch.len() + 1)];
            let whole = there.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let (kept, lost) = batch.split_at(whole);
            file.extend_from_slice(kept);
            self.lost += len(lost);
            self.sink.failed(now, len(kept), len(lost));
            return;
        }
        file.extend_from_slice(batch);
        self.sink.wrote(len(batch));
        if self.sink.is_full() {
            assert!(len(file) >= 100);
            self.files.push(Vec::new());
            self.sink.opened(0);
        }
    }
}

#[test]
fn rotation_and_failing_disks_lose_only_what_is_counted() {
    let corpus = Corpus::load("log");
    seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let input = mutate(&mut random, &corpus);
        let line_bytes_max = *random.pick(&LINES);
        let sink = Sink::new(0, NonZeroU64::new(100));
        let mut disk = Disk { files: vec![Vec::new()], sink, lost: 0 };
        let mut said = 0;
        frame(&mut random, &input, line_bytes_max, |random, now, out| {
            if !out.is_empty() {
                said += out.len();
                disk.write(random, now, out);
            }
        });
        let kept: usize = disk.files.iter().map(Vec::len).sum();
        let all_lines: usize = disk.files.iter().map(|file| lines(file).len()).sum();
        assert!(disk.files.iter().rev().skip(1).all(|file| file.len() >= 100), "no file is rotated early");
        assert!(all_lines * (STAMP_LEN + 11) <= kept);
        assert_eq!(disk.sink.dropped_bytes(), disk.lost, "what is lost is counted");
        assert_eq!(kept + usize::try_from(disk.lost).unwrap(), said, "and nothing else is lost");
        if disk.lost == 0 {
            assert_eq!(shown(&disk.files.concat()), expected(&input));
        }
    });
}

#[test]
fn names_of_rotated_logs_are_new_and_only_they_are_removed() {
    const NAMES: [&str; 10] = [
        "0.log",
        "0.log.20261121-010203",
        "0.log.20261121-010203.gz",
        "0.log.20261121-010204",
        "0.log.99991231-235959",
        "0.log.20261121-010203.tmp",
        "0.log.",
        "0.log.x",
        "1.log.20261121-010203",
        "0.log.20260230-000000",
    ];
    seeds(5_000, |seed| {
        let mut random = Random::new(seed);
        let present: Vec<&str> = NAMES.into_iter().filter(|_| random.once_in(2)).collect();
        let unix_ns = i64::try_from(random.any() >> 1).unwrap();
        let new = rotated_name("0.log", unix_ns, present.iter().copied());
        assert!(!present.contains(&new.as_str()) && new.starts_with("0.log."), "{new}");
        let after: Vec<&str> = present.iter().copied().chain([new.as_str()]).collect();
        let gone = excess("0.log", 2, after.iter().copied());
        let steps = compression("0.log", after.iter().copied()).into_iter();
        let changed = steps.map(|step| match step {
            Step::Remove(name) => name,
            Step::Compress(Names { plain, .. }) => plain,
        });
        let touched: Vec<String> = gone.into_iter().chain(changed).collect();
        assert!(!touched.contains(&new), "the newest stays: {new} of {after:?}");
        for name in touched {
            assert!(["0.log.2026", "0.log.9999"].iter().any(|ours| name.starts_with(ours)), "{name}");
            assert!(!name.starts_with("0.log.20260230"), "{name}");
        }
    });
}
