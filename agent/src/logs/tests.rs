use std::{fs, io::Write, os::unix::fs::symlink, path::Path};

use flate2::{Compression, write::GzEncoder};
use futures::FutureExt as _;
use tempfile::TempDir;

use super::*;

mod ends;

const T1: &str = "2026-11-21T07:00:01.000000000Z";
const T2: &str = "2026-11-21T07:00:02.000000000Z";
const T3: &str = "2026-11-21T07:00:03.000000000+00:00";

fn joined(pieces: &[&str]) -> Vec<String> {
    let mut lines = Lines::default();
    let mut out = Vec::new();
    for piece in pieces {
        lines.feed(piece.as_bytes(), |line| out.push(shown(&line)));
    }
    out.extend(lines.finish().map(|line| shown(&line)));
    out
}

fn shown(line: &Line) -> String {
    format!("{:?} {} {:?}", line.stream, line.time, String::from_utf8_lossy(&line.text))
}

#[test]
fn parts_are_joined_per_stream() {
    let log = format!(
        "{T1} stdout P he\n{T2} stderr P oo\n{T2} stdout F llo\n{T3} stderr F ps\n{T3} stdout F \n{T3} stdout P rest\n"
    );
    let expected = [
        format!("Stdout {T1} \"hello\\n\""),
        format!("Stderr {T2} \"oops\\n\""),
        format!("Stdout {T3} \"\\n\""),
        format!("Stdout {T3} \"rest\""),
    ];
    assert_eq!(joined(&[&log]), expected);
    let bytes: Vec<String> = log.chars().map(String::from).collect();
    let single: Vec<&str> = bytes.iter().map(String::as_str).collect();
    assert_eq!(joined(&single), expected);
}

#[test]
fn lines_in_other_forms_are_passed_over() {
    for line in
        ["", "garbage", "2026 stdout F x", &format!("{T1} stdin F x"), &format!("{T1} stdout X x"), T1]
    {
        assert_eq!(
            joined(&[&format!("{line}\n{T2} stdout F:extra ok\n")]),
            [format!("Stdout {T2} \"ok\\n\"")]
        );
    }
}

#[test]
fn a_line_without_end_is_given_in_pieces() {
    let part = "x".repeat(16 << 10);
    let log = format!("{T1} stdout P {part}\n").repeat(100);
    let mut lengths = Vec::new();
    let mut lines = Lines::default();
    lines.feed(log.as_bytes(), |line| lengths.push(line.text.len()));
    assert_eq!(lengths, [TEXT_MAX]);
}

struct Logs {
    root: TempDir,
}

impl Logs {
    fn new(content: &str) -> Self {
        let root = TempDir::new().unwrap();
        fs::create_dir_all(root.path().join("pod/c")).unwrap();
        fs::write(root.path().join("pod/c/0.log"), content).unwrap();
        Self { root }
    }

    fn path(&self) -> std::path::PathBuf {
        self.root.path().join("pod/c/0.log")
    }

    fn open(&self, path: &Path) -> Result<Reader, LogFileError> {
        self.select(path, Select::default())
    }

    fn select(&self, path: &Path, select: Select) -> Result<Reader, LogFileError> {
        LogFile::open(self.root.path(), path, select).map(|file| Reader { file, lines: Lines::default() })
    }

    /// What is selected of the log, with lines that were not ended.
    fn selected(&self, select: Select) -> String {
        let mut reader = self.select(&self.path(), select).unwrap();
        let read = reader.read() + &reader.finish();
        assert!(reader.file.take_unreadable().is_empty());
        read
    }
}

struct Reader {
    file: LogFile,
    lines: Lines,
}

impl Reader {
    /// Lines that have ended since the last time.
    fn read(&mut self) -> String {
        self.try_read().unwrap()
    }

    fn try_read(&mut self) -> Result<String, LogFileError> {
        let mut read = Vec::new();
        self.file.read_to_end(|record| {
            read.extend(self.lines.take(record).into_iter().flat_map(|line| line.text));
        })?;
        Ok(String::from_utf8_lossy(&read).into_owned())
    }

    fn finish(&mut self) -> String {
        self.lines.finish().map(|line| String::from_utf8_lossy(&line.text).into_owned()).collect()
    }
}

