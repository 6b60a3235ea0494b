//! A log file: opened safely, read from where it is asked for, followed through rotations.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Read},
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::{Line, Lines};

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
    root: OwnedFd,
    path: PathBuf,
    file: File,
    lines: Lines,
}

impl LogFile {
    /// Opens the file `path` below the directory `root`.
    ///
    /// # Errors
    /// See [`LogFileError`].
    pub fn open(root: &Path, path: &Path) -> Result<Self, LogFileError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(root, flags, Mode::empty()).map_err(|errno| error(root, errno))?;
        let relative = path.strip_prefix(root).unwrap_or(path).to_owned();
        let file = open_beneath(&directory, &relative)?;
        Ok(Self { root: directory, path: relative, file, lines: Lines::default() })
    }

    /// Gives what is there now, selected.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read_selected(&mut self, select: Select, mut each: impl FnMut(Line)) -> Result<(), LogFileError> {
        let wanted = |line: &Line| select.since.is_none_or(|since| line.time >= since);
        let tail = select.tail.map(|tail| tail.min(TAIL_MAX));
        let mut kept = VecDeque::new();
        let mut take = |line: Line| match tail {
            _ if !wanted(&line) => {}
            None => each(line),
            Some(0) => {}
            Some(tail) => {
                if kept.len() == tail {
                    kept.pop_front();
                }
                kept.push_back(line);
            }
        };
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
        // Two rounds at most: the old file to its end, then the new one.
        self.drain(&mut each)?;
        if let Some(new) = self.rotated()? {
            // Written between the first look and the rotation.
            self.drain(&mut each)?;
            self.file = new;
            self.drain(&mut each)?;
        }
        Ok(())
    }

    /// Gives what is left of lines without an end.
    pub fn finish(&mut self, each: impl FnMut(Line)) {
        self.lines.finish().for_each(each);
    }

    fn drain(&mut self, each: &mut impl FnMut(Line)) -> Result<(), LogFileError> {
        let mut chunk = vec![0; CHUNK];
        loop {
            match self.file.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(count) => self.lines.feed(&chunk[..count], &mut *each),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(LogFileError::Io { path: self.path.clone(), source }),
            }
        }
    }

    /// The file that has taken the name, when it is another one. None yet is no rotation: the next look will find it.
    fn rotated(&self) -> Result<Option<File>, LogFileError> {
        let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
        let io = |source| LogFileError::Io { path: self.path.clone(), source };
        let named = match open_beneath(&self.root, &self.path) {
            Ok(file) => file,
            Err(LogFileError::Absent(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let same = identity(&named).map_err(io)? == identity(&self.file).map_err(io)?;
        Ok(Some(named).filter(|_| !same))
    }
}

fn open_beneath(root: &OwnedFd, path: &Path) -> Result<File, LogFileError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file =
        rustix::fs::openat2(root, path, flags, Mode::empty(), resolve).map_err(|errno| error(path, errno))?;
    let file = File::from(file);
    let metadata = file.metadata().map_err(|source| LogFileError::Io { path: path.to_owned(), source })?;
    if metadata.is_file() { Ok(file) } else { Err(LogFileError::Astray(path.to_owned())) }
}

fn error(path: &Path, errno: rustix::io::Errno) -> LogFileError {
    use rustix::io::Errno;
    match errno {
        Errno::NOENT | Errno::NOTDIR => LogFileError::Absent(path.to_owned()),
        Errno::LOOP | Errno::XDEV => LogFileError::Astray(path.to_owned()),
        _ => LogFileError::Io { path: path.to_owned(), source: errno.into() },
    }
}
