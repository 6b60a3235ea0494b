//! What processes write, on its way to logs, files, clients and named pipes.

use std::io::Read;

use berth_proto::shim::{AttachOutput, attach_output::What};
use berth_proto::ttrpc::{Code, Status};
use berth_shim_core::Process;
use berth_shim_core::log::Stream;
use prost::Message;

use super::Shim;
use super::streams::{watch, write_pending};
use crate::conn::{STREAM_PENDING_BYTES_MAX, would_wait};
use crate::io::{Client, Output, Role, Writer};
use crate::poll::{Interest, Token};

/// Bytes that wait for a terminal's reader, before the terminal is not read.
const RELAY_BYTES_MAX: usize = 64 << 10;
/// Bytes that may wait for the clients of one process, all together, before the slow ones are dropped.
const GUESTS_BYTES_MAX: usize = 8 << 20;
/// Bytes that may wait for one of them: as many as that leaves, but in these bounds.
const GUEST_BYTES: (usize, usize) = (64 << 10, 1 << 20);

/// How much is read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// Some, so that others have their turn, and nothing while a client, a named pipe or a log is behind.
    Turn,
    /// What a pipe held when its process exited, and no more of what a survivor goes on writing. A pipe holds at most
    /// 1 MiB (`fs.pipe-max-size`).
    WhatIsThere,
}

impl Reads {
    fn max(self) -> usize {
        match self {
            Self::Turn => 4,
            Self::WhatIsThere => 128,
        }
    }
}

impl Shim {
    pub(super) fn output_ready(&mut self, process: &Process, token: Token) {
        self.pump(process, token, Reads::Turn);
    }

    /// Reads what a process's pipes hold now.
    pub(super) fn drain(&mut self, process: &Process) {
        let Some(io) = self.ios.get(process) else { return };
        let tokens: Vec<Token> = io.outputs.iter().map(|(token, _)| *token).collect();
        for token in tokens {
            self.pump(process, token, Reads::WhatIsThere);
        }
    }

    fn pump(&mut self, process: &Process, token: Token, reads: Reads) {
        let mut chunk = std::mem::take(&mut self.chunk);
        for _read in 0..reads.max() {
            let Some(output) = self.output_mut(process, token) else { break };
            let stream = output.stream;
            match output.fd.read(&mut chunk) {
                Ok(count) if count > 0 => {
                    let bytes = chunk.get(..count).unwrap_or_default();
                    if !self.deliver(process, stream, bytes) && reads == Reads::Turn {
                        self.stall(process, token);
                        break;
                    }
                }
                Err(error) if would_wait(&error) => break,
                // The end; of a terminal it is EIO: every process has closed it.
                Ok(_) | Err(_) => {
                    self.close_output(process, token);
                    break;
                }
            }
        }
        self.chunk = chunk;
        if let Some(io) = self.ios.get(process) {
            io.writers().for_each(Writer::kick);
        }
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
        for file in &mut io.files {
            file.push(stream, bytes);
        }
        let is_written = !io.is_behind();
        if let Some(capture) = &mut io.capture {
            capture.push(stream, bytes);
        }
        let relays = io.relay.as_mut().map(|relay| relay.pending.extend(bytes)).is_some();
        let tells = !io.clients.is_empty();
        let relayed = !relays || self.relay_has_room(process);
        let told = !tells || self.tell_clients(process, stream, bytes);
        relayed && told && is_written
    }

    fn relay_has_room(&mut self, process: &Process) -> bool {
        self.flush_relay(process);
        let relay = self.ios.get(process).and_then(|io| io.relay.as_ref());
        relay.is_none_or(|relay| relay.pending.len() < RELAY_BYTES_MAX)
    }

    /// Sends output to the clients of a process; returns whether the one that it exists for has room for more. Clients
    /// that look on and are too slow are dropped.
    fn tell_clients(&mut self, process: &Process, stream: Stream, bytes: &[u8]) -> bool {
        let Some(io) = self.ios.get(process) else { return true };
        let clients: Vec<Client> =
            io.clients.iter().filter(|client| client.role.wants(stream)).cloned().collect();
        let (least, most) = GUEST_BYTES;
        let guest_bytes_max = (GUESTS_BYTES_MAX / clients.len().max(1)).clamp(least, most);
        let what = match stream {
            Stream::Stdout => What::Stdout(bytes.to_vec()),
            Stream::Stderr => What::Stderr(bytes.to_vec()),
        };
        let message = AttachOutput { what: Some(what) }.encode_to_vec();
        let mut room = true;
        for Client { conn, stream, role } in clients {
            let waiting = self.clients.send(conn, stream, &message);
            if role == Role::Owner {
                room &= waiting < STREAM_PENDING_BYTES_MAX;
            } else if waiting > guest_bytes_max {
                let slow = "the client reads more slowly than the container writes";
                self.end_stream(conn, stream, Err(Status::new(Code::ResourceExhausted, slow)));
            }
        }
        room
    }

    /// Stops reading an output until there is room again.
    fn stall(&mut self, process: &Process, token: Token) {
        let Some(io) = self.ios.get_mut(process) else { return };
        if let Some((_, output)) = io.outputs.iter_mut().find(|(own, _)| *own == token) {
            output.stalled = true;
            self.watches.pause(&output.fd);
        }
    }

    /// Reads again what a client's slowness has stalled, once it has caught up.
    pub(super) fn resume_outputs(&mut self, conn: u64) {
        if !self.clients.has_room(conn) {
            return;
        }
        let processes: Vec<Process> =
            self.clients.routes(conn).map(|(_, route)| route.process.clone()).collect();
        for process in processes {
            self.unstall(&process);
        }
    }

    pub(super) fn unstall(&mut self, process: &Process) {
        let Some(io) = self.ios.get_mut(process).filter(|io| !io.is_behind()) else { return };
        for (token, output) in io.outputs.iter_mut().filter(|(_, output)| output.stalled) {
            output.stalled = self.watches.resume(&output.fd, *token, Interest::Read).is_err();
        }
    }

    fn close_output(&mut self, process: &Process, token: Token) {
        let now = self.now();
        let Some(io) = self.ios.get_mut(process) else { return };
        let Some(at) = io.outputs.iter().position(|(own, _)| *own == token) else { return };
        let (_, output) = io.outputs.remove(at);
        self.watches.end(&output.fd, token);
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
                watch(&self.watches, &relay.fd, relay.token, &mut relay.watched, wants);
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
            self.watches.end(&relay.fd, relay.token);
        }
    }
}
