//! What is written to standard output: as text that is harmless for a terminal, or as JSON that stays JSON.

use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;

use super::ask::Failure;

/// How something is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TextOrJson {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Writes to standard output what `print` makes of it, harmless for a terminal.
pub(super) fn put(print: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> Result<(), Failure> {
    let mut text = Vec::new();
    print(&mut text)?;
    Ok(show(&mut io::stdout().lock(), harmless(&String::from_utf8_lossy(&text)).as_bytes())?)
}

/// Writes a value to standard output, one field a line.
pub(super) fn put_json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
    Ok(show(&mut io::stdout().lock(), format!("{}\n", escaped(&text)).as_bytes())?)
}

/// A value as one line of JSON, with its newline.
pub(super) fn json_line<T: Serialize>(value: &T) -> io::Result<String> {
    Ok(format!("{}\n", escaped(&serde_json::to_string(value)?)))
}

/// Writes bytes at once.
pub(super) fn show(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.flush()
}

/// Control characters escaped: what a container left as its termination message must not steer the terminal of an administrator
/// (CVE-2021-25743).
pub(super) fn harmless(text: &str) -> String {
    replaced(
        text,
        |letter| letter.is_control() && letter != '\n' && letter != '\t',
        |letter| letter.escape_default().to_string(),
    )
}

/// The same for JSON, in which they only stand in strings. `serde_json` leaves DEL and what is beyond ASCII as it is.
fn escaped(json: &str) -> String {
    let control = |letter: char| letter.is_control() && letter != '\n';
    replaced(json, control, |letter| format!("\\u{:04x}", u32::from(letter)))
}

fn replaced(text: &str, which: impl Fn(char) -> bool, by: impl Fn(char) -> String) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        if which(letter) { plain.push_str(&by(letter)) } else { plain.push(letter) }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cve_2021_25743_control_characters_do_not_reach_the_terminal() {
        let text = "a\u{1b}[2Jb\r\u{9b}c\u{7f}\n\td\u{e9}";
        assert_eq!(harmless(text), "a\\u{1b}[2Jb\\r\\u{9b}c\\u{7f}\n\td\u{e9}");
        let line = json_line(&text).unwrap();
        assert!(line.trim_end_matches('\n').chars().all(|letter| !letter.is_control()), "{line:?}");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }
}