#[test]
fn since_and_tail_select() {
    let logs = Logs::new(&format!("{T1} stdout F 1\n{T2} stdout F 2\n{T3} stdout P 3\n"));
    let since = Some(T2.parse().unwrap());
    for (select, expected) in [
        (Select::default(), "1\n2\n3"),
        (Select { since, ..Select::default() }, "2\n3"),
        (Select { tail: Some(1), ..Select::default() }, "3"),
        (Select { tail: Some(0), ..Select::default() }, ""),
        (Select { tail: Some(9), ..Select::default() }, "1\n2\n3"),
        (Select { since, tail: Some(2) }, "2\n3"),
    ] {
        assert_eq!(logs.selected(select), expected);
    }
}

#[test]
fn a_reader_follows_a_rotation_and_misses_nothing() {
    let logs = Logs::new(&format!("{T1} stdout F 1\n"));
    let mut file = logs.open(&logs.path()).unwrap();
    assert_eq!(file.read(), "1\n");
    let append = |path: &Path, text: &str| {
        fs::write(path, fs::read_to_string(path).unwrap_or_default() + text).unwrap();
    };
    append(&logs.path(), &format!("{T2} stdout P 2"));
    append(&logs.path(), &format!("a\n{T2} stdout F b\n"));
    fs::rename(logs.path(), logs.root.path().join("pod/c/0.log.20261121-070002")).unwrap();
    assert_eq!(file.read(), "2ab\n");
    append(&logs.path(), &format!("{T3} stdout F 3\n"));
    assert_eq!(file.read(), "3\n");
}

fn compress(path: &Path) {
    let mut encoder =
        GzEncoder::new(fs::File::create(format!("{}.gz", path.display())).unwrap(), Compression::fast());
    encoder.write_all(&fs::read(path).unwrap()).unwrap();
    encoder.finish().unwrap();
    fs::remove_file(path).unwrap();
}

impl Logs {
    /// A file into which the log was rotated in this second of the minute.
    fn rotated(&self, second: u32) -> std::path::PathBuf {
        self.root.path().join(format!("pod/c/0.log.20261121-0700{second:02}"))
    }

    /// Writes a line for each number.
    fn say(&self, numbers: std::ops::Range<u32>) {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(self.path()).unwrap();
        for number in numbers {
            writeln!(file, "2026-11-21T07:00:{number:02}.000000000Z stdout F {number}").unwrap();
        }
    }

    fn rotate(&self, second: u32) {
        fs::rename(self.path(), self.rotated(second)).unwrap();
    }
}

fn numbers(range: std::ops::Range<u32>) -> String {
    range.map(|number| format!("{number}\n")).collect()
}

#[test]
fn a_log_is_read_over_all_files_that_it_was_rotated_into() {
    let logs = Logs::new("");
    for second in [10, 20, 30] {
        logs.say(second - 10..second);
        logs.rotate(second);
    }
    compress(&logs.rotated(10));
    compress(&logs.rotated(20));
    logs.say(30..40);
    let others = logs.root.path().join("pod/c");
    for name in
        ["0.log.20261121-070005.tmp", "0.log.20261121-070005.bak", "1.log.20261121-070005", "0.log.x.gz"]
    {
        fs::write(others.join(name), format!("{T1} stdout F of another\n")).unwrap();
    }
    let since = |second: u32| Some(format!("2026-11-21T07:00:{second:02}Z").parse().unwrap());
    for (select, expected) in [
        (Select::default(), numbers(0..40)),
        (Select { since: since(15), ..Select::default() }, numbers(15..40)),
        (Select { tail: Some(3), ..Select::default() }, numbers(37..40)),
        (Select { tail: Some(10), ..Select::default() }, numbers(30..40)),
        (Select { tail: Some(11), ..Select::default() }, numbers(29..40)),
        (Select { tail: Some(35), ..Select::default() }, numbers(5..40)),
        (Select { tail: Some(99), ..Select::default() }, numbers(0..40)),
        (Select { since: since(38), tail: Some(30) }, numbers(38..40)),
        (Select { tail: Some(0), ..Select::default() }, String::new()),
    ] {
        assert_eq!(logs.selected(select), expected, "{select:?}");
    }
}

