//! What flows between processes, their clients and their files.

use berth_proto::shim::attach_output::What;
use berth_proto::ttrpc::{Code, Status};
use berth_shim_core::log::Stream;
use berth_shim_core::{Event, Process};

use super::clients::{Route, Said};
use super::streams::INPUT_BYTES_HOLD;
use super::{LINGER_MS, Phase, Shim};
use crate::conn::would_wait;
use crate::io::{Client, Role, compress_rotated};
use crate::poll::Token;
use crate::sys;

/// Input that waits for a process, whoever it is from, when no client can be made to wait by holding its connection.
const INPUT_BYTES_MAX: usize = 4 << 20;
/// Bytes that may wait for the clients of one process, all together, before the slow ones are dropped.
const GUESTS_BYTES_MAX: usize = 8 << 20;
/// Bytes that may wait for one of them: as many as that leaves, but in these bounds.
const GUEST_BYTES: (usize, usize) = (64 << 10, 1 << 20);

/// Time from the end of a shim to the end of its process while a disk does not take the last of its logs, milliseconds.
/// Nobody waits for that process.
const LOGS_MS: u64 = 600_000;

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

/// From clients.
impl Shim {
    /// Input from a client of the shim's own service.
    pub(super) fn client_input(&mut self, conn: u64, stream: u32, route: &Route, bytes: &[u8]) {
        let received = self.clients.receive_input(conn, stream, bytes.len());
        if let Some(Err(overrun)) = received {
            self.end_stream(conn, stream, Err(Status::new(Code::ResourceExhausted, overrun.to_string())));
            return;
        }
        if !route.stdin {
            return;
        }
        self.streams.push_input(&route.process, bytes, &mut self.watches, &mut self.clients);
        let waiting = self.streams.waiting_input(&route.process);
        let shares = received.is_some() || self.clients.open_streams(conn).is_some_and(|streams| streams > 1);
        if shares && waiting > INPUT_BYTES_MAX {
            let text = "the process does not read its input, of which too much waits";
            self.end_stream(conn, stream, Err(Status::new(Code::ResourceExhausted, text)));
        } else if received.is_some() && waiting <= INPUT_BYTES_HOLD / 2 {
            self.clients.grant_input(conn, stream);
        } else if !shares && waiting > INPUT_BYTES_HOLD {
            self.clients.hold(conn);
        }
    }

    /// A client takes so many bytes more of what its process writes.
    pub(super) fn client_takes(&mut self, conn: u64, stream: u32, bytes: u64) {
        let has_room = self.clients.grant_output(conn, stream, bytes);
        if has_room && let Some(route) = self.clients.route(conn, stream) {
            self.streams.unhold(&route.process, &self.watches);
        }
    }

    /// Gives an exec the client that it is for.
    pub(super) fn own_client(&mut self, process: &Process, conn: u64, stream: u32, stdin: bool) {
        self.streams.begin_with(process, Client { conn, stream, role: Role::Owner });
        self.lead(process, conn, stream, stdin);
    }

    /// Leads a stream to a process.
    pub(super) fn lead(&mut self, process: &Process, conn: u64, stream: u32, stdin: bool) {
        self.clients.lead(conn, stream, Route { process: process.clone(), stdin });
        if stdin {
            self.clients.open_input(conn, stream);
        }
    }

    /// A client leaves a process.
    pub(super) fn detach(&mut self, route: &Route, conn: u64, stream: u32) {
        // It was made to wait for this process alone.
        self.clients.release(conn);
        self.streams.detach(route, (conn, stream), &mut self.watches, &mut self.clients);
    }

    /// The end of a process's input: what waits is still written. A terminal has no end.
    pub(super) fn close_input(&mut self, process: &Process) {
        self.streams.close_input(process, &mut self.watches, &mut self.clients);
    }
}

/// From processes.
impl Shim {
    pub(super) fn output_ready(&mut self, process: &Process, token: Token) {
        self.pump(process, token, Reads::Turn);
    }

    /// Reads what a process's pipes hold now.
    pub(super) fn drain(&mut self, process: &Process) {
        for token in self.streams.outputs(process) {
            self.pump(process, token, Reads::WhatIsThere);
        }
    }

    fn pump(&mut self, process: &Process, token: Token, reads: Reads) {
        let mut chunk = std::mem::take(&mut self.chunk);
        for _read in 0..reads.max() {
            match self.streams.read(process, token, &mut chunk) {
                None => break,
                Some((stream, Ok(count))) if count > 0 => {
                    let bytes = chunk.get(..count).unwrap_or_default();
                    if !self.deliver(process, stream, bytes) && reads == Reads::Turn {
                        self.streams.stall(process, token, &self.watches);
                        break;
                    }
                }
                Some((_, Err(error))) if would_wait(&error) => break,
                // The end; of a terminal it is EIO: every process has closed it.
                Some((_, Ok(_) | Err(_))) => {
                    let now = self.now();
                    self.streams.close_output(now, process, token, &mut self.watches);
                    break;
                }
            }
        }
        self.chunk = chunk;
        self.streams.kick(process);
    }

