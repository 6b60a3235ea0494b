//! Where the end of a log begins.

use super::*;

/// A log of many blocks, of which every line says its number.
fn long(lines: u32) -> (String, Vec<String>) {
    let texts: Vec<_> =
        (0..lines).map(|number| format!("{number} {}\n", "x".repeat((number % 211) as usize))).collect();
    let stamp = |number: u32| {
        format!("2026-11-21T{:02}:{:02}:{:02}.000000000Z", number / 3600, number / 60 % 60, number % 60)
    };
    let file =
        texts.iter().zip(0..).map(|(text, number)| format!("{} stdout F {text}", stamp(number))).collect();
    (file, texts)
}

#[test]
fn the_end_of_a_long_log_and_what_was_written_since_are_found() {
    const LINES: u32 = 9000;
    let (content, texts) = long(LINES);
    assert!(content.len() > 15 * file::BLOCK);
    let logs = Logs::new(&content);
    let of = |from: u32| texts[from as usize..].concat();
    for tail in [0, 1, 2, 399, 400, 401, 8999, 9000, 9001] {
        let select = Select { tail: Some(tail), ..Select::default() };
        assert_eq!(
            logs.selected(select),
            of(u32::try_from(9000_u64.saturating_sub(tail)).unwrap()),
            "{tail}"
        );
    }
    for since in [0, 1, 500, 4499, 4500, 4501, 8998, 8999] {
        let time = format!("2026-11-21T{:02}:{:02}:{:02}Z", since / 3600, since / 60 % 60, since % 60);
        let select = Select { since: Some(time.parse().unwrap()), tail: None };
        assert_eq!(logs.selected(select), of(since), "{since}");
    }
    let select = Select { since: Some("2026-11-22T00:00:00Z".parse().unwrap()), tail: None };
    assert_eq!(logs.selected(select), "");
}

#[test]
fn the_end_of_a_huge_log_is_found_without_reading_it() {
    // Half a terabyte of nothing, read by nobody.
    let logs = Logs::new("");
    let file = fs::OpenOptions::new().append(true).open(logs.path()).unwrap();
    file.set_len(1 << 39).unwrap();
    fs::OpenOptions::new()
        .append(true)
        .open(logs.path())
        .unwrap()
        .write_all(
            format!("\n{T1} stdout F 1\n{T2} stderr P 2\n{T2} stdout F 3\n{T3} stderr F 4\nhalf a")
                .as_bytes(),
        )
        .unwrap();
    for (tail, expected) in [(1, "24\n"), (2, "3\n24\n")] {
        let mut reader = logs.select(&logs.path(), Select { tail: Some(tail), ..Select::default() }).unwrap();
        assert_eq!(reader.read(), expected);
    }
}

#[test]
fn parts_belong_to_the_last_lines_in_every_form_of_a_file() {
    let records = [
        "stdout P a",
        "stderr P x",
        "stdout F b",
        "stderr P y",
        "stdout P c",
        "stderr F z",
        "stdout F d",
        "stderr P w",
    ];
    let files = |cuts: [usize; 2]| {
        let text = |range: std::ops::Range<usize>| {
            records[range].iter().map(|record| format!("{T1} {record}\n")).collect::<String>()
        };
        [text(0..cuts[0]), text(cuts[0]..cuts[1]), text(cuts[1]..records.len())]
    };
    // Whatever files the log is cut into, and whichever of them are compressed.
    for first in 0..records.len() {
        for second in first..records.len() {
            for compressed in 0..4 {
                let [oldest, old, new] = files([first, second]);
                let logs = Logs::new(&new);
                for (second, text, is_compressed) in
                    [(1, oldest, compressed & 1 > 0), (2, old, compressed & 2 > 0)]
                {
                    fs::write(logs.rotated(second), text).unwrap();
                    if is_compressed {
                        compress(&logs.rotated(second));
                    }
                }
                for (tail, expected) in
                    [(9, "ab\nxyz\ncd\nw"), (4, "ab\nxyz\ncd\nw"), (3, "xyz\ncd\nw"), (2, "cd\nw"), (1, "w")]
                {
                    let read = logs.selected(Select { tail: Some(tail), ..Select::default() });
                    assert_eq!(read, expected, "{tail} of {first}, {second}, {compressed}");
                }
            }
        }
    }
}

#[test]
fn since_goes_by_the_files_that_a_log_was_rotated_into() {
    let logs = Logs::new("");
    for second in [10, 20] {
        logs.say(second - 10..second);
        logs.rotate(second);
    }
    compress(&logs.rotated(10));
    // Nobody asks for it, so that nobody is told of it.
    fs::write(format!("{}.gz", logs.rotated(10).display()), "damaged").unwrap();
    logs.say(20..30);
    let since = |second: u32| Select {
        since: Some(format!("2026-11-21T07:00:{second:02}Z").parse().unwrap()),
        tail: None,
    };
    for second in [11, 15, 20, 21, 29] {
        assert_eq!(logs.selected(since(second)), numbers(second..30), "{second}");
    }
    assert_eq!(logs.selected(Select { tail: Some(19), ..since(15) }), numbers(15..30));
}

#[test]
fn a_line_that_never_ends_is_bounded() {
    let logs = Logs::new(&"x".repeat(3 << 20));
    let mut append = fs::OpenOptions::new().append(true).open(logs.path()).unwrap();
    append
        .write_all(format!("\n{T1} stdout F {}\n{T2} stdout F after\n", "y".repeat(3 << 20)).as_bytes())
        .unwrap();
    for tail in [None, Some(2), Some(9)] {
        let read = logs.selected(Select { tail, ..Select::default() });
        assert!(
            read.len() < TEXT_MAX + 200 && read.starts_with("yyy") && read.ends_with("y\nafter\n"),
            "{}",
            read.len()
        );
    }
}
