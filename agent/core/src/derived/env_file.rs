//! Files that give a container's variables: `NAME='value'` a line (KEP-3721).
//!
//! A value stands between single quotes, where nothing has a meaning, and may go over several lines. Source: `ParseEnv` of
//! `pkg/kubelet/util/env/env_util.go`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

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

/// What a file gives to those names that are wanted of it. What is in it may be secret.
pub struct EnvFile {
    /// The first value of each name that was found. An empty one counts as none.
    found: BTreeMap<String, String>,
    /// What is wrong behind them.
    wrong: Option<EnvFileError>,
}

/// Values are not shown.
impl fmt::Debug for EnvFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "({} values, wrong: {:?})", self.found.len(), self.wrong)
    }
}

impl EnvFile {
    /// Looks for names in order, until all are found: what is wrong behind them is not.
    #[must_use]
    pub fn read(text: &str, mut names: BTreeSet<&str>) -> Self {
        let mut found = BTreeMap::new();
        let mut lines = lines(text);
        while !names.is_empty()
            && let Some((number, line)) = lines.next()
        {
            match assignment(number, line, &mut lines) {
                Ok(Some((name, value))) if names.remove(name) => drop(found.insert(name.to_owned(), value)),
                Ok(_) => {}
                Err(wrong) => return Self { found, wrong: Some(wrong) },
            }
        }
        Self { found, wrong: None }
    }

    /// The value of one of these names, where the file has one.
    ///
    /// # Errors
    /// A line before it, or of it, is none of such a file.
    pub fn value(&self, name: &str) -> Result<Option<&str>, &EnvFileError> {
        match (self.found.get(name), &self.wrong) {
            (Some(value), _) => Ok(Some(value.as_str()).filter(|value| !value.is_empty())),
            (None, None) => Ok(None),
            (None, Some(wrong)) => Err(wrong),
        }
    }
}

/// What a line assigns, with the lines into which its value goes on.
fn assignment<'a>(
    number: usize,
    line: &'a str,
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
) -> Result<Option<(&'a str, String)>, EnvFileError> {
    let wrong = |fault| EnvFileError { line: number, fault };
    let line = checked(number, line)?.trim_start_matches([' ', '\t']);
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let (name, rest) = line.split_once('=').ok_or_else(|| wrong(Fault::NoAssignment))?;
    match name.trim_end_matches([' ', '\t']) {
        "" => return Err(wrong(Fault::NoName)),
        trimmed if trimmed.len() < name.len() => return Err(wrong(Fault::BlankBefore)),
        _ => {}
    }
    // As a shell takes it: the name is empty, and what follows is another word.
    if rest.starts_with([' ', '\t']) {
        return Ok(Some((name, String::new())));
    }
    let begun = rest.strip_prefix('\'').ok_or_else(|| wrong(Fault::NoQuote))?;
    Ok(Some((name, quoted(begun, number, lines)?)))
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

    fn value_of(text: &str, name: &str) -> Result<Option<String>, EnvFileError> {
        let file = EnvFile::read(text, BTreeSet::from([name]));
        file.value(name).map(|value| value.map(str::to_owned)).map_err(Clone::clone)
    }

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
    fn one_reading_gives_all_that_is_wanted() {
        let text = "B='2'\nA='1'\nC= '3'\nA='4'\nno assignment\nD='5'";
        let file = EnvFile::read(text, BTreeSet::from(["A", "B", "C", "D", "E"]));
        let wrong = EnvFileError { line: 5, fault: Fault::NoAssignment };
        for (name, expected) in [
            ("A", Ok(Some("1"))),
            ("B", Ok(Some("2"))),
            ("C", Ok(None)),
            ("D", Err(&wrong)),
            ("E", Err(&wrong)),
        ] {
            assert_eq!(file.value(name), expected, "{name}");
        }
        assert_eq!(EnvFile::read(text, BTreeSet::from(["A", "B", "C"])).wrong, None);
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