    /// Gives output to everyone who is to have it; returns whether more may follow at once.
    fn deliver(&mut self, process: &Process, stream: Stream, bytes: &[u8]) -> bool {
        let now = self.now();
        let Some(pushed) = self.streams.push(now, process, stream, bytes) else { return true };
        let relayed = !pushed.relayed || self.streams.relay_has_room(process, &mut self.watches);
        let told = self.tell_clients(process, stream, bytes);
        relayed && told && pushed.written
    }

    /// Sends output to the clients of a process; returns whether the one that it exists for has room for more. Clients
    /// that look on and are too slow are dropped.
    fn tell_clients(&mut self, process: &Process, stream: Stream, bytes: &[u8]) -> bool {
        let Some(clients) = self.streams.clients(process, stream) else { return true };
        let (least, most) = GUEST_BYTES;
        let guest_bytes_max = (GUESTS_BYTES_MAX / clients.len().max(1)).clamp(least, most);
        let what = match stream {
            Stream::Stdout => What::Stdout(bytes.to_vec()),
            Stream::Stderr => What::Stderr(bytes.to_vec()),
        };
        let said = Said::new(what);
        let mut room = true;
        for Client { conn, stream, role } in clients {
            let sent = self.clients.send_output(conn, stream, &said);
            if role == Role::Owner {
                room &= sent.room;
            } else if sent.waiting > guest_bytes_max {
                let slow = "the client reads more slowly than the container writes";
                self.end_stream(conn, stream, Err(Status::new(Code::ResourceExhausted, slow)));
            }
        }
        if !room {
            self.streams.hold(process);
        }
        room
    }

    /// Reads again what a client's slowness has stalled, once it has caught up.
    pub(super) fn resume_outputs(&mut self, conn: u64) {
        if !self.clients.take_unthrottled(conn) {
            return;
        }
        self.clients.pump_all(conn);
        let routes: Vec<(u32, Process)> =
            self.clients.routes(conn).map(|(stream, route)| (stream, route.process.clone())).collect();
        for (stream, process) in routes {
            if self.clients.stream_has_room(conn, stream) {
                self.streams.unhold(&process, &self.watches);
            }
        }
    }

    /// Lets go of everything of a process.
    pub(super) fn drop_io(&mut self, process: &Process) {
        self.drain(process);
        let now = self.now();
        if let Some(pid) = self.streams.remove(now, process, &mut self.watches) {
            self.calls.dismiss_logger(pid, now.mono_ms);
        }
    }
}

/// To files.
impl Shim {
    /// Some writer has something to tell.
    pub(super) fn writers_ready(&mut self) {
        self.streams.hear_writers();
        let ended = self.streams.take_ended();
        self.streams.note_rotated(&ended);
        self.compress_logs();
        if !ended.is_empty() {
            drop(ended);
            sys::trim();
        }
        self.streams.read_on(&self.watches);
        self.tell_drained();
        self.streams.answer_reopenings(&mut self.clients);
    }

    /// Tells the machine once everything that a process has written is on disk.
    pub(super) fn begin_draining(&mut self, process: Process) {
        self.streams.begin_draining(process);
        self.tell_drained();
    }

    fn tell_drained(&mut self) {
        for process in self.streams.take_drained() {
            self.happen(Event::Drained(process));
        }
    }

    /// A child has ended; returns whether it was one that compressed. What it did not get to is found after the next
    /// rotation.
    pub(super) fn compression_ended(&mut self, pid: u32) -> bool {
        let ended = self.streams.compression_ended(pid);
        if ended {
            self.compress_logs();
        }
        ended
    }

    /// Has copies of the shim compress the rotated files of logs.
    fn compress_logs(&mut self) {
        while let Some(path) = self.streams.next_rotated() {
            let copy = self.copy(|entered| {
                // The log's directory is the same one in all of the pod's namespaces.
                let _in_the_pod = entered.is_err();
                let failures = compress_rotated(&path);
                for failure in &failures {
                    crate::log::warning!("failed to {}", crate::with_causes(failure));
                }
                i32::from(!failures.is_empty())
            });
            match copy {
                Ok(copy) => {
                    self.streams.compression_began(copy.into_id(), path);
                }
                Err(error) => {
                    crate::log::warning!("failed to compress rotated files of {}: {error}", path.display());
                }
            }
        }
    }

    /// Whether the end was long ago: what is not written is lost.
    pub(super) fn gives_logs_up(&self) -> bool {
        let late = self.give_up_logs_at_ms().is_some_and(|at| at <= self.now().mono_ms);
        if late {
            let lost = self.streams.unwritten_bytes();
            crate::log::warning!("the disk takes no logs: giving up {lost} bytes");
        }
        late
    }

    pub(super) fn give_up_logs_at_ms(&self) -> Option<u64> {
        match self.phase {
            Phase::Ending { until_ms, .. } if !self.streams.is_written() => {
                Some(until_ms - LINGER_MS + LOGS_MS)
            }
            Phase::Ending { .. } | Phase::Serving => None,
        }
    }
}
