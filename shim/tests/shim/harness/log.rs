//! The logs of containers, on disk.

use std::fs;
use std::path::PathBuf;

use super::{World, until};

/// A container's log, with everything that was rotated away.
pub(crate) struct Log {
    pub(crate) path: PathBuf,
}

/// One line of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogLine {
    pub(crate) stream: String,
    pub(crate) tag: String,
    pub(crate) content: String,
}

impl Log {
    /// The log of a container.
    pub(crate) fn of(world: &World, id: &str) -> Log {
        Log { path: world.dir().join("logs").join(id).join("0.log") }
    }

    /// The files, oldest first.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path.parent().unwrap()).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> =
            entries.map(|entry| entry.path()).filter(|path| *path != self.path).collect();
        files.sort();
        files.extend(self.path.exists().then(|| self.path.clone()));
        files
    }

    /// Every line, each of which must be whole and well formed.
    pub(crate) fn lines(&self) -> Vec<LogLine> {
        let texts = self.files().into_iter().map(|file| fs::read_to_string(file).unwrap());
        texts.flat_map(|text| text.split_inclusive('\n').map(parse).collect::<Vec<_>>()).collect()
    }

    /// What one stream said, with parts joined.
    pub(crate) fn text(&self, stream: &str) -> String {
        self.lines().into_iter().filter(|line| line.stream == stream).fold(String::new(), |mut text, line| {
            text.push_str(&line.content);
            if line.tag == "F" {
                text.push('\n');
            }
            text
        })
    }

    /// Waits until standard output has said `text`.
    pub(crate) fn says(&self, text: &str) {
        until(&format!("{text:?} in the log"), || self.text("stdout").contains(text).then_some(()));
    }
}

fn parse(line: &str) -> LogLine {
    let whole = line.strip_suffix('\n').unwrap_or_else(|| panic!("a torn line: {line:?}"));
    let mut fields = whole.splitn(4, ' ').map(str::to_owned);
    let mut field = || fields.next().unwrap_or_else(|| panic!("a malformed line: {line:?}"));
    let (time, stream, tag, content) = (field(), field(), field(), field());
    assert!(time.len() == 30 && time.ends_with('Z'), "a malformed time: {line:?}");
    assert!(["stdout", "stderr"].contains(&stream.as_str()), "a malformed stream: {line:?}");
    assert!(["F", "P"].contains(&tag.as_str()), "a malformed tag: {line:?}");
    LogLine { stream, tag, content }
}
