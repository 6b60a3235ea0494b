use std::{fs, os::unix::fs::symlink, path::Path};

use tempfile::TempDir;

use super::*;

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
    format!("{:?} {} {:?}", line.stream, line.time_text, String::from_utf8_lossy(&line.text))
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

    fn open(&self, path: &Path) -> Result<LogFile, LogFileError> {
        LogFile::open(self.root.path(), path)
    }
}

fn texts(read: impl FnOnce(&mut dyn FnMut(Line))) -> String {
    let mut out = String::new();
    read(&mut |line| out.push_str(&String::from_utf8_lossy(&line.text)));
    out
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
        (Select { since, tail: Some(1), reading: Reading::On }, "2\n"),
    ] {
        let mut file = logs.open(&logs.path()).unwrap();
        assert_eq!(texts(|each| file.read_selected(select, each).unwrap()), expected);
    }
}

#[test]
fn a_reader_follows_a_rotation_and_misses_nothing() {
    let logs = Logs::new(&format!("{T1} stdout F 1\n"));
    let mut file = logs.open(&logs.path()).unwrap();
    assert_eq!(texts(|each| file.read_on(each).unwrap()), "1\n");
    let append = |path: &Path, text: &str| {
        fs::write(path, fs::read_to_string(path).unwrap_or_default() + text).unwrap();
    };
    append(&logs.path(), &format!("{T2} stdout P 2"));
    append(&logs.path(), &format!("a\n{T2} stdout F b\n"));
    fs::rename(logs.path(), logs.root.path().join("pod/c/0.log.20261121-070002")).unwrap();
    assert_eq!(texts(|each| file.read_on(each).unwrap()), "2ab\n");
    append(&logs.path(), &format!("{T3} stdout F 3\n"));
    assert_eq!(texts(|each| file.read_on(each).unwrap()), "3\n");
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
        let error = logs.open(&path).unwrap_err();
        assert!(matches!(error, LogFileError::Astray(_)), "{path:?}: {error:?}");
    }
    // A link that takes the place of the file while it is read ends the reading.
    let mut file = logs.open(&logs.path()).unwrap();
    fs::remove_file(logs.path()).unwrap();
    symlink(&secret, logs.path()).unwrap();
    assert!(matches!(file.read_on(|line| panic!("{line:?}")), Err(LogFileError::Astray(_))));
}

#[test]
fn a_log_that_is_not_there_says_so() {
    let logs = Logs::new("");
    let path = logs.root.path().join("pod/c/7.log");
    assert!(matches!(logs.open(&path), Err(LogFileError::Absent(_))));
}
