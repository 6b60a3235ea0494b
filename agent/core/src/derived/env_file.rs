//! Files that give a container's variables: `NAME='value'` a line (KEP-3721).
//!
//! A value stands between single quotes, where nothing has a meaning, and may go over several lines. Source: `ParseEnv` of
//! `pkg/kubelet/util/env/env_util.go`.

use thiserror::Error;

/// Most bytes of such a file.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// Longest line (`MaxScanTokenSize` of Go's `bufio`).
const LINE_BYTES_MAX: usize = 64 << 10;

/// What is wrong with a file, and in which line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {fault}")]
pub struct EnvFileError {
    line: usize,
    fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
enum Fault {
    #[error("there is no `=`")]
    NoAssignment,
    #[error("there is no name before `=`")]
    NoName,
    #[error("there is a blank before `=`")]
    BlankBefore,
    #[error("the value does not begin with a single quote")]
    NoQuote,
    #[error("the quote that begins here is not closed")]
    Unclosed,
    #[error("something follows the closing quote")]
    Behind,
    #[error("it has more than {LINE_BYTES_MAX} bytes")]
    TooLong,
}

/// The first value of a name, where the file has one. It is looked for in order: what is wrong behind it is not found.
///
/// # Errors
/// A line before it, or of it, is none of such a file.
pub fn value_of(text: &str, name: &str) -> Result<Option<String>, EnvFileError> {
    let mut lines = lines(text);
    while let Some((number, line)) = lines.next() {
        let wrong = |fault| EnvFileError { line: number, fault };
        let line = checked(number, line)?.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (found, rest) = line.split_once('=').ok_or_else(|| wrong(Fault::NoAssignment))?;
        match found.trim_end_matches([' ', '\t']) {
            "" => return Err(wrong(Fault::NoName)),
            trimmed if trimmed.len() < found.len() => return Err(wrong(Fault::BlankBefore)),
            _ => {}
        }
        // As a shell takes it: the name is empty, and what follows is another word.
        if rest.starts_with([' ', '\t']) {
            if found == name {
                return Ok(None);
            }
            continue;
        }
        let begun = rest.strip_prefix('\'').ok_or_else(|| wrong(Fault::NoQuote))?;
        let value = quoted(begun, number, &mut lines)?;
        if found == name {
            return Ok(Some(value).filter(|value| !value.is_empty()));
        }
    }
    Ok(None)
}

/// What stands between quotes, of which the first is behind us.
fn quoted<'a>(
    begun: &str,
    number: usize,
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
) -> Result<String, EnvFileError> {
    let mut value = String::new();
    let (mut at, mut rest) = (number, begun);
    loop {
        if let Some((inside, behind)) = rest.split_once('\'') {
            value.push_str(inside);
            let behind = behind.trim_start_matches([' ', '\t']);
            return if behind.is_empty() || behind.starts_with('#') {
                Ok(value)
            } else {
                Err(EnvFileError { line: at, fault: Fault::Behind })
            };
        }
        value.push_str(rest);
        value.push('\n');
        let next = lines.next().ok_or(EnvFileError { line: number, fault: Fault::Unclosed })?;
        (at, rest) = (next.0, checked(next.0, next.1)?);
    }
}

/// Lines with their numbers. The last one is none when nothing stands in it; a return before the end of a line belongs to it.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let is_empty = text.is_empty();
    let all = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    all.enumerate().map(|(index, line)| (index + 1, line)).take_while(move |_| !is_empty)
}

fn checked(number: usize, line: &str) -> Result<&str, EnvFileError> {
    if line.len() < LINE_BYTES_MAX {
        Ok(line)
    } else {
        Err(EnvFileError { line: number, fault: Fault::TooLong })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_stands_between_quotes() {
        let value = |text: &str| value_of(text, "A").map_err(|error| error.to_string());
        let some = |text: &str| Ok(Some(text.to_owned()));
        for (text, expected) in [
            ("A='1'", some("1")),
            ("\n \t\n# A='0'\n\tA='1'\nA='2'\n", some("1")),
            ("B='A=2'\nA='$B \\n \"'  # why", some("$B \\n \"")),
            ("A='one\n two\r\n\n# three'", some("one\n two\n\n# three")),
            ("AA='0'\nA.b='0'", Ok(None)),
            ("A=''", Ok(None)),
            ("A= '1'\nA='2'", Ok(None)),
            ("B= 1\nA='2'", some("2")),
            ("", Ok(None)),
            ("A='1'\nwhat follows", some("1")),
            ("A", Err("line 1: there is no `=`".to_owned())),
            ("\n='1'", Err("line 2: there is no name before `=`".to_owned())),
            (" ='1'", Err("line 1: there is no name before `=`".to_owned())),
            ("A ='1'", Err("line 1: there is a blank before `=`".to_owned())),
            ("A=1", Err("line 1: the value does not begin with a single quote".to_owned())),
            ("A=\"1\"", Err("line 1: the value does not begin with a single quote".to_owned())),
            ("B='1\n2\nA='3'", Err("line 3: something follows the closing quote".to_owned())),
            ("\nA='1\n2", Err("line 2: the quote that begins here is not closed".to_owned())),
            ("A='1'2", Err("line 1: something follows the closing quote".to_owned())),
            ("export A='1'\nA='2'", some("2")),
        ] {
            assert_eq!(value(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_line_is_bounded() {
        let of = |bytes: usize| format!("A='{}'", "x".repeat(bytes - 4));
        assert!(value_of(&of(LINE_BYTES_MAX - 1), "A").is_ok_and(|value| value.is_some()));
        let error = value_of(&of(LINE_BYTES_MAX), "A").unwrap_err();
        assert_eq!(error, EnvFileError { line: 1, fault: Fault::TooLong });
        let within = format!("A='\n{}'", "x".repeat(LINE_BYTES_MAX));
        assert_eq!(value_of(&within, "A").unwrap_err().line, 2);
    }
}
