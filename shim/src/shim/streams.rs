//! The streams of processes: how they come, who shares them, and how they go.

mod inputs;
mod outputs;
mod rotations;
mod writers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use berth_proto::ttrpc::{Code, Status};
use berth_shim_core::log::Stream;
use berth_shim_core::{Id, Now, Process};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::clients::{Clients, Route};
use super::watches::{Source, Watches};
use crate::answer::LogFacts;
use crate::conn::would_wait;
use crate::io::{Capture, Client, Clock, Early, Input, Output, Prepared, ProcessIo, Relay, Writing};
use crate::pod::Node;
use crate::poll::{Interest, Token};
use crate::sys;
pub(super) use inputs::INPUT_BYTES_HOLD;
use rotations::Rotations;
use writers::{Leaving, Reopening};

/// Capacity that a queue keeps once it is empty: a burst is not paid for until the process ends.
const KEPT_BYTES_MAX: usize = 16 << 10;

pub(super) struct Streams {
    ios: BTreeMap<Process, ProcessIo>,
    writing: Writing,
    /// Processes whose last output is on its way to the disk.
    draining: BTreeSet<Process>,
    /// Logs and files of processes that are gone, with what is left to write.
    leaving: Vec<Leaving>,
    reopenings: Vec<Reopening>,
    rotations: Rotations,
}

impl Streams {
    pub(super) fn new(clock: Clock, watches: &mut Watches) -> nix::Result<Self> {
        let writing = Writing::new(clock)?;
        watches.add(writing.word(), Interest::Read, Source::Writers)?;
        Ok(Self {
            ios: BTreeMap::new(),
            writing,
            draining: BTreeSet::new(),
            leaving: Vec::new(),
            reopenings: Vec::new(),
            rotations: Rotations::default(),
        })
    }

    /// What writers of logs and files have in common, in a shim that has left these namespaces of the node.
    pub(super) fn writing(&self, node: Option<&Node>) -> Writing {
        self.writing.on_node(node.cloned())
    }

