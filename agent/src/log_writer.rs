//! The program as a writer of container logs, for shims that know no CRI logs: containerd's `binary://` scheme.
//!
//! Such a shim starts it with the container's outputs as descriptors 3 and 4, the query of the URI as arguments in any
//! order, and waits until descriptor 5 is closed. It ends when both outputs have, or when it is told to by SIGTERM and has written what there
//! is. Framing, rotation and what to do when
//! the disk is full are those of our own shim (`berth-shim-core`).
//! Source: containerd `core/runtime/v2/README.md` "Logging", `pkg/cio/io_unix.go` `NewBinaryCmd`.

mod compress;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    num::{NonZeroU64, NonZeroUsize},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use berth_shim_core::{
    Now,
    log::{Attempt, Framer, Sink, Stream, excess, rotated_name},
};
use jiff::Timestamp;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::SignalFd,
    },
};

use self::compress::Compressor;
use crate::clock;

/// Bytes of a line before it is split, as containerd's CRI does.
const LINE_MAX: NonZeroUsize = NonZeroUsize::MIN.saturating_add(16383);

/// Bytes read at once.
const READ_MAX: usize = 64 << 10;

/// The descriptor to close when ready.
const READY: i32 = 5;

/// What to write to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    path: PathBuf,
    size_max: Option<NonZeroU64>,
    files_max: usize,
}

impl Options {
    /// The options, when the program was called as a log writer.
    #[must_use]
    pub fn from_args(args: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let args: Vec<String> = args.into_iter().skip(1).filter_map(|arg| arg.into_string().ok()).collect();
        let pairs: BTreeMap<&str, &str> = args
            .chunks_exact(2)
            .filter_map(|pair| Some((pair.first()?.as_str(), pair.get(1)?.as_str())))
            .collect();
        Some(Self {
            path: pairs.get("log-writer")?.into(),
            size_max: pairs.get("max-size").and_then(|size| size.parse().ok()),
            files_max: pairs.get("max-files").and_then(|files| files.parse().ok()).unwrap_or(usize::MAX),
        })
    }
}

/// Writes until both outputs have ended.
#[must_use]
pub fn run(options: Options) -> ExitCode {
    match copy(options) {
        Ok(()) => ExitCode::SUCCESS,
        // The shim shows nothing of it; the exit code is all there is to say.
        Err(_) => ExitCode::FAILURE,
    }
}

fn copy(options: Options) -> io::Result<()> {
    let mut outputs = vec![
        Output { pipe: File::open("/proc/self/fd/3")?, framer: Framer::new(Stream::Stdout, LINE_MAX) },
        Output { pipe: File::open("/proc/self/fd/4")?, framer: Framer::new(Stream::Stderr, LINE_MAX) },
    ];
    let mut log = Log::open(options);
    let mut end = SigSet::empty();
    end.add(Signal::SIGTERM);
    end.thread_block()?;
    let end = SignalFd::new(&end)?;
    nix::unistd::close(READY)?;
    let mut buffer = vec![0; READ_MAX];
    let mut is_to_end = false;
    while !outputs.is_empty() {
        let ready = wait(&outputs, &end, &mut is_to_end)?;
        let mut batch = Vec::new();
        if is_to_end && ready.is_empty() {
            outputs.drain(..).for_each(|mut output| output.framer.finish(now(), &mut batch));
        }
        let mut ended = Vec::new();
        for (index, output) in outputs.iter_mut().enumerate() {
            if ready.contains(&index) {
                match output.pipe.read(&mut buffer)? {
                    0 => {
                        output.framer.finish(now(), &mut batch);
                        ended.push(index);
                    }
                    length => output.framer.push(now(), &buffer[..length], &mut batch),
                }
            }
            output.framer.flush(now(), &mut batch);
        }
        log.write(&batch);
        for index in ended.into_iter().rev() {
            outputs.remove(index);
        }
    }
    log.compressor.finish();
    Ok(())
}

struct Output {
    pipe: File,
    framer: Framer,
}

