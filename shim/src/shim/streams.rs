//! The streams of processes: how they come, who shares them, and how they go.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use berth_shim_core::Process;
use berth_shim_core::log::Stream;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::Shim;
use super::clients::Route;
use super::watches::{Source, Watches};
use super::writers::Leaving;
use crate::conn::would_wait;
use crate::io::{Client, Early, Input, Output, Prepared, ProcessIo, Relay, Role};
use crate::poll::{Interest, Token};

/// Capacity that a queue keeps once it is empty: a burst is not paid for until the process ends.
const KEPT_BYTES_MAX: usize = 16 << 10;

impl Shim {
    /// Watches the ends that were prepared for a process that runs now.
    pub(super) fn install(
        &mut self,
        process: &Process,
        kept: Prepared,
        master: Option<OwnedFd>,
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
            let token = self.watches.add(&fd, Interest::Read, Source::Output(process.clone()))?;
            io.outputs.push((token, Output { fd: File::from(fd), stream, stalled: false }));
        }
        if let Some(fd) = input {
            let token = self.watches.reserve(Source::Input(process.clone()));
            let (fd, pending) = (File::from(fd), VecDeque::new());
            io.input = Some(Input { fd, token, watched: false, pending, closing: false });
        }
        if let Some(fd) = kept.relay {
            let token = self.watches.reserve(Source::Relay(process.clone()));
            io.relay = Some(Relay { fd: File::from(fd), token, watched: false, pending: VecDeque::new() });
        }
        if let Some(fd) = kept.stdin_fifo {
            let token = self.watches.add(&fd, Interest::Read, Source::StdinFifo(process.clone()))?;
            io.stdin_fifo = Some((token, File::from(fd)));
        }
        // An exec's client is there before its process, and so may its input be.
        let before = self.ios.remove(process).unwrap_or_default();
        io.clients = before.clients;
        self.ios.insert(process.clone(), io);
        if let Some(early) = before.early {
            self.take_early(process, early);
        }
        Ok(())
    }

    fn take_early(&mut self, process: &Process, early: Early) {
        if let Some((columns, rows)) = early.size {
            // A process without a terminal has no size.
            let _no_terminal = self.resize(process, columns, rows).is_err();
        }
        if let Some(input) = self.ios.get_mut(process).and_then(|io| io.input.as_mut()) {
            input.pending = early.input;
        }
        self.flush_input(process);
        if early.closed {
            self.close_input(process);
        }
    }

    /// Gives an exec the client that it is for.
    pub(super) fn own_client(&mut self, process: &Process, conn: u64, stream: u32, stdin: bool) {
        let client = Client { conn, stream, role: Role::Owner };
        let io = self.ios.entry(process.clone()).or_default();
        io.clients.push(client);
        io.early = Some(Early::default());
        self.clients.lead(conn, stream, Route { process: process.clone(), stdin });
    }

    /// A client leaves a process.
    pub(super) fn detach(&mut self, route: &Route, conn: u64, stream: u32) {
        // It was made to wait for this process alone.
        self.clients.release(conn);
        let Some(io) = self.ios.get_mut(&route.process) else { return };
        io.clients.retain(|client| (client.conn, client.stream) != (conn, stream));
        let once = io.stdin_once && route.stdin;
        self.unstall(&route.process);
        if once {
            self.close_input(&route.process);
        }
    }

    /// The process has exited: whoever writes to it learns that. What it has written stays in its named pipes until it
    /// is forgotten, for a client that is away just now.
    pub(super) fn release_ends(&mut self, process: &Process) {
        self.drop_input(process);
        self.drop_stdin_fifo(process);
        if let Some(io) = self.ios.get_mut(process) {
            io.stdin_keeper = None;
        }
    }

    /// Lets go of everything of a process.
    pub(super) fn drop_io(&mut self, process: &Process) {
        self.drain(process);
        let now = self.now();
        self.drop_input(process);
        self.drop_stdin_fifo(process);
        let Some(mut io) = self.ios.remove(process) else { return };
        if let Some(pid) = io.logger {
            self.calls.dismiss_logger(pid, now.mono_ms);
        }
        for (token, output) in io.outputs {
            self.watches.end(&output.fd, token);
            if let Some(log) = &mut io.log {
                log.finish(now, output.stream);
            }
        }
        if let Some(relay) = io.relay {
            self.watches.end(&relay.fd, relay.token);
        }
        for leaving in io.log.map(Leaving::Log).into_iter().chain(io.files.into_iter().map(Leaving::File)) {
            self.leave(leaving);
        }
    }
}

/// Writes what waits, until there is no room.
pub(super) fn write_pending(to: &mut File, pending: &mut VecDeque<u8>) -> io::Result<()> {
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
pub(super) fn watch(watches: &Watches, fd: &File, token: Token, watched: &mut bool, wants: bool) {
    if wants && !*watched {
        *watched = watches.resume(fd, token, Interest::Write).is_ok();
    } else if !wants && *watched {
        watches.pause(fd);
        *watched = false;
    }
}
