//! Tables, and properties of any input in any cuts.

use std::num::{NonZeroU64, NonZeroUsize};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::event::Now;

const NOW: Now = Now { unix_ns: 1_795_222_923_123_456_789, mono_ms: 5_000 };
const PREFIX: &str = "2026-11-21T01:02:03.123456789Z stdout ";

fn later(by_ms: u64) -> Now {
    Now { unix_ns: NOW.unix_ns, mono_ms: NOW.mono_ms + by_ms }
}

fn framer(line_bytes_max: usize) -> Framer {
    Framer::new(Stream::Stdout, NonZeroUsize::new(line_bytes_max).unwrap())
}

/// A log line, read back.
#[derive(Debug, PartialEq, Eq)]
struct Line<'l> {
    stream: &'l str,
    tag: char,
    content: &'l [u8],
}

/// Reads a log as a strict reader would: every byte belongs to a whole line of the format.
fn read_back(mut log: &[u8]) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    while !log.is_empty() {
        let end = log.iter().position(|&byte| byte == b'\n').expect("every line ends");
        let mut fields = log[..end].splitn(4, |&byte| byte == b' ');
        let mut text = || std::str::from_utf8(fields.next().expect("four fields")).unwrap();
        let (time, stream, tag) = (text(), text(), text());
        assert_eq!(time.as_bytes(), stamp(NOW.unix_ns));
        assert!(tag == "F" || tag == "P", "tag {tag:?}");
        let content = fields.next().expect("four fields");
        lines.push(Line { stream, tag: tag.chars().next().unwrap(), content });
        log = &log[end + 1..];
    }
    lines
}

/// What a reader shows: parts joined, lines ended.
fn joined(log: &[u8]) -> Vec<u8> {
    read_back(log).iter().fold(Vec::new(), |mut text, line| {
        text.extend_from_slice(line.content);
        text.extend((line.tag == 'F').then_some(b'\n'));
        text
    })
}

/// What the container wrote, without the one `\r` before each `\n`.
fn expected_text(input: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut lines = input.split(|&byte| byte == b'\n').peekable();
    while let Some(line) = lines.next() {
        let ended = lines.peek().is_some();
        text.extend_from_slice(if ended { line.strip_suffix(b"\r").unwrap_or(line) } else { line });
        text.extend(ended.then_some(b'\n'));
    }
    text
}

fn log_of(reads: &[&[u8]], line_bytes_max: usize) -> Vec<u8> {
    let (mut framer, mut out) = (framer(line_bytes_max), Vec::new());
    for read in reads {
        framer.push(NOW, read, &mut out);
    }
    framer.finish(NOW, &mut out);
    out
}