/// Which outputs can be read, or have ended, and whether it is told to end: then nothing is waited for. Returns early when a part of a line
/// has been waiting long enough.
fn wait(outputs: &[Output], end: &SignalFd, is_to_end: &mut bool) -> io::Result<Vec<usize>> {
    let flush_at = outputs.iter().filter_map(|output| output.framer.flush_at_ms()).min();
    let timeout = match flush_at {
        _ if *is_to_end => PollTimeout::ZERO,
        Some(at) => PollTimeout::try_from(Duration::from_millis(at.saturating_sub(now().mono_ms) + 1))
            .unwrap_or(PollTimeout::MAX),
        None => PollTimeout::NONE,
    };
    let all = outputs.iter().map(|output| output.pipe.as_fd()).chain([end.as_fd()]);
    let mut polled: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    match poll(&mut polled, timeout) {
        Ok(_) | Err(nix::Error::EINTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or_default();
    *is_to_end |= polled.pop().is_some_and(|fd| is_ready(&fd));
    Ok(polled.iter().enumerate().filter(|(_, fd)| is_ready(fd)).map(|(index, _)| index).collect())
}

/// The log file.
struct Log {
    options: Options,
    file: Option<File>,
    sink: Sink,
    compressor: Compressor,
}

impl Log {
    fn open(options: Options) -> Self {
        match open(&options.path) {
            Ok((file, bytes)) => {
                let sink = Sink::new(bytes, options.size_max);
                Self { options, file: Some(file), sink, compressor: Compressor::default() }
            }
            Err(_) => {
                let sink = Sink::unopened(now(), options.size_max);
                Self { options, file: None, sink, compressor: Compressor::default() }
            }
        }
    }

    /// Writes a batch, or drops it when the disk does not take it: the container never waits for the disk.
    fn write(&mut self, batch: &[u8]) {
        let length = batch.len() as u64;
        if batch.is_empty() {
            return;
        }
        // Not before there is more: what was written last stays where readers look.
        if self.sink.is_full() {
            self.rotate();
        }
        let mut attempt = self.sink.offer(now(), length);
        if attempt == Attempt::Reopen && self.reopen(length) {
            attempt = self.sink.offer(now(), length);
        }
        match attempt {
            Attempt::Write => self.put(batch),
            Attempt::WriteOnNewLine => self.put(&[b"\n", batch].concat()),
            Attempt::Reopen | Attempt::Drop => {}
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        let written = self.file.as_mut().map_or(0, |file| write(file, bytes));
        if written == bytes.len() {
            self.sink.wrote(written as u64);
            return;
        }
        self.sink.failed(now(), written as u64, (bytes.len() - written) as u64);
        if bytes[..written].last().is_some_and(|last| *last != b'\n') {
            self.sink.torn();
        }
    }

    fn reopen(&mut self, lost: u64) -> bool {
        match open(&self.options.path) {
            Ok((file, bytes)) => {
                self.file = Some(file);
                self.sink.opened(bytes);
                true
            }
            Err(_) => {
                self.sink.failed(now(), 0, lost);
                false
            }
        }
    }

    fn rotate(&mut self) {
        let Options { path, files_max, .. } = &self.options;
        let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
            return;
        };
        let present = names(dir);
        let rotated = rotated_name(name, now().unix_ns, present.iter().map(String::as_str));
        match fs::rename(path, dir.join(&rotated)) {
            // The last try did it, and could not open a new one.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return,
            Ok(()) | Err(_) => {}
        }
        // Without a new one the old one grows on: no line is lost for its size.
        let Ok((file, bytes)) = open(path) else { return };
        self.file = Some(file);
        self.sink.opened(bytes);
        let present = names(dir);
        for old in excess(name, *files_max, present.iter().map(String::as_str)) {
            // It is tried again with the next rotation.
            drop(fs::remove_file(dir.join(old)));
        }
        self.compressor.begin(path);
    }
}

/// How much of it was written.
fn write(file: &mut File, bytes: &[u8]) -> usize {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match file.write(rest) {
            Ok(length) if length > 0 => written += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => break,
        }
    }
    written
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    let flags = nix::fcntl::OFlag::O_NOFOLLOW.bits();
    let file = OpenOptions::new().create(true).append(true).mode(0o640).custom_flags(flags).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

fn now() -> Now {
    Now {
        unix_ns: i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX),
        mono_ms: u64::try_from(clock::mono().0.as_millis()).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str]) -> Option<Options> {
        Options::from_args(args.iter().map(OsString::from))
    }

    #[test]
    fn arguments_come_in_any_order() {
        let expected = Options { path: "/log/0.log".into(), size_max: NonZeroU64::new(100), files_max: 3 };
        for args in [
            ["berth", "log-writer", "/log/0.log", "max-size", "100", "max-files", "3"],
            ["berth", "max-files", "3", "max-size", "100", "log-writer", "/log/0.log"],
        ] {
            assert_eq!(options(&args), Some(expected.clone()));
        }
        assert_eq!(options(&["berth", "run", "--config", "x"]), None);
        assert_eq!(options(&["berth"]), None);
    }

    #[test]
    fn a_full_log_is_rotated_and_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = Log::open(Options { path: path.clone(), size_max: NonZeroU64::new(10), files_max: 2 });
        for line in ["one line\n", "two lines\n", "three lines\n", "four\n"] {
            log.write(line.as_bytes());
        }
        log.compressor.finish();
        let mut found = names(dir.path());
        found.sort();
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "four\n");
        assert_eq!(fs::read_to_string(dir.path().join(&found[1])).unwrap(), "three lines\n");
    }

    /// The disk took a part of a line, and takes more again.
    #[test]
    fn what_comes_after_a_torn_line_begins_on_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = Log::open(Options { path: path.clone(), size_max: None, files_max: 2 });
        log.write(b"half");
        log.sink.failed(now(), 4, 4);
        log.sink.torn();
        let began = std::time::Instant::now();
        while fs::read_to_string(&path).unwrap() == "half" {
            assert!(began.elapsed() < Duration::from_secs(60), "nothing is written any more");
            log.write(b"next\n");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "half\nnext\n");
    }

    #[test]
    fn rotated_logs_but_the_newest_are_compressed_with_their_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = Log::open(Options { path, size_max: NonZeroU64::new(10), files_max: 5 });
        for line in ["the first of them\n", "the second\n", "the third\n", "the last\n"] {
            log.write(line.as_bytes());
            log.compressor.finish();
        }
        let mut found = names(dir.path());
        found.sort();
        let [live, one, two, three] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(live, "0.log");
        assert!(one.ends_with(".gz") && two.ends_with(".gz") && !three.ends_with(".gz"), "{found:?}");
        let mode = fs::metadata(dir.path().join(one)).unwrap().permissions();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o640);
        let mut text = String::new();
        let file = File::open(dir.path().join(one)).unwrap();
        flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
        assert_eq!(text, "the first of them\n");
    }
}