#[test]
fn a_line_goes_on_in_the_next_file() {
    let logs = Logs::new(&format!("{T1} stdout P a\n{T1} stderr P x\n"));
    logs.rotate(1);
    compress(&logs.rotated(1));
    fs::write(logs.path(), format!("{T2} stdout F b\n{T2} stderr F y\n")).unwrap();
    logs.rotate(2);
    fs::write(logs.path(), format!("{T3} stdout F c\n")).unwrap();
    for (tail, expected) in
        [(None, "ab\nxy\nc\n"), (Some(3), "ab\nxy\nc\n"), (Some(2), "xy\nc\n"), (Some(1), "c\n")]
    {
        assert_eq!(logs.selected(Select { tail, ..Select::default() }), expected, "{tail:?}");
    }
}

#[test]
fn a_file_in_both_forms_is_read_once() {
    let logs = Logs::new("");
    logs.say(0..5);
    logs.rotate(5);
    let written = fs::read(logs.rotated(5)).unwrap();
    compress(&logs.rotated(5));
    fs::write(logs.rotated(5), written).unwrap();
    logs.say(5..10);
    assert_eq!(logs.selected(Select::default()), numbers(0..10));
}

/// What happens to rotated files while nobody reads.
type Meanwhile<'a> = (&'a str, &'a dyn Fn(&Logs));

