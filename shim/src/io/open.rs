//! Opens a process's streams: the ends that the OCI runtime passes on, and the ends that the shim keeps.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use berth_shim_core::Now;
use berth_shim_core::log::Stream;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::unistd::pipe2;
use thiserror::Error;

use super::{Capture, LogFile, StdinUri, StreamUri};
use crate::sys;

/// Why streams could not be opened.
#[derive(Debug, Error)]
pub(crate) enum OpenError {
    #[error("open stream {path}", path = path.display())]
    Path { path: PathBuf, source: io::Error },
    #[error("make a pipe")]
    Pipe(#[source] nix::Error),
    #[error("start logging program {path}", path = program.display())]
    Binary { program: PathBuf, source: io::Error },
    #[error("give both streams to one log: standard output and error name different ones")]
    TwoLogs,
}

/// What the streams are connected to.
#[derive(Debug)]
pub(crate) enum Wiring {
    /// Where URIs lead. `terminal` processes have one output.
    Uris { stdin: StdinUri, stdout: StreamUri, stderr: StreamUri },
    /// `ExecSync`: nothing in, capped output.
    Capture { bytes_max: usize },
    /// One client, over its own request.
    Client { stdin: bool },
}

/// Whose streams they are, which logging programs are told.
#[derive(Debug)]
pub(crate) struct Owner<'a> {
    pub(crate) container: &'a str,
    pub(crate) namespace: &'a str,
}

/// Standard streams of the runtime, which passes them on to a process without a terminal.
#[derive(Debug)]
pub(crate) struct ChildStreams {
    pub(crate) stdin: Stdio,
    pub(crate) stdout: Stdio,
    pub(crate) stderr: Stdio,
}

/// The shim's ends, not yet watched.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    pub(crate) outputs: Vec<(Stream, OwnedFd)>,
    pub(crate) input: Option<OwnedFd>,
    /// A terminal's input is wanted (attached clients or a client's own stream).
    pub(crate) wants_input: bool,
    pub(crate) stdin_once: bool,
    pub(crate) stdin_fifo: Option<OwnedFd>,
    pub(crate) stdin_keeper: Option<OwnedFd>,
    pub(crate) keepers: Vec<OwnedFd>,
    pub(crate) relay: Option<OwnedFd>,
    pub(crate) log: Option<LogFile>,
    pub(crate) capture: Option<Capture>,
}

/// Opens what `wiring` says. With a terminal the runtime itself gets no streams: the master is theirs.
pub(crate) fn prepare(
    now: Now,
    wiring: Wiring,
    owner: &Owner<'_>,
    terminal: bool,
) -> Result<(ChildStreams, Prepared), OpenError> {
    let mut kept = Prepared::default();
    let mut child = ChildStreams { stdin: Stdio::null(), stdout: Stdio::null(), stderr: Stdio::null() };
    match wiring {
        Wiring::Uris { stdin, stdout, stderr: _ } if terminal => {
            terminal_input(&mut kept, stdin)?;
            terminal_output(&mut kept, now, owner, stdout)?;
        }
        Wiring::Uris { stdin, stdout, stderr } => {
            child.stdin = input(&mut kept, stdin)?;
            (child.stdout, child.stderr) = outputs(&mut kept, now, owner, (stdout, stderr))?;
        }
        Wiring::Capture { bytes_max } => {
            kept.capture = Some(Capture::new(bytes_max));
            child.stdout = read_here(&mut kept, Stream::Stdout)?;
            child.stderr = read_here(&mut kept, Stream::Stderr)?;
        }
        Wiring::Client { stdin } if terminal => kept.wants_input = stdin,
        Wiring::Client { stdin } => {
            if stdin {
                child.stdin = input(&mut kept, StdinUri::Attach { once: false })?;
            }
            child.stdout = read_here(&mut kept, Stream::Stdout)?;
            child.stderr = read_here(&mut kept, Stream::Stderr)?;
        }
    }
    Ok((child, kept))
}

fn input(kept: &mut Prepared, uri: StdinUri) -> Result<Stdio, OpenError> {
    match uri {
        StdinUri::Null => Ok(Stdio::null()),
        StdinUri::Fifo(path) => {
            let reader = open(&path, OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK))?;
            let writer = open(&path, OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK))?;
            blocking(&reader).map_err(OpenError::Pipe)?;
            kept.stdin_keeper = Some(writer.into());
            Ok(reader.into())
        }
        StdinUri::Attach { once } => {
            let (read, write) = pipe()?;
            nonblocking(&write).map_err(OpenError::Pipe)?;
            kept.input = Some(write);
            kept.stdin_once = once;
            Ok(read.into())
        }
    }
}

fn terminal_input(kept: &mut Prepared, uri: StdinUri) -> Result<(), OpenError> {
    match uri {
        StdinUri::Null => {}
        StdinUri::Fifo(path) => {
            let reader = open(&path, OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK))?;
            let writer = open(&path, OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK))?;
            kept.stdin_fifo = Some(reader.into());
            kept.stdin_keeper = Some(writer.into());
            kept.wants_input = true;
        }
        StdinUri::Attach { once } => {
            kept.wants_input = true;
            kept.stdin_once = once;
        }
    }
    Ok(())
}

