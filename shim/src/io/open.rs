//! Opens a process's streams: the ends that the OCI runtime passes on, and the ends that the shim keeps.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use berth_shim_core::log::Stream;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::unistd::{Gid, Uid, fchown, pipe2};
use thiserror::Error;

use super::logger::{Logger, Owner};
use super::raw_file::{Copy, Outputs, check};
use super::uri::Program;
use super::{Capture, Log, LogOptions, StdinUri, StreamUri, Writing};

/// Why streams could not be opened.
#[derive(Debug, Error)]
pub(crate) enum OpenError {
    #[error("open stream {path}", path = path.display())]
    Path { path: PathBuf, source: io::Error },
    #[error("make a pipe")]
    Pipe(#[source] nix::Error),
    #[error("give a pipe to the root of the pod's user namespace")]
    Give(#[source] nix::Error),
    #[error(
        "start the thread that writes the output: the process may need a higher limit of tasks (pids.max)"
    )]
    Writer(#[source] io::Error),
    #[error("start logging program {path}", path = program.display())]
    Binary { program: PathBuf, source: io::Error },
    #[error("give both streams to one log: standard output and error name different ones")]
    TwoLogs,
    #[error("give both streams to one logging program: standard output and error name different ones")]
    TwoPrograms,
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
    pub(crate) log: Option<Log>,
    pub(crate) files: Vec<Copy>,
    pub(crate) capture: Option<Capture>,
    /// A program that must say that it is ready before the process may be started.
    pub(crate) logger: Option<Logger>,
}

impl Prepared {
    /// Has the pipes belong to the root of a user namespace: a process in it opens its own streams by their path. Who owns a pipe is
    /// asked of either end.
    pub(crate) fn give_to(&self, (uid, gid): (u32, u32)) -> Result<(), OpenError> {
        let root = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        let mut pipes = self.outputs.iter().map(|(_, pipe)| pipe).chain(&self.input);
        pipes.try_for_each(|pipe| fchown(pipe, root.0, root.1)).map_err(OpenError::Give)
    }
}

/// Opens what `wiring` says. With a terminal the runtime itself gets no streams: the master is theirs.
pub(crate) fn prepare(
    writing: &Writing,
    wiring: Wiring,
    owner: &Owner<'_>,
    terminal: bool,
) -> Result<(ChildStreams, Prepared), OpenError> {
    let mut kept = Prepared::default();
    let mut child = ChildStreams { stdin: Stdio::null(), stdout: Stdio::null(), stderr: Stdio::null() };
    match wiring {
        Wiring::Uris { stdin, stdout, stderr: _ } if terminal => {
            terminal_input(&mut kept, stdin)?;
            terminal_output(&mut kept, writing, owner, stdout)?;
        }
        Wiring::Uris { stdin, stdout, stderr } => {
            child.stdin = input(&mut kept, stdin)?;
            (child.stdout, child.stderr) = outputs(&mut kept, writing, owner, (stdout, stderr))?;
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
    writing: &Writing,
    owner: &Owner<'_>,
    uri: StreamUri,
) -> Result<(), OpenError> {
    match uri {
        StreamUri::Null => {}
        StreamUri::Fifo(path) => match end_of(kept, writing, path, Outputs::Only(Stream::Stdout))? {
            End::Direct(fd) => {
                nonblocking(&fd).map_err(OpenError::Pipe)?;
                kept.relay = Some(fd);
            }
            End::Copied => {}
        },
        StreamUri::File(path) => copy_to(kept, writing, path, Outputs::Only(Stream::Stdout))?,
        StreamUri::Binary(program) => {
            let (stdout, _, logger) = Logger::start(owner, &program)?;
            kept.logger = Some(logger);
            nonblocking(&stdout).map_err(OpenError::Pipe)?;
            kept.relay = Some(stdout);
        }
        StreamUri::CriLog(options) => kept.log = Some(begin_log(writing, options)?),
    }
    Ok(())
}

fn outputs(
    kept: &mut Prepared,
    writing: &Writing,
    owner: &Owner<'_>,
    uris: (StreamUri, StreamUri),
) -> Result<(Stdio, Stdio), OpenError> {
    match uris {
        // The runc shim looks at standard output alone, which clients that name both alike cannot tell.
        (StreamUri::Binary(program), other) if other == StreamUri::Null || is(&other, &program) => {
            let (out, err, logger) = Logger::start(owner, &program)?;
            kept.logger = Some(logger);
            Ok((out.into(), err.into()))
        }
        (StreamUri::Binary(_), _) | (_, StreamUri::Binary(_)) => Err(OpenError::TwoPrograms),
        (StreamUri::CriLog(log), StreamUri::CriLog(other)) if log == other => {
            kept.log = Some(begin_log(writing, log)?);
            read_both_here(kept)
        }
        (StreamUri::CriLog(_), _) | (_, StreamUri::CriLog(_)) => Err(OpenError::TwoLogs),
        (StreamUri::File(path), StreamUri::File(other)) if path == other => {
            copy_to(kept, writing, path, Outputs::Both)?;
            read_both_here(kept)
        }
        (stdout, stderr) => {
            let stdout = output(kept, writing, Stream::Stdout, stdout)?;
            Ok((stdout, output(kept, writing, Stream::Stderr, stderr)?))
        }
    }
}

fn is(uri: &StreamUri, program: &Program) -> bool {
    matches!(uri, StreamUri::Binary(other) if other == program)
}

fn output(
    kept: &mut Prepared,
    writing: &Writing,
    stream: Stream,
    uri: StreamUri,
) -> Result<Stdio, OpenError> {
    match uri {
        StreamUri::Null => Ok(Stdio::null()),
        StreamUri::Fifo(path) => match end_of(kept, writing, path, Outputs::Only(stream))? {
            End::Direct(fd) => Ok(fd.into()),
            End::Copied => read_here(kept, stream),
        },
        StreamUri::File(path) => {
            copy_to(kept, writing, path, Outputs::Only(stream))?;
            read_here(kept, stream)
        }
        // Both streams of a log or of a program are opened together, above.
        StreamUri::CriLog(_) => Err(OpenError::TwoLogs),
        StreamUri::Binary(_) => Err(OpenError::TwoPrograms),
    }
}

/// How output comes to where a plain path leads.
enum End {
    /// By itself.
    Direct(OwnedFd),
    /// The shim copies it.
    Copied,
}

/// The write end of a named pipe for the process. The read end is kept, so that the process neither waits for a client
/// to come nor dies of one that goes, and what it has written stays for a client that comes back. A plain path may lead
/// to a file too, as with the runc shim.
fn end_of(kept: &mut Prepared, writing: &Writing, path: PathBuf, outputs: Outputs) -> Result<End, OpenError> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let reader = open(&path, OpenOptions::new().read(true).custom_flags(flags))?;
    let kind =
        reader.metadata().map_err(|source| OpenError::Path { path: path.clone(), source })?.file_type();
    if kind.is_file() {
        check_file(&path)?;
        copy_to(kept, writing, path, outputs)?;
        return Ok(End::Copied);
    }
    let writer = open(&path, OpenOptions::new().write(true).custom_flags(flags))?;
    blocking(&writer).map_err(OpenError::Pipe)?;
    if kind.is_fifo() {
        kept.keepers.push(reader.into());
    }
    Ok(End::Direct(writer.into()))
}

/// The file is opened by who writes it; one that cannot be was found out before, where there is time.
fn copy_to(kept: &mut Prepared, writing: &Writing, path: PathBuf, outputs: Outputs) -> Result<(), OpenError> {
    kept.files.push(Copy::start(writing, path, outputs).map_err(OpenError::Writer)?);
    Ok(())
}

fn begin_log(writing: &Writing, options: LogOptions) -> Result<Log, OpenError> {
    Log::start(writing, options).map_err(OpenError::Writer)
}

/// Finds out whether a file can be opened for output, which may wait for a disk.
pub(crate) fn check_file(path: &Path) -> Result<(), OpenError> {
    check(path).map(|_file| ()).map_err(|source| OpenError::Path { path: path.to_owned(), source })
}

fn open(path: &Path, options: &OpenOptions) -> Result<File, OpenError> {
    options.open(path).map_err(|source| OpenError::Path { path: path.to_owned(), source })
}

fn read_both_here(kept: &mut Prepared) -> Result<(Stdio, Stdio), OpenError> {
    Ok((read_here(kept, Stream::Stdout)?, read_here(kept, Stream::Stderr)?))
}

/// A pipe whose read end the shim watches.
fn read_here(kept: &mut Prepared, stream: Stream) -> Result<Stdio, OpenError> {
    let (read, write) = pipe()?;
    nonblocking(&read).map_err(OpenError::Pipe)?;
    kept.outputs.push((stream, read));
    Ok(write.into())
}

pub(super) fn pipe() -> Result<(OwnedFd, OwnedFd), OpenError> {
    pipe2(OFlag::O_CLOEXEC).map_err(OpenError::Pipe)
}

/// For ends that only the shim uses; the other end of a pipe is not affected.
pub(super) fn nonblocking(fd: &OwnedFd) -> nix::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map(|_| ())
}

fn blocking(file: &File) -> nix::Result<()> {
    fcntl(file, FcntlArg::F_SETFL(OFlag::empty())).map(|_| ())
}
