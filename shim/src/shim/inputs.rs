//! What processes read, on its way from clients and named pipes.

use std::io::Read;

use berth_proto::ttrpc::{Code, Status};
use berth_shim_core::Process;

use super::Shim;
use super::clients::Route;
use super::streams::{watch, write_pending};
use crate::conn::would_wait;
use crate::io::ProcessIo;
use crate::poll::Interest;

/// Input that waits for a process before its client must wait.
const INPUT_BYTES_HOLD: usize = 256 << 10;
/// Input that waits for a process when the client cannot be made to wait, because other calls share its connection.
const INPUT_BYTES_MAX: usize = 4 << 20;
/// Input of a terminal that waits before the named pipe that it comes from is not read.
const FIFO_BYTES_MAX: usize = 64 << 10;

impl Shim {
    /// Input from a client of the shim's own service.
    pub(super) fn client_input(&mut self, conn: u64, stream: u32, route: &Route, bytes: &[u8]) {
        self.push_input(&route.process, bytes);
        let waiting = self.ios.get(&route.process).map_or(0, ProcessIo::waiting_input);
        if waiting <= INPUT_BYTES_HOLD {
            return;
        }
        let Some(streams) = self.clients.open_streams(conn) else { return };
        if streams == 1 {
            self.clients.hold(conn);
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
        watch(&self.watches, &input.fd, input.token, &mut input.watched, !input.pending.is_empty());
        if input.pending.len() <= INPUT_BYTES_HOLD / 2 {
            self.release_clients(process);
        }
    }

    /// Reads again from the clients of a process and from its named pipe.
    fn release_clients(&mut self, process: &Process) {
        let Some(io) = self.ios.get(process) else { return };
        for client in &io.clients {
            self.clients.release(client.conn);
        }
        if let Some((token, fifo)) = &io.stdin_fifo {
            // Watched already, unless it was held.
            let _watched = self.watches.resume(fifo, *token, Interest::Read).is_err();
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
                if let Some((_, fifo)) = io.stdin_fifo.as_ref().filter(|_| waiting > FIFO_BYTES_MAX) {
                    self.watches.pause(fifo);
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

    pub(super) fn drop_input(&mut self, process: &Process) {
        if let Some(input) = self.ios.get_mut(process).and_then(|io| io.input.take()) {
            if input.watched {
                self.watches.pause(&input.fd);
            }
            self.watches.forget(input.token);
        }
    }

    pub(super) fn drop_stdin_fifo(&mut self, process: &Process) {
        if let Some((token, fifo)) = self.ios.get_mut(process).and_then(|io| io.stdin_fifo.take()) {
            self.watches.end(&fifo, token);
        }
    }
}