#[test]
fn times_are_written_in_full() {
    let table: [(i64, &str); 8] = [
        (NOW.unix_ns, "2026-11-21T01:02:03.123456789Z"),
        (0, "1970-01-01T00:00:00.000000000Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (951_782_400_000_000_000, "2000-02-29T00:00:00.000000000Z"),
        (4_107_542_400_000_000_001, "2100-03-01T00:00:00.000000001Z"),
        (1_798_761_599_000_000_000, "2026-12-31T23:59:59.000000000Z"),
        (i64::MAX, "2262-04-11T23:47:16.854775807Z"),
        (i64::MIN, "1677-09-21T00:12:43.145224192Z"),
    ];
    for (unix_ns, text) in table {
        assert_eq!(std::str::from_utf8(&stamp(unix_ns)).unwrap(), text);
    }
}

#[test]
fn lines_are_framed_as_containerd_frames_them() {
    let table: [(&str, &[&str], &[&str]); 16] = [
        ("nothing", &[], &[]),
        ("a line", &["ab\n"], &["F ab"]),
        ("two lines of one read", &["a\nb\n"], &["F a", "F b"]),
        ("a line of two reads", &["a", "b\n"], &["F ab"]),
        ("an empty line", &["\n"], &["F "]),
        ("a return before the end", &["ab\r\n"], &["F ab"]),
        ("a return and the end in two reads", &["ab\r", "\n"], &["F ab"]),
        ("only the last return", &["ab\r\r\n"], &["F ab\r"]),
        ("returns in two reads", &["ab\r", "\r\n"], &["F ab\r"]),
        ("a return inside", &["a\rb\n"], &["F a\rb"]),
        ("a return at the very end", &["a\r"], &["P a\r"]),
        ("an unterminated rest", &["a\nb"], &["F a", "P b"]),
        ("a line of the maximum", &["1234\n"], &["F 1234"]),
        ("a return after the maximum", &["1234\r\n"], &["F 1234"]),
        ("a longer line", &["123456789\n"], &["P 1234", "P 5678", "F 9"]),
        ("a return that does not fit", &["1234\rx\n"], &["P 1234", "F \rx"]),
    ];
    for (what, reads, lines) in table {
        let reads: Vec<&[u8]> = reads.iter().map(|read| read.as_bytes()).collect();
        let text: String = lines.iter().map(|line| format!("{PREFIX}{line}\n")).collect();
        assert_eq!(String::from_utf8(log_of(&reads, 4)).unwrap(), text, "{what}");
    }
}

#[test]
fn standard_error_says_so() {
    let (mut framer, mut out) = (Framer::new(Stream::Stderr, NonZeroUsize::new(4).unwrap()), Vec::new());
    framer.push(NOW, b"x\n", &mut out);
    assert_eq!(read_back(&out), [Line { stream: "stderr", tag: 'F', content: b"x" }]);
}

#[test]
fn an_unfinished_line_is_written_when_it_is_old() {
    let (mut framer, mut out) = (framer(16), Vec::new());
    assert_eq!(framer.flush_at_ms(), None);
    framer.push(NOW, b"part", &mut out);
    framer.push(later(60), b"ial\r", &mut out);
    assert_eq!(framer.flush_at_ms(), Some(NOW.mono_ms + IDLE_FLUSH_MS), "the age of the oldest byte counts");
    framer.flush(later(IDLE_FLUSH_MS - 1), &mut out);
    assert_eq!(out, b"");
    framer.flush(later(IDLE_FLUSH_MS), &mut out);
    framer.flush(later(2 * IDLE_FLUSH_MS), &mut out);
    assert_eq!(framer.flush_at_ms(), None);
    framer.push(later(300), b"\n", &mut out);
    framer.finish(later(300), &mut out);
    assert_eq!(String::from_utf8(out).unwrap(), format!("{PREFIX}P partial\n{PREFIX}F \n"));
}

#[test]
fn rotated_names_never_collide_and_sort_by_age() {
    let second = "0.log.20261121-010203";
    let table: [(&str, &[&str], &str); 6] = [
        ("the first", &["0.log"], second),
        ("after an older one", &["0.log.20261121-010202.gz"], second),
        ("twice in a second", &[second], "0.log.20261121-010204"),
        ("after the clock was set back", &["0.log.20270101-000000"], "0.log.20270101-000001"),
        ("beside the compressed one", &["0.log.20261121-010203.gz"], "0.log.20261121-010204"),
        ("beside other logs", &["1.log.20261121-010203", "0.log.20261321-010203", "0.log.x"], second),
    ];
    for (what, present, name) in table {
        assert_eq!(rotated_name("0.log", NOW.unix_ns, present.iter().copied()), name, "{what}");
    }
}

#[test]
fn the_oldest_logs_beyond_the_limit_go() {
    let present = [
        "0.log",
        "0.log.20261121-010203",
        "0.log.20261121-010201.gz",
        "0.log.20261121-010202",
        "0.log.20261121-010202.gz",
        "0.log.20261121-010202.tmp",
        "0.log.backup",
        "0.log.20260230-000000",
        "1.log.20200101-000000",
    ];
    let all = |seconds: &[&str]| -> Vec<String> {
        let names =
            |second: &&str| ["", ".tmp", ".gz"].map(|form| format!("0.log.20261121-0102{second}{form}"));
        seconds.iter().flat_map(names).collect()
    };
    let table: [(usize, &[&str]); 5] =
        [(5, &[]), (4, &[]), (3, &["01"]), (2, &["01", "02"]), (0, &["01", "02", "03"])];
    for (files_max, gone) in table {
        assert_eq!(excess("0.log", files_max, present), all(gone), "with {files_max} files");
    }
}

/// `-` removes, `+` compresses.
fn compressed(present: &[&str]) -> Vec<String> {
    let shown = |step| match step {
        Step::Remove(name) => format!("-{name}"),
        Step::Compress(Names { plain, temporary, compressed }) => {
            assert_eq!([temporary, compressed], [format!("{plain}.tmp"), format!("{plain}.gz")]);
            format!("+{plain}")
        }
    };
    compression("0.log", present.iter().copied()).into_iter().map(shown).collect()
}

#[test]
fn all_rotated_logs_but_the_newest_are_compressed() {
    const OLD: &str = "0.log.20261121-010201";
    const MIDDLE: &str = "0.log.20261121-010202";
    const NEW: &str = "0.log.20261121-010203";
    const LATER: &str = "0.log.20261121-010204.tmp";
    let (old_gz, middle_gz, new_gz) = (format!("{OLD}.gz"), format!("{MIDDLE}.gz"), format!("{NEW}.gz"));
    let (old_tmp, middle_tmp) = (format!("{OLD}.tmp"), format!("{MIDDLE}.tmp"));
    let table: &[(&str, &[&str], &[&str])] = &[
        ("never rotated", &["0.log"], &[]),
        ("rotated once", &["0.log", NEW], &[]),
        ("rotated again", &["0.log", NEW, &old_gz], &[]),
        (
            "what was not compressed, oldest first",
            &[NEW, MIDDLE, "0.log", OLD],
            &["+0.log.20261121-010201", "+0.log.20261121-010202"],
        ),
        ("half a copy", &[OLD, &old_tmp, NEW], &["-0.log.20261121-010201.tmp", "+0.log.20261121-010201"]),
        ("half a copy of nothing", &[&old_tmp, NEW], &["-0.log.20261121-010201.tmp"]),
        (
            "half a copy is not the newest log",
            &[OLD, NEW, LATER],
            &["-0.log.20261121-010204.tmp", "+0.log.20261121-010201"],
        ),
        ("a copy that is whole", &[OLD, &old_gz, NEW], &["-0.log.20261121-010201"]),
        ("a copy of the newest that is whole", &[&old_gz, NEW, &new_gz], &["-0.log.20261121-010203"]),
        (
            "everything at once, leftovers first",
            &[OLD, MIDDLE, &middle_gz, &middle_tmp, NEW],
            &["-0.log.20261121-010202.tmp", "-0.log.20261121-010202", "+0.log.20261121-010201"],
        ),
        (
            "files of others",
            &[
                NEW,
                "0.log.20261121-010202.gz.tmp",
                "0.log.20261121-010202.tmp.gz",
                "0.log.20261121-010202.bak",
                "0.log.20261121-010202 ",
                "0.log.20260230-000000",
                "0.log.20260230-000000.tmp",
                "0.log.backup",
                "0.log.tmp",
                "0.log.gz",
                "10.log.20261121-010202",
                "1.log.20261121-010202.tmp",
                "0.log20261121-010202",
            ],
            &[],
        ),
    ];
    for (what, present, steps) in table {
        assert_eq!(compressed(present), *steps, "{what}");
    }
}

#[test]
fn rotated_logs_are_read_oldest_first_and_once() {
    let present = [
        "0.log",
        "0.log.20261121-010203",
        "0.log.20261121-010202.gz",
        "0.log.20261121-010202",
        "0.log.20261121-010201.gz",
        "0.log.20261121-010200.tmp",
        "0.log.20261121-010201.tmp",
        "1.log.20261121-010201",
    ];
    let plain: Vec<String> = rotated("0.log", present).into_iter().map(|names| names.plain).collect();
    assert_eq!(plain, ["0.log.20261121-010201", "0.log.20261121-010202", "0.log.20261121-010203"]);
}

#[test]
fn a_full_file_is_rotated_once() {
    let mut sink = Sink::new(90, NonZeroU64::new(100));
    sink.wrote(9);
    assert!(!sink.is_full());
    sink.wrote(1);
    assert!(sink.is_full());
    sink.opened(0);
    assert!(!sink.is_full());
    let mut unlimited = Sink::new(0, None);
    unlimited.wrote(u64::MAX / 2);
    assert!(!unlimited.is_full());
}

#[test]
fn a_full_disk_costs_lines_and_never_time() {
    let mut sink = Sink::new(0, NonZeroU64::new(100));
    assert_eq!(sink.offer(NOW, 40), Attempt::Write);
    sink.failed(NOW, 10, 30);
    sink.torn();
    assert_eq!(sink.offer(later(1), 7), Attempt::Drop);
    assert_eq!(sink.dropped_bytes(), 37);
    assert_eq!(sink.offer(later(REOPEN_AFTER_MS), 8), Attempt::Reopen);
    sink.failed(later(REOPEN_AFTER_MS), 0, 8);
    assert_eq!(sink.offer(later(REOPEN_AFTER_MS + 1), 1), Attempt::Drop);
    assert_eq!(sink.offer(later(2 * REOPEN_AFTER_MS), 9), Attempt::Reopen);
    sink.opened(10);
    assert_eq!(sink.offer(later(2 * REOPEN_AFTER_MS), 9), Attempt::WriteOnNewLine, "the cut line is ended");
    sink.wrote(10);
    assert_eq!(sink.offer(later(2 * REOPEN_AFTER_MS), 9), Attempt::Write);
    assert_eq!(sink.dropped_bytes(), 46);
}

#[test]
fn a_cut_line_in_a_file_that_was_moved_is_no_concern() {
    let mut sink = Sink::unopened(NOW, None);
    assert_eq!(sink.offer(NOW, 5), Attempt::Drop);
    sink.opened(0);
    sink.failed(NOW, 3, 2);
    sink.torn();
    sink.opened(0);
    assert_eq!(sink.offer(NOW, 5), Attempt::Write);
    assert_eq!(sink.dropped_bytes(), 7);
}

/// Input with many ends of lines and returns, and cuts in it.
fn input_and_cuts() -> impl Strategy<Value = (Vec<u8>, Vec<usize>)> {
    let byte = prop_oneof![3 => Just(b'\n'), 3 => Just(b'\r'), 6 => any::<u8>()];
    (vec(byte, 0..120), vec(any::<usize>(), 0..12))
}

fn split<'b>(bytes: &'b [u8], cuts: &[usize]) -> Vec<&'b [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

