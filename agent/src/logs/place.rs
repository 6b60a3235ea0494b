//! Where a log is, and the files that it was rotated into: opened beneath the root of logs, without following any link.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use berth_shim_core::log::{Names, STAMP_LEN, rotated};
use flate2::read::MultiGzDecoder;
use rustix::fs::{Dir, Mode, OFlags, ResolveFlags};

use super::LogFileError;
use crate::contained::opened_to_read;

/// So much of the beginning of a file tells it from others: it begins with a time in nanoseconds.
const HEAD: usize = 4096;

/// The name of a log below the root of logs.
#[derive(Debug)]
pub(super) struct Place {
    root: OwnedFd,
    pub(super) path: PathBuf,
}

/// A file that a log was rotated into.
#[derive(Debug)]
pub(super) struct Rotated {
    pub(super) path: PathBuf,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Plain(File),
    Compressed(Box<MultiGzDecoder<File>>),
}

impl Read for Rotated {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.content {
            Content::Plain(file) => file.read(buffer),
            Content::Compressed(decoder) => decoder.read(buffer),
        }
    }
}

impl Rotated {
    /// The file itself, when it is as it was written.
    pub(super) fn plain(&self) -> Option<&File> {
        match &self.content {
            Content::Plain(file) => Some(file),
            Content::Compressed(_) => None,
        }
    }

    /// Goes forward to a place, as far as that needs no reading; returns where it is.
    pub(super) fn from(mut self, at: u64) -> Result<(Self, u64), LogFileError> {
        let reached = match &mut self.content {
            Content::Plain(file) => file.seek(SeekFrom::Start(at)),
            Content::Compressed(_) => Ok(0),
        };
        match reached {
            Ok(at) => Ok((self, at)),
            Err(source) => Err(LogFileError::Io { path: self.path, source }),
        }
    }
}

impl Place {
    pub(super) fn new(root: &Path, path: &Path) -> Result<Self, LogFileError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(root, flags, Mode::empty()).map_err(|errno| error(root, errno))?;
        Ok(Self { root: directory, path: path.strip_prefix(root).unwrap_or(path).to_owned() })
    }

    /// Opens the file that is written now.
    pub(super) fn open(&self) -> Result<File, LogFileError> {
        self.open_file(&self.path)
    }

    /// Opens the directory that it is in.
    pub(super) fn directory(&self) -> Result<OwnedFd, LogFileError> {
        let parent = self.path.parent().unwrap_or(&self.path);
        self.open_beneath(parent, OFlags::DIRECTORY).map_err(|errno| error(parent, errno))
    }

    /// The rotated files that there are, oldest first.
    pub(super) fn rotated(&self) -> Result<Vec<Names>, LogFileError> {
        let (Some(parent), Some(name)) =
            (self.path.parent(), self.path.file_name().and_then(|name| name.to_str()))
        else {
            return Ok(Vec::new());
        };
        let found = self.open_beneath(parent, OFlags::DIRECTORY).and_then(|directory| {
            let entries =
                Dir::new(directory)?.map(|entry| Ok(entry?.file_name().to_str().ok().map(str::to_owned)));
            entries.collect::<rustix::io::Result<Vec<_>>>()
        });
        let found = found.map_err(|errno| error(parent, errno))?;
        Ok(rotated(name, found.iter().flatten().map(String::as_str)))
    }

    /// Opens a rotated file, as it was written or compressed; `None` when it is gone.
    pub(super) fn open_rotated(&self, names: &Names) -> Result<Option<Rotated>, LogFileError> {
        // The copy is whole before the log goes, so that one of them is there.
        let plain = self.path.with_file_name(&names.plain);
        if let Some(file) = present(self.open_file(&plain))? {
            return Ok(Some(Rotated { path: plain, content: Content::Plain(file) }));
        }
        let path = self.path.with_file_name(&names.compressed);
        let content = |file| Content::Compressed(Box::new(MultiGzDecoder::new(file)));
        Ok(present(self.open_file(&path))?.map(|file| Rotated { path, content: content(file) }))
    }

    /// Which of these a file has become that was opened as the log.
    pub(super) fn position(&self, file: &File, rotated: &[Names]) -> io::Result<Option<usize>> {
        let mut head = [0; HEAD];
        let length = read_head(|buffer, at| file.read_at(buffer, at), &mut head)?;
        // What cannot be opened is nobody's.
        let is_same = |names: &Names| {
            self.open_rotated(names).ok().flatten().is_some_and(|other| is_same(file, &head[..length], other))
        };
        Ok(rotated.iter().rposition(is_same))
    }

    fn open_file(&self, path: &Path) -> Result<File, LogFileError> {
        let found = self.open_beneath(path, OFlags::PATH).map_err(|errno| error(path, errno))?;
        let astray = || LogFileError::Astray(path.to_owned());
        let unreadable = |source| LogFileError::Io { path: path.to_owned(), source };
        let file = opened_to_read(&found).map_err(unreadable)?.ok_or_else(astray)?;
        let file = File::from(file);
        if file.metadata().map_err(unreadable)?.is_file() { Ok(file) } else { Err(astray()) }
    }

    fn open_beneath(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve)
    }
}

/// Whether two files are one.
pub(super) fn is_one(one: &File, other: &File) -> io::Result<bool> {
    let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
    Ok(identity(one)? == identity(other)?)
}

/// Whether a file that begins with `head` is the same as a rotated one, or has become it.
fn is_same(file: &File, head: &[u8], candidate: Rotated) -> bool {
    match candidate.content {
        Content::Plain(other) => is_one(file, &other).unwrap_or(false),
        Content::Compressed(mut decoder) => {
            let mut begins = [0; HEAD];
            // A damaged one is like no other.
            let length = read_head(|buffer, _| decoder.read(buffer), &mut begins).unwrap_or(0);
            head.len() > STAMP_LEN && begins[..length].starts_with(head)
        }
    }
}

/// Fills a buffer from the beginning of a file as far as it goes; returns how far.
fn read_head(
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    buffer: &mut [u8],
) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match read(&mut buffer[length..], length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

fn present<T>(result: Result<T, LogFileError>) -> Result<Option<T>, LogFileError> {
    match result {
        Err(LogFileError::Absent(_)) => Ok(None),
        result => result.map(Some),
    }
}

fn error(path: &Path, errno: rustix::io::Errno) -> LogFileError {
    use rustix::io::Errno;
    match errno {
        Errno::NOENT | Errno::NOTDIR => LogFileError::Absent(path.to_owned()),
        Errno::LOOP | Errno::XDEV => LogFileError::Astray(path.to_owned()),
        _ => LogFileError::Io { path: path.to_owned(), source: errno.into() },
    }
}
