//! Bytes between processes and whoever they stream with.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use berth_proto::shim::attach_output::What;
use berth_proto::ttrpc::{Code, Status};
use berth_shim_core::Process;
use berth_shim_core::log::Stream;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::{Route, Shim, Source};
use crate::conn::{ATTACH_PENDING_BYTES_MAX, STREAM_PENDING_BYTES_MAX, would_wait};
use crate::io::{Client, Early, Input, Output, Prepared, ProcessIo, Relay, Role};
use crate::poll::{Interest, Token};

/// Reads from one process before others have their turn.
const READS_MAX: usize = 4;
/// Reads on a process's exit: what its pipes held by then, and no more of what a survivor goes on writing. A pipe holds
/// at most 1 MiB (`fs.pipe-max-size`).
const DRAIN_READS_MAX: usize = 128;
/// Input that waits for a process before its client must wait.
const INPUT_BYTES_HOLD: usize = 256 << 10;
/// Input that waits for a process when the client cannot be made to wait, because other calls share its connection.
const INPUT_BYTES_MAX: usize = 4 << 20;
/// Bytes that wait for a terminal's reader, before the terminal is not read.
const RELAY_BYTES_MAX: usize = 64 << 10;

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
            let token = self.poll.add(&fd, Interest::Read)?;
            self.sources.insert(token, Source::Output(process.clone()));
            io.outputs.push((token, Output { fd: File::from(fd), stream, stalled: false }));
        }
        if let Some(fd) = input {
            let token = self.poll.reserve();
            self.sources.insert(token, Source::Input(process.clone()));
            let (fd, pending) = (File::from(fd), VecDeque::new());
            io.input = Some(Input { fd, token, watched: false, pending, closing: false });
        }
        if let Some(fd) = kept.relay {
            let token = self.poll.reserve();
            self.sources.insert(token, Source::Relay(process.clone()));
            io.relay = Some(Relay { fd: File::from(fd), token, watched: false, pending: VecDeque::new() });
        }
        if let Some(fd) = kept.stdin_fifo {
            let token = self.poll.add(&fd, Interest::Read)?;
            self.sources.insert(token, Source::StdinFifo(process.clone()));
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
        self.routes.insert((conn, stream), Route { process: process.clone(), stdin });
    }

    pub(super) fn output_ready(&mut self, process: &Process, token: Token) {
        self.pump(process, token, READS_MAX);
    }

    /// Reads what a process's pipes hold now.
    pub(super) fn drain(&mut self, process: &Process) {
        let Some(io) = self.ios.get(process) else { return };
        let tokens: Vec<Token> = io.outputs.iter().map(|(token, _)| *token).collect();
        for token in tokens {
            self.pump(process, token, DRAIN_READS_MAX);
        }
    }

    fn pump(&mut self, process: &Process, token: Token, reads: usize) {
        let mut chunk = std::mem::take(&mut self.chunk);
        for _read in 0..reads {
            let Some(output) = self.output_mut(process, token) else { break };
            let stream = output.stream;
            match output.fd.read(&mut chunk) {
                Ok(0) => {
                    self.close_output(process, token);
                    break;
                }
                Ok(count) => {
                    let bytes = chunk.get(..count).unwrap_or_default();
                    if !self.deliver(process, stream, bytes) && reads == READS_MAX {
                        self.stall(process, token);
                        break;
                    }
                }
                Err(error) if would_wait(&error) => break,
                // EIO: every process has closed the terminal.
                Err(_ended) => {
                    self.close_output(process, token);
                    break;
                }
            }
        }
        self.chunk = chunk;
    }

    fn output_mut(&mut self, process: &Process, token: Token) -> Option<&mut Output> {
        let io = self.ios.get_mut(process)?;
        io.outputs.iter_mut().find(|(own, _)| *own == token).map(|(_, output)| output)
    }

    /// Gives output to everyone who is to have it; returns whether more may follow at once.
    fn deliver(&mut self, process: &Process, stream: Stream, bytes: &[u8]) -> bool {
        let now = self.now();
        let Some(io) = self.ios.get_mut(process) else { return true };
        if let Some(log) = &mut io.log {
            log.push(now, stream, bytes);
        }
        if let Some(capture) = &mut io.capture {
            capture.push(stream, bytes);
        }
        let mut more = true;
        let relays = io.relay.as_mut().map(|relay| relay.pending.extend(bytes)).is_some();
        let clients: Vec<Client> =
            io.clients.iter().filter(|client| client.role.wants(stream)).cloned().collect();
        if relays {
            self.flush_relay(process);
            let waiting =
                self.ios.get(process).and_then(|io| io.relay.as_ref()).map_or(0, |relay| relay.pending.len());
            more &= waiting < RELAY_BYTES_MAX;
        }
        for client in clients {
            let what = match stream {
                Stream::Stdout => What::Stdout(bytes.to_vec()),
                Stream::Stderr => What::Stderr(bytes.to_vec()),
            };
            let waiting = self.send(client.conn, client.stream, what);
            if client.role == Role::Owner {
                more &= waiting < STREAM_PENDING_BYTES_MAX;
            } else if waiting > ATTACH_PENDING_BYTES_MAX {
                let slow = Status::new(
                    Code::ResourceExhausted,
                    "the client reads more slowly than the container writes",
                );
                self.end_stream(client.conn, client.stream, Err(slow));
            }
        }
        more
    }

    /// Stops reading an output until there is room again.
    fn stall(&mut self, process: &Process, token: Token) {
        let Some(io) = self.ios.get_mut(process) else { return };
        if let Some((_, output)) = io.outputs.iter_mut().find(|(own, _)| *own == token) {
            output.stalled = true;
            self.poll.remove(&output.fd);
        }
    }

    /// Reads again what a client's slowness has stalled, once it has caught up.
    pub(super) fn resume_outputs(&mut self, conn: u64) {
        if self.conns.get_mut(&conn).is_none_or(|conn| conn.pending() >= STREAM_PENDING_BYTES_MAX / 2) {
            return;
        }
        let streams: Vec<Process> = self
            .routes
            .iter()
            .filter(|((own, _), _)| *own == conn)
            .map(|(_, route)| route.process.clone())
            .collect();
        for process in streams {
            self.unstall(&process);
        }
    }

    fn unstall(&mut self, process: &Process) {
        let Some(io) = self.ios.get_mut(process) else { return };
        for (token, output) in io.outputs.iter_mut().filter(|(_, output)| output.stalled) {
            output.stalled = self.poll.add_again(&output.fd, *token, Interest::Read).is_err();
        }
    }

    fn close_output(&mut self, process: &Process, token: Token) {
        let now = self.now();
        let Some(io) = self.ios.get_mut(process) else { return };
        let Some(at) = io.outputs.iter().position(|(own, _)| *own == token) else { return };
        let (_, output) = io.outputs.remove(at);
        self.poll.remove(&output.fd);
        self.sources.remove(&token);
        if let Some(log) = &mut io.log {
            log.finish(now, output.stream);
        }
        self.close_relay_if_done(process);
    }

    /// Copies on what a terminal has written.
    pub(super) fn flush_relay(&mut self, process: &Process) {
        let Some(relay) = self.ios.get_mut(process).and_then(|io| io.relay.as_mut()) else { return };
        match write_pending(&mut relay.fd, &mut relay.pending) {
            Ok(()) => {
                let wants = !relay.pending.is_empty();
                watch(&self.poll, &relay.fd, relay.token, &mut relay.watched, wants);
            }
            Err(_reader_gone) => relay.pending.clear(),
        }
        if relay.pending.len() < RELAY_BYTES_MAX / 2 {
            self.unstall(process);
        }
        self.close_relay_if_done(process);
    }

    /// The reader learns of the end when everything was copied.
    fn close_relay_if_done(&mut self, process: &Process) {
        let Some(io) = self.ios.get_mut(process) else { return };
        if io.outputs.is_empty()
            && let Some(relay) = io.relay.take_if(|relay| relay.pending.is_empty())
        {
            self.poll.remove(&relay.fd);
            self.sources.remove(&relay.token);
            io.keepers.clear();
        }
    }

    /// Input from a client of the shim's own service.
    pub(super) fn client_input(&mut self, conn: u64, stream: u32, route: &Route, bytes: &[u8]) {
        self.push_input(&route.process, bytes);
        let waiting = self.ios.get(&route.process).map_or(0, ProcessIo::waiting_input);
        if waiting <= INPUT_BYTES_HOLD {
            return;
        }
        let Some(client) = self.conns.get_mut(&conn) else { return };
        if client.server.open_streams().count() == 1 {
            client.held = true;
        } else if waiting > INPUT_BYTES_MAX {
            let text =
                "the process does not read its input; stream on a connection of its own to be made to wait";
            self.end_stream(conn, stream, Err(Status::new(Code::ResourceExhausted, text)));
        }
    }

    fn push_input(&mut self, process: &Process, bytes: &[u8]) {
        if let Some(early) = self.ios.get_mut(process).and_then(|io| io.early.as_mut()) {
            early.input.extend(bytes);
            return;
        }
        let Some(input) = self.ios.get_mut(process).and_then(|io| io.input.as_mut()) else { return };
        if !input.closing {
            input.pending.extend(bytes);
        }
        self.flush_input(process);
    }

    pub(super) fn flush_input(&mut self, process: &Process) {
        let Some(input) = self.ios.get_mut(process).and_then(|io| io.input.as_mut()) else { return };
        let result = write_pending(&mut input.fd, &mut input.pending);
        let done = input.pending.is_empty() && input.closing;
        if result.is_err() || done {
            self.drop_input(process);
            self.release_clients(process);
            return;
        }
        watch(&self.poll, &input.fd, input.token, &mut input.watched, !input.pending.is_empty());
        if input.pending.len() <= INPUT_BYTES_HOLD / 2 {
            self.release_clients(process);
        }
    }

    /// Reads again from the clients of a process and from its named pipe.
    fn release_clients(&mut self, process: &Process) {
        let Some(io) = self.ios.get(process) else { return };
        for client in &io.clients {
            if let Some(conn) = self.conns.get_mut(&client.conn) {
                conn.held = false;
            }
        }
        if let Some((token, fifo)) = &io.stdin_fifo {
            // Watched already, unless it was held.
            let _watched = self.poll.add_again(fifo, *token, Interest::Read).is_err();
        }
    }

    /// A terminal's input from a named pipe.
    pub(super) fn stdin_fifo_ready(&mut self, process: &Process) {
        let mut chunk = std::mem::take(&mut self.chunk);
        let read = self
            .ios
            .get_mut(process)
            .and_then(|io| io.stdin_fifo.as_mut())
            .map(|(_, fifo)| fifo.read(&mut chunk));
        match read {
            Some(Ok(count)) if count > 0 => {
                self.push_input(process, chunk.get(..count).unwrap_or_default());
                let Some(io) = self.ios.get(process) else { return };
                let waiting = io.input.as_ref().map_or(0, |input| input.pending.len());
                if let Some((_, fifo)) = io.stdin_fifo.as_ref().filter(|_| waiting > RELAY_BYTES_MAX) {
                    self.poll.remove(fifo);
                }
            }
            Some(Err(error)) if would_wait(&error) => {}
            Some(Ok(_) | Err(_)) => self.drop_stdin_fifo(process),
            None => {}
        }
        self.chunk = chunk;
    }

    /// The end of a process's input: what waits is still written. A terminal has no end.
    pub(super) fn close_input(&mut self, process: &Process) {
        let Some(io) = self.ios.get_mut(process) else { return };
        io.stdin_keeper = None;
        if let Some(early) = &mut io.early {
            early.closed = true;
        }
        if io.master.is_none()
            && let Some(input) = &mut io.input
        {
            input.closing = true;
            self.flush_input(process);
        }
    }

    /// A client leaves a process.
    pub(super) fn detach(&mut self, route: &Route, conn: u64, stream: u32) {
        let Some(io) = self.ios.get_mut(&route.process) else { return };
        io.clients.retain(|client| (client.conn, client.stream) != (conn, stream));
        let once = io.stdin_once && route.stdin;
        self.unstall(&route.process);
        if once {
            self.close_input(&route.process);
        }
    }

    /// The process has exited: whoever reads or writes its named pipes learns that it is alone.
    pub(super) fn release_ends(&mut self, process: &Process) {
        self.drop_input(process);
        self.drop_stdin_fifo(process);
        if let Some(io) = self.ios.get_mut(process) {
            io.stdin_keeper = None;
            if io.relay.is_none() {
                io.keepers.clear();
            }
        }
    }

    fn drop_input(&mut self, process: &Process) {
        if let Some(input) = self.ios.get_mut(process).and_then(|io| io.input.take()) {
            if input.watched {
                self.poll.remove(&input.fd);
            }
            self.sources.remove(&input.token);
        }
    }

    fn drop_stdin_fifo(&mut self, process: &Process) {
        if let Some((token, fifo)) = self.ios.get_mut(process).and_then(|io| io.stdin_fifo.take()) {
            self.poll.remove(&fifo);
            self.sources.remove(&token);
        }
    }

    /// Lets go of everything of a process.
    pub(super) fn drop_io(&mut self, process: &Process) {
        self.drain(process);
        let now = self.now();
        self.drop_input(process);
        self.drop_stdin_fifo(process);
        let Some(mut io) = self.ios.remove(process) else { return };
        for (token, output) in io.outputs {
            self.poll.remove(&output.fd);
            self.sources.remove(&token);
            if let Some(log) = &mut io.log {
                log.finish(now, output.stream);
            }
        }
        if let Some(relay) = io.relay {
            self.poll.remove(&relay.fd);
            self.sources.remove(&relay.token);
        }
    }
}

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
    // A burst is not paid for until the process ends.
    pending.shrink_to(INPUT_BYTES_HOLD);
    Ok(())
}

/// Watches for room to write exactly while something waits. A regular file always has room and cannot be watched.
fn watch(poll: &crate::poll::Poll, fd: &File, token: Token, watched: &mut bool, wants: bool) {
    if wants && !*watched {
        *watched = poll.add_again(fd, token, Interest::Write).is_ok();
    } else if !wants && *watched {
        poll.remove(fd);
        *watched = false;
    }
}
