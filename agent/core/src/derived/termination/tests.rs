use proptest::prelude::*;

use super::*;

#[test]
fn the_end_of_a_file() {
    assert_eq!(from_file(b""), "");
    assert_eq!(from_file(b"done\n"), "done\n");
    let long = [vec![b'x'; 10], vec![b'y'; FILE_BYTES_MAX]].concat();
    assert_eq!(from_file(&long), "y".repeat(FILE_BYTES_MAX));
    assert_eq!(from_file(b"a\xffb"), "a\u{fffd}b");
}

#[test]
fn the_last_lines_of_a_log() {
    let lines =
        |numbers: std::ops::Range<usize>| numbers.map(|number| format!("{number}\n")).collect::<String>();
    assert_eq!(from_log(b""), "");
    assert_eq!(from_log(b"\n"), "\n");
    assert_eq!(from_log(b"one\ntwo"), "one\ntwo");
    assert_eq!(from_log(lines(0..80).as_bytes()), lines(0..80));
    assert_eq!(from_log(lines(0..81).as_bytes()), lines(1..81));
    assert_eq!(from_log(lines(0..500).as_bytes()), lines(420..500));
    assert_eq!(from_log(lines(0..81).trim_end().as_bytes()), lines(1..81).trim_end());
    let wide = format!("{}\n", "w".repeat(3000));
    assert_eq!(from_log(wide.as_bytes()), format!("{}\n", "w".repeat(LOG_BYTES_MAX - 1)));
}

#[test]
fn a_pods_messages_share_12_kib() {
    let message = "é".repeat(5000);
    assert_eq!(share(&message, 1).len(), 10_000);
    assert_eq!(share(&message, 3).len(), 4096);
    assert_eq!(share(&message, 7).len(), 1754);
    assert_eq!(share("short", 100), "short");
    assert_eq!(share("x", 0), "x");
    assert_eq!(share("x", usize::MAX), "");
}

proptest! {
    #[test]
    fn any_bytes_are_bounded_text(content in proptest::collection::vec(any::<u8>(), 0..9000)) {
        prop_assert!(from_file(&content).len() <= FILE_BYTES_MAX);
        let log = from_log(&content);
        prop_assert!(log.len() <= LOG_BYTES_MAX);
        prop_assert!(log.trim_end_matches('\n').matches('\n').count() < LOG_LINES_MAX);
    }
}