#[test]
fn a_reader_that_was_away_for_several_rotations_misses_nothing() {
    let compress_two = |logs: &Logs| [9, 12].iter().for_each(|second| compress(&logs.rotated(*second)));
    let remove_one = |logs: &Logs| fs::remove_file(logs.rotated(9)).unwrap();
    let meanwhile: [Meanwhile<'_>; 3] =
        [("compressed", &compress_two), ("not compressed", &|_: &Logs| {}), ("gone", &remove_one)];
    for (what, happen) in meanwhile {
        let logs = Logs::new("");
        logs.say(0..3);
        logs.rotate(3);
        compress(&logs.rotated(3));
        logs.say(3..6);
        let mut file = logs.open(&logs.path()).unwrap();
        assert_eq!(file.read(), numbers(0..6));
        logs.say(6..9);
        for second in [9, 12, 15] {
            logs.rotate(second);
            logs.say(second..second + 3);
        }
        happen(&logs);
        assert_eq!(file.read(), numbers(6..18), "{what}");
        logs.say(18..20);
        assert_eq!(file.read(), numbers(18..20), "{what}");
    }
}

#[test]
fn a_log_that_is_rotated_while_it_is_opened_is_read_once() {
    let logs = Logs::new("");
    logs.say(0..3);
    logs.rotate(3);
    logs.say(3..6);
    let place = place::Place::new(logs.root.path(), &logs.path()).unwrap();
    let opened = place.open().unwrap();
    logs.rotate(6);
    assert_eq!(place.position(&opened, &place.rotated().unwrap()).unwrap(), Some(1));
    compress(&logs.rotated(6));
    assert_eq!(place.position(&opened, &place.rotated().unwrap()).unwrap(), Some(1));
    fs::remove_file(format!("{}.gz", logs.rotated(6).display())).unwrap();
    assert_eq!(place.position(&opened, &place.rotated().unwrap()).unwrap(), None);
}

#[test]
fn a_damaged_file_is_told_and_the_others_are_read() {
    let logs = Logs::new("");
    for second in [2, 4, 6] {
        logs.say(second - 2..second);
        logs.rotate(second);
        compress(&logs.rotated(second));
    }
    logs.say(6..8);
    let damaged = format!("{}.gz", logs.rotated(4).display());
    let bytes = fs::read(&damaged).unwrap();
    fs::write(&damaged, &bytes[..bytes.len() / 2]).unwrap();
    fs::remove_file(format!("{}.gz", logs.rotated(2).display())).unwrap();
    symlink("0.log.20261121-070006.gz", format!("{}.gz", logs.rotated(2).display())).unwrap();
    for tail in [None, Some(100)] {
        let mut file = logs.select(&logs.path(), Select { tail, ..Select::default() }).unwrap();
        let read = file.read();
        assert!(read.ends_with(&numbers(4..8)) && !read.contains("0\n"), "{read:?}");
        let told = file.file.take_unreadable();
        assert!(matches!(&told[..], [LogFileError::Astray(_), LogFileError::Io { .. }]), "{told:?}");
    }
}

#[test]
fn cve_2026_53489_and_cve_2025_0750_logs_are_not_read_through_links() {
    let logs = Logs::new("");
    let outside = TempDir::new().unwrap();
    let secret = outside.path().join("shadow");
    fs::write(&secret, format!("{T1} stdout F secret\n")).unwrap();
    let pod = logs.root.path().join("pod");
    symlink(&secret, pod.join("c/1.log")).unwrap();
    symlink(outside.path(), pod.join("d")).unwrap();
    symlink("../c/0.log", pod.join("c/2.log")).unwrap();
    let dots = format!("../{}/shadow", outside.path().file_name().unwrap().to_str().unwrap());
    for path in [
        pod.join("c/1.log"),
        pod.join("d/shadow"),
        pod.join("c/2.log"),
        secret.clone(),
        dots.into(),
        pod.join("c"),
    ] {
        let error = logs.open(&path).map(|_opened| ()).unwrap_err();
        assert!(matches!(error, LogFileError::Astray(_)), "{path:?}: {error:?}");
    }
    // A link that takes the place of the file while it is read ends the reading.
    let mut file = logs.open(&logs.path()).unwrap();
    fs::remove_file(logs.path()).unwrap();
    symlink(&secret, logs.path()).unwrap();
    assert!(matches!(file.try_read(), Err(LogFileError::Astray(_))));
}

#[test]
fn a_log_that_is_not_there_says_so() {
    let logs = Logs::new("");
    let path = logs.root.path().join("pod/c/7.log");
    assert!(matches!(logs.open(&path), Err(LogFileError::Absent(_))));
}

#[tokio::test]
async fn a_change_is_told_once_it_was_watched_for() {
    let (logs, watcher) = (Logs::new(""), Watcher::default());
    let watch = || watcher.watch(logs.root.path(), &logs.path());
    let changes: [&dyn Fn(); 3] = [&|| logs.say(0..2), &|| logs.rotate(2), &|| {
        fs::remove_dir_all(logs.root.path().join("pod")).unwrap();
    }];
    for change in changes {
        let mut watch = watch().unwrap();
        change();
        watch.next().await;
    }
    assert!(matches!(watch(), Err(LogFileError::Absent(_))));
    symlink("/etc", logs.root.path().join("pod")).unwrap();
    let passwd = watcher.watch(logs.root.path(), &logs.root.path().join("pod/passwd"));
    assert!(matches!(passwd, Err(LogFileError::Astray(_))));
}

#[tokio::test]
async fn however_many_wait_there_is_one_inotify_and_each_hears_of_its_own() {
    let watcher = Watcher::default();
    let logs: Vec<Logs> = (0..40).map(|_| Logs::new("")).collect();
    let watch = |logs: &Logs| watcher.watch(logs.root.path(), &logs.path()).unwrap();
    let own = || {
        let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
        fds.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.to_str() == Some("anon_inode:inotify")))
            .count()
    };
    // Others in this process have theirs.
    let before = own();
    let mut waiting: Vec<_> = (0..400).map(|number| watch(&logs[number % 40])).collect();
    assert!(own() < before + 100, "{before} {}", own());
    assert_eq!(watcher.directories(), 40);
    logs[7].say(0..1);
    for waits in waiting.iter_mut().skip(7).step_by(40) {
        waits.next().await;
    }
    logs[8].say(0..1);
    waiting[8].next().await;
    let told = waiting.iter_mut().enumerate().filter(|(number, _)| number % 40 != 8);
    assert!(told.map(|(_, waits)| waits.next().now_or_never()).all(|told| told.is_none()));
    waiting.truncate(1);
    assert_eq!(watcher.directories(), 1);
    logs[0].say(0..1);
    waiting[0].next().await;
    drop(waiting);
    assert_eq!(watcher.directories(), 0);
}
