//! A log: read from where it is asked for, over all files that it was rotated into, and followed through rotations.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use berth_shim_core::log::Names;
use jiff::Timestamp;

use super::{
    Line, Lines, Stream,
    place::{Place, is_one},
};

/// Bytes read at once.
const CHUNK: usize = 64 << 10;

/// Most lines that `tail` keeps in memory.
const TAIL_MAX: usize = 1_000_000;

/// Which lines are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Select {
    /// Not those before.
    pub since: Option<Timestamp>,
    /// Only so many from the end, of those there are at start.
    pub tail: Option<usize>,
    /// Whether what comes later is read too.
    pub reading: Reading,
}

/// How long a log is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reading {
    /// To its end of now: a line that was not ended counts as one.
    #[default]
    Once,
    /// For as long as somebody writes: a line that was not ended will be.
    On,
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogFileError {
    /// There is none: the container has not started, or its logs were removed.
    #[error("open {path}: there is no such log; the container may not have started, or its log was removed", path = .0.display())]
    Absent(PathBuf),
    /// A symbolic link or a path that leaves the directory of logs.
    #[error("open {path}: it is not a regular file below the directory of logs, which is not followed", path = .0.display())]
    Astray(PathBuf),
    /// Another failure.
    #[error("read {path}", path = .path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// One log that is being read.
#[derive(Debug)]
pub struct LogFile {
    place: Place,
    file: File,
    /// The files that were rotated before `file` was begun, as far as they are known.
    older: Vec<Names>,
    lines: Lines,
    unreadable: Vec<LogFileError>,
}

impl Select {
    fn wants(self, line: &Line) -> bool {
        self.since.is_none_or(|since| line.time >= since)
    }
}

impl LogFile {
    /// Opens the log `path` below the directory `root`.
    ///
    /// # Errors
    /// See [`LogFileError`].
    pub fn open(root: &Path, path: &Path) -> Result<Self, LogFileError> {
        let place = Place::new(root, path)?;
        let file = place.open()?;
        let mut older = place.rotated()?;
        // It may have been rotated since it was opened.
        if let Some(at) = place.position(&file, &older).map_err(|source| io_error(&place, source))? {
            older.truncate(at);
        }
        Ok(Self { place, file, older, lines: Lines::default(), unreadable: Vec::new() })
    }

    /// Gives what is there now, selected.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read_selected(&mut self, select: Select, mut each: impl FnMut(Line)) -> Result<(), LogFileError> {
        let tail = select.tail.map(|tail| tail.min(TAIL_MAX));
        let mut kept = VecDeque::new();
        let mut take = |line: Line| match tail {
            _ if !select.wants(&line) => {}
            None => each(line),
            Some(0) => {}
            Some(tail) => {
                if kept.len() == tail {
                    kept.pop_front();
                }
                kept.push_back(line);
            }
        };
        let first = self.first_file(select)?;
        for names in self.older.get(first..).unwrap_or_default().to_vec() {
            self.read_rotated(&names, &mut take);
        }
        self.read_on(&mut take)?;
        if select.reading == Reading::Once {
            self.finish(&mut take);
        }
        kept.into_iter().for_each(each);
        Ok(())
    }

    /// Gives what was written since; goes over to the new file when the old one was rotated away.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read_on(&mut self, mut each: impl FnMut(Line)) -> Result<(), LogFileError> {
        self.drain(&mut each)?;
        if let Some(new) = self.successor()? {
            // Written between the first look and the rotation.
            self.drain(&mut each)?;
            for names in self.go_over(new)? {
                self.read_rotated(&names, &mut each);
            }
            self.drain(&mut each)?;
        }
        Ok(())
    }

    /// Gives what is left of lines without an end.
    pub fn finish(&mut self, each: impl FnMut(Line)) {
        self.lines.finish().for_each(each);
    }

    /// Rotated files that could not be read to their end, since the last time: the reading went on behind them.
    pub fn take_unreadable(&mut self) -> Vec<LogFileError> {
        std::mem::take(&mut self.unreadable)
    }

    /// The first of the older files that is needed for the lines that are selected.
    fn first_file(&self, select: Select) -> Result<usize, LogFileError> {
        let mut first = self.older.len();
        let tail = match select.tail.map(|tail| tail.min(TAIL_MAX)) {
            None => return Ok(0),
            Some(0) => return Ok(first),
            Some(tail) => tail,
        };
        // A file may begin within a line of each stream.
        let enough = tail + [Stream::Stdout, Stream::Stderr].len();
        let again =
            self.file.try_clone().and_then(|file| count_lines(&mut FromStart { file, at: 0 }, select));
        let mut count = again.map_err(|source| io_error(&self.place, source))?;
        for names in self.older.iter().rev() {
            if count >= enough {
                break;
            }
            first -= 1;
            // What cannot be read is told when it is to be.
            let rotated = self.place.open_rotated(names).ok().flatten();
            count += rotated.and_then(|mut rotated| count_lines(&mut rotated, select).ok()).unwrap_or(0);
        }
        Ok(first)
    }

    /// Takes the new file for the log; returns what came between the one that was read and it, oldest first.
    fn go_over(&mut self, new: File) -> Result<Vec<Names>, LogFileError> {
        let mut older = self.place.rotated()?;
        let position = |file: &File, older: &[Names]| {
            self.place.position(file, older).map_err(|source| io_error(&self.place, source))
        };
        if let Some(at) = position(&new, &older)? {
            older.truncate(at);
        }
        let is_known = |names: &Names| self.older.last().is_some_and(|last| names.plain <= last.plain);
        let between = match position(&self.file, &older)? {
            Some(at) => at + 1,
            // It is gone, or was not rotated but moved elsewhere.
            None => older.iter().take_while(|names| is_known(names)).count(),
        };
        let names = older.get(between..).unwrap_or_default().to_vec();
        self.older = older;
        self.file = new;
        Ok(names)
    }

    /// Gives a rotated file. One that is damaged is given as far as it goes; one that is gone was one too many.
    fn read_rotated(&mut self, names: &Names, each: &mut impl FnMut(Line)) {
        let mut rotated = match self.place.open_rotated(names) {
            Ok(Some(rotated)) => rotated,
            Ok(None) => return,
            Err(error) => return self.unreadable.push(error),
        };
        let lines = &mut self.lines;
        if let Err(source) = for_chunks(&mut rotated, |chunk| lines.feed(chunk, &mut *each)) {
            // What is cut off is not to be continued by the next file.
            self.lines.feed(b"\n", each);
            self.unreadable.push(LogFileError::Io { path: rotated.path, source });
        }
    }

    fn drain(&mut self, each: &mut impl FnMut(Line)) -> Result<(), LogFileError> {
        let Self { file, lines, place, .. } = self;
        for_chunks(file, |chunk| lines.feed(chunk, &mut *each)).map_err(|source| io_error(place, source))
    }

    /// The file that has taken the name, when it is another one. None yet is no rotation: the next look will find it.
    fn successor(&self) -> Result<Option<File>, LogFileError> {
        let named = match self.place.open() {
            Ok(file) => file,
            Err(LogFileError::Absent(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let same = is_one(&named, &self.file).map_err(|source| io_error(&self.place, source))?;
        Ok(Some(named).filter(|_| !same))
    }
}

fn io_error(place: &Place, source: io::Error) -> LogFileError {
    LogFileError::Io { path: place.path.clone(), source }
}

/// A file from its start, wherever others read in it.
struct FromStart {
    file: File,
    at: u64,
}

impl Read for FromStart {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// How many lines of a file are wanted.
fn count_lines(from: &mut impl Read, select: Select) -> io::Result<usize> {
    let (mut lines, mut count) = (Lines::default(), 0);
    for_chunks(from, |chunk| lines.feed(chunk, |line| count += usize::from(select.wants(&line))))?;
    Ok(count)
}

fn for_chunks(from: &mut impl Read, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => each(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