    /// Watches the ends that were prepared for a process that runs now.
    pub(super) fn install(
        &mut self,
        process: &Process,
        (kept, master): (Prepared, Option<OwnedFd>),
        watches: &mut Watches,
        clients: &mut Clients,
    ) -> io::Result<()> {
        let mut io = ProcessIo {
            stdin_once: kept.stdin_once,
            stdin_keeper: kept.stdin_keeper,
            keepers: kept.keepers,
            log: kept.log,
            files: kept.files,
            capture: kept.capture,
            ..ProcessIo::default()
        };
        let mut outputs = kept.outputs;
        let mut input = kept.input;
        if let Some(master) = master {
            fcntl(&master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
            outputs.push((Stream::Stdout, master.try_clone()?));
            if kept.wants_input {
                input = Some(master.try_clone()?);
            }
            io.master = Some(master);
        }
        for (stream, fd) in outputs {
            let token = watches.add(&fd, Interest::Read, Source::Output(process.clone()))?;
            io.outputs.push((token, Output { fd: File::from(fd), stream, stalled: false }));
        }
        if let Some(fd) = input {
            let token = watches.reserve(Source::Input(process.clone()));
            let (fd, pending) = (File::from(fd), VecDeque::new());
            io.input = Some(Input { fd, token, watched: false, pending, closing: false });
        }
        if let Some(fd) = kept.relay {
            let token = watches.reserve(Source::Relay(process.clone()));
            io.relay = Some(Relay { fd: File::from(fd), token, watched: false, pending: VecDeque::new() });
        }
        if let Some(fd) = kept.stdin_fifo {
            let token = watches.add(&fd, Interest::Read, Source::StdinFifo(process.clone()))?;
            io.stdin_fifo = Some((token, File::from(fd)));
        }
        // An exec's client is there before its process, and so may its input be.
        let before = self.ios.remove(process).unwrap_or_default();
        io.clients = before.clients;
        self.ios.insert(process.clone(), io);
        if let Some(early) = before.early {
            self.take_early(process, early, watches, clients);
        }
        Ok(())
    }

    fn take_early(&mut self, process: &Process, early: Early, watches: &mut Watches, clients: &mut Clients) {
        if let Some((columns, rows)) = early.size {
            // A process without a terminal has no size.
            let _no_terminal = self.resize(process, columns, rows).is_err();
        }
        if let Some(input) = self.ios.get_mut(process).and_then(|io| io.input.as_mut()) {
            input.pending = early.input;
        }
        self.flush_input(process, watches, clients);
        if early.closed {
            self.close_input(process, watches, clients);
        }
    }

    /// Gives an exec the client that it is for.
    pub(super) fn begin_with(&mut self, process: &Process, client: Client) {
        let io = self.ios.entry(process.clone()).or_default();
        io.clients.push(client);
        io.early = Some(Early::default());
    }

    /// Adds a client that looks on.
    pub(super) fn attach(&mut self, process: &Process, client: Client) -> Result<(), Status> {
        let io = self.ios.get_mut(process).filter(|io| io.is_shims());
        let io = io.ok_or_else(|| {
            Status::new(
                Code::FailedPrecondition,
                "the container's streams are not the shim's: they lead to its client",
            )
        })?;
        io.clients.push(client);
        Ok(())
    }

    /// A client leaves a process.
    pub(super) fn detach(
        &mut self,
        route: &Route,
        (conn, stream): (u64, u32),
        watches: &mut Watches,
        clients: &mut Clients,
    ) {
        let Some(io) = self.ios.get_mut(&route.process) else { return };
        io.clients.retain(|client| (client.conn, client.stream) != (conn, stream));
        let once = io.stdin_once && route.stdin;
        self.unhold(&route.process, watches);
        if once {
            self.close_input(&route.process, watches, clients);
        }
    }

    /// All clients leave a process.
    pub(super) fn take_clients(&mut self, process: &Process) -> Vec<Client> {
        self.ios.get_mut(process).map(|io| std::mem::take(&mut io.clients)).unwrap_or_default()
    }

    /// Notes the logging program of a process, by pid.
    pub(super) fn set_logger(&mut self, process: &Process, pid: Option<u32>) {
        self.ios.entry(process.clone()).or_default().logger = pid;
    }

    pub(super) fn take_capture(&mut self, exec: &Id) -> Option<Capture> {
        let found = self.ios.iter_mut().find(|(process, _)| process.exec.as_ref() == Some(exec));
        found.and_then(|(_, io)| io.capture.take())
    }

    /// How the logs of containers are doing.
    pub(super) fn log_facts(&self) -> BTreeMap<String, LogFacts> {
        let inits = self.ios.iter().filter(|(process, _)| process.exec.is_none());
        inits.map(|(process, io)| (process.task.as_str().to_owned(), LogFacts::of(io))).collect()
    }

    /// Writes unfinished lines that are old enough.
    pub(super) fn flush_logs(&mut self, now: Now) {
        for io in self.ios.values_mut() {
            if let Some(log) = &mut io.log
                && log.flush_at_ms().is_some_and(|at| at <= now.mono_ms)
            {
                log.flush(now);
            }
        }
    }

    /// When the first of them is.
    pub(super) fn flush_at_ms(&self) -> Option<u64> {
        self.ios.values().filter_map(|io| io.log.as_ref()?.flush_at_ms()).min()
    }

    /// Nothing happens to a process without a terminal, or before it has one (`process/init.go`, `Resize`).
    pub(super) fn resize(&mut self, process: &Process, columns: u16, rows: u16) -> Result<(), Status> {
        let io = self.ios.get_mut(process);
        if let Some(io) = io {
            if let Some(early) = &mut io.early {
                early.size = Some((columns, rows));
                return Ok(());
            }
            if let Some(master) = &io.master {
                return sys::resize(master, columns, rows).map_err(|error| {
                    Status::new(Code::Internal, format!("failed to resize the terminal: {error}"))
                });
            }
        }
        Ok(())
    }

    /// The process has exited: whoever writes to it learns that. What it has written stays in its named pipes until it
    /// is forgotten, for a client that is away just now.
    pub(super) fn release_ends(&mut self, process: &Process, watches: &mut Watches) {
        self.drop_input(process, watches);
        self.drop_stdin_fifo(process, watches);
        if let Some(io) = self.ios.get_mut(process) {
            io.stdin_keeper = None;
        }
    }

    /// Lets go of everything of a process; returns the pid of its logging program.
    pub(super) fn remove(&mut self, now: Now, process: &Process, watches: &mut Watches) -> Option<u32> {
        self.drop_input(process, watches);
        self.drop_stdin_fifo(process, watches);
        let mut io = self.ios.remove(process)?;
        for (token, output) in io.outputs {
            watches.end(&output.fd, token);
            if let Some(log) = &mut io.log {
                log.finish(now, output.stream);
            }
        }
        if let Some(relay) = io.relay {
            watches.end(&relay.fd, relay.token);
        }
        for leaving in io.log.map(Leaving::Log).into_iter().chain(io.files.into_iter().map(Leaving::File)) {
            self.leave(leaving);
        }
        io.logger
    }
}

/// Writes what waits, until there is no room.
fn write_pending(to: &mut File, pending: &mut VecDeque<u8>) -> io::Result<()> {
    while !pending.is_empty() {
        let (first, _) = pending.as_slices();
        match to.write(first) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero)),
            Ok(count) => {
                pending.drain(..count);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if would_wait(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    if pending.capacity() > KEPT_BYTES_MAX {
        *pending = VecDeque::new();
    }
    Ok(())
}

/// Watches for room to write exactly while something waits. A regular file always has room and cannot be watched.
fn watch(watches: &Watches, fd: &File, token: Token, watched: &mut bool, wants: bool) {
    if wants && !*watched {
        *watched = watches.resume(fd, token, Interest::Write).is_ok();
    } else if !wants && *watched {
        watches.pause(fd);
        *watched = false;
    }
}
