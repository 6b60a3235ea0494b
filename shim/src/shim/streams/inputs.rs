//! What processes read, on its way from clients and named pipes.

use std::io::Read;

use berth_shim_core::Process;

use super::{Streams, watch, write_pending};
use crate::conn::would_wait;
use crate::io::ProcessIo;
use crate::poll::Interest;
use crate::shim::clients::Clients;
use crate::shim::watches::Watches;

/// Input that waits for a process before its client must wait.
pub(in crate::shim) const INPUT_BYTES_HOLD: usize = 256 << 10;
/// Input of a terminal that waits before the named pipe that it comes from is not read.
const FIFO_BYTES_MAX: usize = 64 << 10;

impl Streams {
    /// Bytes that a process has not taken yet.
    pub(in crate::shim) fn waiting_input(&self, process: &Process) -> usize {
        self.ios.get(process).map_or(0, ProcessIo::waiting_input)
    }

    /// Input for a process, whoever it is from.
    pub(in crate::shim) fn push_input(
        &mut self,
        process: &Process,
        bytes: &[u8],
        watches: &mut Watches,
        clients: &mut Clients,
    ) {
        if let Some(early) = self.ios.get_mut(process).and_then(|io| io.early.as_mut()) {
            early.input.extend(bytes);
            return;
        }
        let Some(input) = self.ios.get_mut(process).and_then(|io| io.input.as_mut()) else { return };
        if !input.closing {
            input.pending.extend(bytes);
        }
        self.flush_input(process, watches, clients);
    }

    pub(in crate::shim) fn flush_input(
        &mut self,
        process: &Process,
        watches: &mut Watches,
        clients: &mut Clients,
    ) {
        let Some(input) = self.ios.get_mut(process).and_then(|io| io.input.as_mut()) else { return };
        let result = write_pending(&mut input.fd, &mut input.pending);
        let done = input.pending.is_empty() && input.closing;
        if result.is_err() || done {
            self.drop_input(process, watches);
            self.release_clients(process, watches, clients);
            return;
        }
        watch(watches, &input.fd, input.token, &mut input.watched, !input.pending.is_empty());
        if input.pending.len() <= INPUT_BYTES_HOLD / 2 {
            self.release_clients(process, watches, clients);
        }
    }

    /// Reads again from the clients of a process and from its named pipe.
    fn release_clients(&self, process: &Process, watches: &Watches, clients: &mut Clients) {
        let Some(io) = self.ios.get(process) else { return };
        for client in &io.clients {
            clients.release(client.conn);
            clients.grant_input(client.conn, client.stream);
        }
        if let Some((token, fifo)) = &io.stdin_fifo {
            // Watched already, unless it was held.
            let _watched = watches.resume(fifo, *token, Interest::Read).is_err();
        }
    }

    /// A terminal's input from a named pipe.
    pub(in crate::shim) fn stdin_fifo_ready(
        &mut self,
        process: &Process,
        chunk: &mut [u8],
        watches: &mut Watches,
        clients: &mut Clients,
    ) {
        let read =
            self.ios.get_mut(process).and_then(|io| io.stdin_fifo.as_mut()).map(|(_, fifo)| fifo.read(chunk));
        match read {
            Some(Ok(count)) if count > 0 => {
                self.push_input(process, chunk.get(..count).unwrap_or_default(), watches, clients);
                let Some(io) = self.ios.get(process) else { return };
                let waiting = io.input.as_ref().map_or(0, |input| input.pending.len());
                if let Some((_, fifo)) = io.stdin_fifo.as_ref().filter(|_| waiting > FIFO_BYTES_MAX) {
                    watches.pause(fifo);
                }
            }
            Some(Err(error)) if would_wait(&error) => {}
            Some(Ok(_) | Err(_)) => self.drop_stdin_fifo(process, watches),
            None => {}
        }
    }

    /// The end of a process's input: what waits is still written. A terminal has no end.
    pub(in crate::shim) fn close_input(
        &mut self,
        process: &Process,
        watches: &mut Watches,
        clients: &mut Clients,
    ) {
        let Some(io) = self.ios.get_mut(process) else { return };
        io.stdin_keeper = None;
        if let Some(early) = &mut io.early {
            early.closed = true;
        }
        if io.master.is_none()
            && let Some(input) = &mut io.input
        {
            input.closing = true;
            self.flush_input(process, watches, clients);
        }
    }

    pub(super) fn drop_input(&mut self, process: &Process, watches: &mut Watches) {
        if let Some(input) = self.ios.get_mut(process).and_then(|io| io.input.take()) {
            if input.watched {
                watches.pause(&input.fd);
            }
            watches.forget(input.token);
        }
    }

    pub(super) fn drop_stdin_fifo(&mut self, process: &Process, watches: &mut Watches) {
        if let Some((token, fifo)) = self.ios.get_mut(process).and_then(|io| io.stdin_fifo.take()) {
            watches.end(&fifo, token);
        }
    }
}
