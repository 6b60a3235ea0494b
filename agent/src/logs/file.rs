//! A log: read block by block over all files that it was rotated into, and on through later rotations.

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
    Record,
    place::{Place, Rotated, is_one},
    record::{Records, Since},
    since,
    tail::{self, Position},
};

/// Bytes read at once.
pub(super) const BLOCK: usize = 64 << 10;

/// Which lines are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Select {
    /// Not what was written before.
    pub since: Option<Timestamp>,
    /// Only so many from the end, of those there are at start. One that was not ended counts.
    pub tail: Option<u64>,
}

/// How far a log was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// There may be more.
    More,
    /// To its end of now.
    AtEnd,
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
    /// Changes cannot be waited for.
    #[error("watch the directory of {path}; fs.inotify.max_user_instances may have to be higher", path = .path.display())]
    Watch {
        /// Which log.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// One log that is being read. In memory is a block of it, and a line of its file.
#[derive(Debug)]
pub struct LogFile {
    place: Place,
    /// What has the name of the log, or had it when it was opened.
    file: File,
    /// How far it was read.
    at: u64,
    /// What has taken its name since.
    successor: Option<File>,
    /// The files that were rotated before it was begun, as far as they are known.
    older: Vec<Names>,
    /// Those of them that are to be read before it.
    unread: VecDeque<Names>,
    /// One of them, being read.
    rotated: Option<Rotated>,
    records: Records,
    since: Option<Since>,
    skipped: Option<Skipped>,
    unreadable: Vec<LogFileError>,
    block: Vec<u8>,
}

/// What is passed over at the beginning.
#[derive(Debug)]
struct Skipped {
    /// The file that is being read: 0 is the oldest.
    file: usize,
    /// Where each stream begins.
    begins: [Position; 2],
}

impl LogFile {
    /// Opens the log `path` below the directory `root`, and finds where the lines begin that are wanted.
    ///
    /// # Errors
    /// See [`LogFileError`].
    pub fn open(root: &Path, path: &Path, select: Select) -> Result<Self, LogFileError> {
        let place = Place::new(root, path)?;
        let file = place.open()?;
        let mut older = place.rotated()?;
        // It may have been rotated since it was opened.
        if let Some(at) = place.position(&file, &older).map_err(|source| io_error(&place, source))? {
            older.truncate(at);
        }
        let since = select.since.map(Since::new);
        let begins = match (select.tail, &since) {
            (Some(tail), _) => tail::begins(&place, &file, &older, tail),
            (None, Some(since)) => since::begins(&place, &file, &older, since).map(|position| [position; 2]),
            (None, None) => Ok([Position::default(); 2]),
        };
        let begins = begins.map_err(|source| io_error(&place, source))?;
        let first = begins[0].min(begins[1]);
        let mut log = Self {
            unread: older.get(first.file..).unwrap_or_default().iter().cloned().collect(),
            skipped: Some(Skipped { file: first.file, begins }),
            place,
            file,
            at: 0,
            successor: None,
            older,
            rotated: None,
            records: Records::default(),
            since,
            unreadable: Vec::new(),
            block: vec![0; BLOCK],
        };
        log.begin(first.at);
        Ok(log)
    }

    /// Reads a block and gives the records in it that are wanted. Goes over to the new file when the old one was rotated away and has
    /// been read; at its end it may be asked again later.
    ///
    /// # Errors
    /// When the file cannot be read. It may be tried again.
    pub fn read_block(&mut self, mut each: impl FnMut(Record<'_>)) -> Result<Progress, LogFileError> {
        let mut block = std::mem::take(&mut self.block);
        let read = self.next_bytes(&mut block);
        if let Ok(Next::Bytes(count)) = read {
            self.give(&block[..count], &mut each);
        }
        self.block = block;
        match read? {
            Next::Bytes(_) => Ok(Progress::More),
            Next::CutOff => {
                // It is not to be continued by the next file.
                self.give(b"\n", &mut each);
                self.end_of_file();
                Ok(Progress::More)
            }
            Next::End => Ok(Progress::AtEnd),
        }
    }

    /// Reads to the end of now.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read_to_end(&mut self, mut each: impl FnMut(Record<'_>)) -> Result<(), LogFileError> {
        while self.read_block(&mut each)? == Progress::More {}
        Ok(())
    }

    /// Rotated files that could not be read to their end, since the last time: the reading went on behind them.
    pub fn take_unreadable(&mut self) -> Vec<LogFileError> {
        std::mem::take(&mut self.unreadable)
    }

    fn give(&mut self, bytes: &[u8], each: &mut impl FnMut(Record<'_>)) {
        let (since, skipped) = (self.since.as_ref(), self.skipped.as_ref());
        self.records.feed(bytes, |place, record| {
            let is_before = skipped.is_some_and(|Skipped { file, begins }| {
                Position { file: *file, at: place.start } < begins[record.stream.index()]
            });
            if !is_before && !since.is_some_and(|since| since.is_after(&record)) {
                each(record);
            }
        });
    }

    fn next_bytes(&mut self, block: &mut [u8]) -> Result<Next, LogFileError> {
        loop {
            if let Some(rotated) = &mut self.rotated {
                match read_some(|block| rotated.read(block), block) {
                    Ok(0) => self.end_of_file(),
                    Ok(count) => return Ok(Next::Bytes(count)),
                    Err(source) => {
                        self.unreadable.push(LogFileError::Io { path: rotated.path.clone(), source });
                        return Ok(Next::CutOff);
                    }
                }
            } else if !self.unread.is_empty() {
                self.begin(0);
            } else {
                let count = read_some(|block| self.file.read_at(block, self.at), block);
                let count = count.map_err(|source| io_error(&self.place, source))?;
                self.at += count as u64;
                if count > 0 {
                    return Ok(Next::Bytes(count));
                }
                // What was written between the last look and the rotation is read before the new file.
                match self.successor.take() {
                    Some(new) => self.go_over(new)?,
                    None => match self.find_successor()? {
                        Some(new) => self.successor = Some(new),
                        None => return Ok(Next::End),
                    },
                }
            }
        }
    }

    /// Begins with the next file, from here on. One that is gone was one too many.
    fn begin(&mut self, at: u64) {
        let Some(names) = self.unread.pop_front() else {
            self.at = at;
            return self.records.go_to(at);
        };
        let opened = self
            .place
            .open_rotated(&names)
            .and_then(|rotated| rotated.map(|rotated| rotated.from(at)).transpose());
        match opened {
            Ok(Some((rotated, at))) => {
                self.rotated = Some(rotated);
                self.records.go_to(at);
            }
            Ok(None) => self.end_of_file(),
            Err(error) => {
                self.unreadable.push(error);
                self.end_of_file();
            }
        }
    }

    /// The next file is another one.
    fn end_of_file(&mut self) {
        self.rotated = None;
        self.records.go_to(0);
        if let Some(skipped) = &mut self.skipped {
            skipped.file += 1;
        }
    }

    /// Takes the new file for the log, behind what came between the one that was read and it.
    fn go_over(&mut self, new: File) -> Result<(), LogFileError> {
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
        self.unread = older.get(between..).unwrap_or_default().iter().cloned().collect();
        self.older = older;
        self.file = new;
        self.at = 0;
        self.records.go_to(0);
        self.skipped = None;
        Ok(())
    }

    /// The file that has taken the name, when it is another one. None yet is no rotation: the next look will find it.
    fn find_successor(&self) -> Result<Option<File>, LogFileError> {
        let named = match self.place.open() {
            Ok(file) => file,
            Err(LogFileError::Absent(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let same = is_one(&named, &self.file).map_err(|source| io_error(&self.place, source))?;
        Ok(Some(named).filter(|_| !same))
    }
}

/// What comes next of a log.
enum Next {
    Bytes(usize),
    /// A rotated file ends before its end.
    CutOff,
    End,
}

/// Reads what is there, up to a block.
pub(super) fn read_some(
    mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    block: &mut [u8],
) -> io::Result<usize> {
    loop {
        match read(block) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn io_error(place: &Place, source: io::Error) -> LogFileError {
    LogFileError::Io { path: place.path.clone(), source }
}