fn terminal_output(
    kept: &mut Prepared,
    now: Now,
    owner: &Owner<'_>,
    uri: StreamUri,
) -> Result<(), OpenError> {
    match uri {
        StreamUri::Null => {}
        StreamUri::Fifo(path) => {
            let writer = fifo_writer(kept, &path)?;
            nonblocking(&writer).map_err(OpenError::Pipe)?;
            kept.relay = Some(writer);
        }
        StreamUri::File(path) => kept.relay = Some(append(&path)?.into()),
        StreamUri::Binary { program, arguments } => {
            let (stdout, _) = start_logger(owner, &program, &arguments)?;
            nonblocking(&stdout).map_err(OpenError::Pipe)?;
            kept.relay = Some(stdout);
        }
        StreamUri::CriLog(options) => kept.log = Some(LogFile::open(now, options)),
    }
    Ok(())
}

fn outputs(
    kept: &mut Prepared,
    now: Now,
    owner: &Owner<'_>,
    uris: (StreamUri, StreamUri),
) -> Result<(Stdio, Stdio), OpenError> {
    match uris {
        (StreamUri::Binary { program, arguments }, StreamUri::Binary { .. }) => {
            let (out, err) = start_logger(owner, &program, &arguments)?;
            Ok((out.into(), err.into()))
        }
        (StreamUri::CriLog(log), StreamUri::CriLog(other)) => {
            if log != other {
                return Err(OpenError::TwoLogs);
            }
            kept.log = Some(LogFile::open(now, log));
            Ok((read_here(kept, Stream::Stdout)?, read_here(kept, Stream::Stderr)?))
        }
        (StreamUri::CriLog(_), _) | (_, StreamUri::CriLog(_)) => Err(OpenError::TwoLogs),
        (stdout, stderr) => Ok((output(kept, owner, stdout)?, output(kept, owner, stderr)?)),
    }
}

fn output(kept: &mut Prepared, owner: &Owner<'_>, uri: StreamUri) -> Result<Stdio, OpenError> {
    match uri {
        StreamUri::Null => Ok(Stdio::null()),
        StreamUri::Fifo(path) => fifo_writer(kept, &path).map(Stdio::from),
        StreamUri::File(path) => append(&path).map(Stdio::from),
        StreamUri::Binary { program, arguments } => {
            start_logger(owner, &program, &arguments).map(|(stdout, _)| Stdio::from(stdout))
        }
        // Both streams of a log are opened together, above.
        StreamUri::CriLog(_) => Err(OpenError::TwoLogs),
    }
}

/// The write end for the container; the read end is kept, so that the container neither waits for a client to come nor
/// dies of one that goes.
fn fifo_writer(kept: &mut Prepared, path: &Path) -> Result<OwnedFd, OpenError> {
    let reader = open(path, OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK))?;
    let writer = open(path, OpenOptions::new().write(true))?;
    kept.keepers.push(reader.into());
    Ok(writer.into())
}

fn append(path: &Path) -> Result<File, OpenError> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)
            .map_err(|source| OpenError::Path { path: directory.to_owned(), source })?;
    }
    open(path, OpenOptions::new().append(true).create(true).mode(0o644))
}

fn open(path: &Path, options: &OpenOptions) -> Result<File, OpenError> {
    options.open(path).map_err(|source| OpenError::Path { path: path.to_owned(), source })
}

/// A pipe whose read end the shim watches.
fn read_here(kept: &mut Prepared, stream: Stream) -> Result<Stdio, OpenError> {
    let (read, write) = pipe()?;
    nonblocking(&read).map_err(OpenError::Pipe)?;
    kept.outputs.push((stream, read));
    Ok(write.into())
}

/// Starts a logging program with the read ends of two pipes; returns the write ends. Its third descriptor says that it
/// is ready, which need not be waited for: a pipe keeps what comes before.
fn start_logger(
    owner: &Owner<'_>,
    program: &Path,
    arguments: &[String],
) -> Result<(OwnedFd, OwnedFd), OpenError> {
    let (stdout, out) = pipe()?;
    let (stderr, err) = pipe()?;
    let (_ready, told) = pipe()?;
    let mut command = Command::new(program);
    command.args(arguments).env("CONTAINER_ID", owner.container).env("CONTAINER_NAMESPACE", owner.namespace);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    sys::spawn_with(&mut command, [stdout, stderr, told])
        .map_err(|source| OpenError::Binary { program: program.to_owned(), source })?;
    Ok((out, err))
}

fn pipe() -> Result<(OwnedFd, OwnedFd), OpenError> {
    pipe2(OFlag::O_CLOEXEC).map_err(OpenError::Pipe)
}

/// For ends that only the shim uses; the other end of a pipe is not affected.
pub(super) fn nonblocking(fd: &OwnedFd) -> nix::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map(|_| ())
}

fn blocking(file: &File) -> nix::Result<()> {
    fcntl(file, FcntlArg::F_SETFL(OFlag::empty())).map(|_| ())
}
