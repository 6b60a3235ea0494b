//! The logs of containers, on disk.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use berth_shim_core::log::{Names, rotated};
use flate2::read::GzDecoder;

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

    /// The files that it was rotated into, oldest first.
    pub(crate) fn rotated(&self) -> Vec<Names> {
        let names = self.names();
        rotated("0.log", names.iter().map(String::as_str))
    }

    /// The names of all files beside it, and its own, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory()).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().unwrap()
    }

    /// What all files say, oldest first.
    fn texts(&self) -> Vec<String> {
        let mut texts: Vec<String> =
            self.rotated().iter().filter_map(|names| text_of(self.directory(), names)).collect();
        texts.extend(fs::read_to_string(&self.path).ok());
        texts
    }

    /// Every line, each of which must be whole and well formed.
    pub(crate) fn lines(&self) -> Vec<LogLine> {
        self.texts().iter().flat_map(|text| text.split_inclusive('\n').map(parse)).collect()
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

/// A rotated file, compressed or not: it is compressed before it goes. `None` when it was one too many.
fn text_of(directory: &Path, names: &Names) -> Option<String> {
    if let Ok(text) = fs::read_to_string(directory.join(&names.plain)) {
        return Some(text);
    }
    let mut text = String::new();
    let file = fs::File::open(directory.join(&names.compressed)).ok()?;
    GzDecoder::new(file).read_to_string(&mut text).unwrap();
    Some(text)
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