proptest! {
    #[test]
    fn nothing_is_lost_and_no_cut_shows((input, cuts) in input_and_cuts(), line_bytes_max in 1_usize..20) {
        let log = log_of(&split(&input, &cuts), line_bytes_max);
        prop_assert_eq!(&log, &log_of(&[&input], line_bytes_max));
        prop_assert_eq!(joined(&log), expected_text(&input));
    }

    #[test]
    fn flushes_anywhere_change_parts_only((input, cuts) in input_and_cuts(), line_bytes_max in 1_usize..20) {
        let (mut framer, mut out) = (framer(line_bytes_max), Vec::new());
        for (at, read) in split(&input, &cuts).into_iter().enumerate() {
            let now = later(u64::try_from(at).unwrap() * 70);
            framer.push(now, read, &mut out);
            framer.flush(later(u64::try_from(at).unwrap() * 70 + 65), &mut out);
        }
        framer.finish(NOW, &mut out);
        prop_assert_eq!(joined(&out), expected_text(&input));
    }

    #[test]
    fn lines_and_buffers_are_bounded((input, cuts) in input_and_cuts(), line_bytes_max in 1_usize..20) {
        let mut framer = framer(line_bytes_max);
        for read in split(&input, &cuts) {
            let mut out = Vec::new();
            framer.push(NOW, read, &mut out);
            prop_assert!(out.len() <= (read.len() + 1) * EXPANSION_MAX + line_bytes_max);
            for line in read_back(&out) {
                prop_assert!(line.content.len() <= line_bytes_max);
                prop_assert!(line.tag == 'F' || line.content.len() == line_bytes_max);
            }
        }
    }

    #[test]
    fn seconds_survive_their_name(unix_s in -9_000_000_000_i64..9_000_000_000) {
        prop_assert_eq!(time::parse_suffix(&time::suffix(unix_s)), Some(unix_s));
    }
}
