//! A container's log on disk. The decisions are the core's; this performs them and never fails towards the container.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use berth_shim_core::Now;
use berth_shim_core::log::{Attempt, Sink, excess, rotated_name};
use nix::libc;

use super::LogOptions;

/// Time from a failed rotation to the next attempt.
const ROTATE_AFTER_MS: u64 = 1_000;

#[derive(Debug)]
pub(crate) struct LogFile {
    options: LogOptions,
    file: Option<File>,
    sink: Sink,
    /// A rotation that failed is not tried again before this time, milliseconds.
    rotate_at_ms: u64,
    /// It was rotated, and nobody knows yet.
    rotated: bool,
}

impl LogFile {
    /// A log that is to be opened.
    pub(crate) fn new(options: LogOptions) -> Self {
        let sink = Sink::new(0, options.size_max);
        Self { options, file: None, sink, rotate_at_ms: 0, rotated: false }
    }

    /// Opens the log. One that cannot be opened now is tried again while the container runs.
    pub(crate) fn open(&mut self, now: Now) {
        if let Err(error) = self.reopen(now) {
            crate::log::warning!("failed to open log {}: {error}", self.options.path.display());
        }
    }

    /// Opens the file anew, because someone moved it.
    pub(crate) fn reopen(&mut self, now: Now) -> io::Result<()> {
        match open(&self.options.path) {
            Ok((file, bytes)) => {
                self.file = Some(file);
                self.sink.opened(bytes);
                Ok(())
            }
            Err(error) => {
                self.file = None;
                self.sink.failed(now, 0, 0);
                Err(error)
            }
        }
    }

    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.sink.dropped_bytes()
    }

    /// Whether it was rotated since the last time.
    pub(crate) fn take_rotated(&mut self) -> bool {
        std::mem::take(&mut self.rotated)
    }

    /// Writes whole lines, or what the disk takes of them.
    pub(crate) fn write(&mut self, now: Now, batch: &[u8]) {
        let len = as_u64(batch.len());
        // A reopened file is offered the batch once more, and then it is written or lost.
        for _attempt in 0..2 {
            match self.sink.offer(now, len) {
                Attempt::Write => self.append(now, &[], batch),
                Attempt::WriteOnNewLine => self.append(now, b"\n", batch),
                Attempt::Drop => {}
                Attempt::Reopen => match open(&self.options.path) {
                    Ok((file, bytes)) => {
                        self.file = Some(file);
                        self.sink.opened(bytes);
                        continue;
                    }
                    Err(_still_failing) => self.sink.failed(now, 0, len),
                },
            }
            break;
        }
        if self.sink.is_full() && now.mono_ms >= self.rotate_at_ms {
            self.rotate(now);
        }
    }

    fn append(&mut self, now: Now, before: &[u8], batch: &[u8]) {
        let written = match &mut self.file {
            Some(file) => {
                let begun = write_all(file, before).map_err(|(_, error)| (0, error));
                begun.and_then(|()| write_all(file, batch))
            }
            None => Err((0, io::Error::from(io::ErrorKind::NotFound))),
        };
        match written {
            Ok(()) => self.sink.wrote(as_u64(before.len() + batch.len())),
            Err((written, error)) => {
                let path = self.options.path.display();
                crate::log::warning!("failed to write log {path}, dropping what does not fit: {error}");
                self.keep_whole_lines(now, written, batch);
            }
        }
    }

    /// Takes back what a failed write has left of a line: readers see whole lines only.
    fn keep_whole_lines(&mut self, now: Now, written: usize, batch: &[u8]) {
        let there = batch.get(..written).unwrap_or_default();
        let whole = there.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let excess = as_u64(written - whole);
        let taken_back = excess == 0 || self.file.as_ref().is_some_and(|file| shorten(file, excess).is_ok());
        let kept = if taken_back { whole } else { written };
        self.sink.failed(now, as_u64(kept), as_u64(batch.len() - kept));
        if !taken_back {
            self.sink.torn();
        }
    }

    /// A log that cannot be rotated now grows on, under whichever name it has: no line is lost for its size.
    fn rotate(&mut self, now: Now) {
        if let Err(error) = self.try_rotate(now) {
            crate::log::warning!("failed to rotate log {}: {error}", self.options.path.display());
            self.rotate_at_ms = now.mono_ms + ROTATE_AFTER_MS;
        }
    }

    fn try_rotate(&mut self, now: Now) -> io::Result<()> {
        let path = &self.options.path;
        let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
        else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        let mut present = names(directory)?;
        let rotated = rotated_name(name, now.unix_ns, present.iter().map(String::as_str));
        match fs::rename(path, directory.join(&rotated)) {
            // Someone else moved it, or the last attempt did and could not open a new one.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let (file, bytes) = open(path)?;
        self.file = Some(file);
        self.sink.opened(bytes);
        self.rotated = true;
        present.push(rotated);
        for old in excess(name, self.options.files_max, present.iter().map(String::as_str)) {
            match fs::remove_file(directory.join(&old)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    crate::log::warning!("failed to remove rotated log {old}: {error}");
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

/// Opens a log for appending; the directory is the agent's, the last component must not be a link.
fn open(path: &Path) -> io::Result<(File, u64)> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    }
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        // Non-blocking, so that a FIFO in its place cannot stop the shim.
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    Ok((file, metadata.len()))
}

/// Writes everything, or tells how much was written before the error.
pub(super) fn write_all(file: &mut File, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match file.write(rest) {
            Ok(0) => return Err((bytes.len() - rest.len(), io::Error::from(io::ErrorKind::WriteZero))),
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((bytes.len() - rest.len(), error)),
        }
    }
    Ok(())
}

fn shorten(file: &File, by: u64) -> io::Result<()> {
    let len = file.metadata()?.len();
    file.set_len(len.saturating_sub(by))
}

pub(super) fn names(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(names)
}

pub(super) fn as_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::{NonZeroU64, NonZeroUsize};

    const LINES: usize = 8;
    const LINES_MS: u64 = 8;

    fn at(mono_ms: u64) -> Now {
        Now { unix_ns: 0, mono_ms }
    }

    fn log(path: &Path) -> LogFile {
        let options = LogOptions {
            path: path.to_owned(),
            size_max: NonZeroU64::new(1),
            files_max: 2,
            line_bytes_max: NonZeroUsize::MAX,
        };
        let mut log = LogFile::new(options);
        log.open(at(0));
        log
    }

    fn write_lines(log: &mut LogFile) {
        for line in 0..LINES_MS {
            log.write(at(line), b"line\n");
        }
    }

    #[test]
    fn a_log_that_cannot_be_rotated_grows_on() {
        let directory = tempfile::tempdir().unwrap();
        // The longest file name there is: with the time behind it, it is too long to rename to.
        let path = directory.path().join("l".repeat(255));
        let mut log = log(&path);
        write_lines(&mut log);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), LINES);
        assert_eq!(log.dropped_bytes(), 0);
    }

    #[test]
    fn an_old_log_that_cannot_be_removed_holds_nothing_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        // Not a file, so remove_file fails, but by its name the oldest log.
        fs::create_dir(directory.path().join("0.log.19700101-000000")).unwrap();
        let mut log = log(&path);
        write_lines(&mut log);
        assert_eq!(log.dropped_bytes(), 0);
        // Every line filled a file, and all but the last rotated one are gone.
        let names = names(directory.path()).unwrap();
        assert_eq!(names.len(), 3, "{names:?}");
    }

    #[test]
    fn a_log_that_was_moved_is_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let mut log = log(&path);
        fs::remove_file(&path).unwrap();
        write_lines(&mut log);
        assert!(path.exists());
        assert_eq!(log.dropped_bytes(), 0);
    }
}
