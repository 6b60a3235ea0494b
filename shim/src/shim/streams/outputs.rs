//! What processes write, on its way to logs, files and named pipes.

use std::io::{self, Read};

use berth_shim_core::log::Stream;
use berth_shim_core::{Now, Process};

use super::{Streams, watch, write_pending};
use crate::io::{Client, Output, RELAY_BYTES_MAX, Writer};
use crate::poll::{Interest, Token};
use crate::shim::watches::Watches;

/// What has become of output.
#[derive(Debug, Clone, Copy)]
pub(in crate::shim) struct Pushed {
    /// No log or file is behind.
    pub(in crate::shim) written: bool,
    /// It goes to a named pipe or program too.
    pub(in crate::shim) relayed: bool,
}

impl Streams {
    pub(in crate::shim) fn outputs(&self, process: &Process) -> Vec<Token> {
        self.ios.get(process).map_or_else(Vec::new, |io| io.outputs.iter().map(|(token, _)| *token).collect())
    }

    /// Reads from an output once; `None` when it is closed.
    pub(in crate::shim) fn read(
        &mut self,
        process: &Process,
        token: Token,
        chunk: &mut [u8],
    ) -> Option<(Stream, io::Result<usize>)> {
        let output = self.output_mut(process, token)?;
        Some((output.stream, output.fd.read(chunk)))
    }

    fn output_mut(&mut self, process: &Process, token: Token) -> Option<&mut Output> {
        let io = self.ios.get_mut(process)?;
        io.outputs.iter_mut().find(|(own, _)| *own == token).map(|(_, output)| output)
    }

    /// Queues output for everything but clients.
    pub(in crate::shim) fn push(
        &mut self,
        now: Now,
        process: &Process,
        stream: Stream,
        bytes: &[u8],
    ) -> Option<Pushed> {
        let io = self.ios.get_mut(process)?;
        if let Some(log) = &mut io.log {
            log.push(now, stream, bytes);
        }
        for file in &mut io.files {
            file.push(stream, bytes);
        }
        let written = !io.is_behind();
        if let Some(capture) = &mut io.capture {
            capture.push(stream, bytes);
        }
        let relayed = io.relay.as_mut().map(|relay| relay.pending.extend(bytes)).is_some();
        Some(Pushed { written, relayed })
    }

    /// Has what was queued be written.
    pub(in crate::shim) fn kick(&self, process: &Process) {
        if let Some(io) = self.ios.get(process) {
            io.writers().for_each(Writer::kick);
        }
    }

    /// The clients that want a stream of a process; `None` when it has no clients at all.
    pub(in crate::shim) fn clients(&self, process: &Process, stream: Stream) -> Option<Vec<Client>> {
        let io = self.ios.get(process).filter(|io| !io.clients.is_empty())?;
        Some(io.clients.iter().filter(|client| client.role.wants(stream)).cloned().collect())
    }

    pub(in crate::shim) fn relay_has_room(&mut self, process: &Process, watches: &mut Watches) -> bool {
        self.flush_relay(process, watches);
        let relay = self.ios.get(process).and_then(|io| io.relay.as_ref());
        relay.is_none_or(|relay| relay.pending.len() < RELAY_BYTES_MAX)
    }

    /// Stops reading an output until there is room again.
    pub(in crate::shim) fn stall(&mut self, process: &Process, token: Token, watches: &Watches) {
        let Some(io) = self.ios.get_mut(process) else { return };
        if let Some((_, output)) = io.outputs.iter_mut().find(|(own, _)| *own == token) {
            output.stalled = true;
            watches.pause(&output.fd);
        }
    }

    /// The client that a process exists for takes no more of it now.
    pub(in crate::shim) fn hold(&mut self, process: &Process) {
        if let Some(io) = self.ios.get_mut(process) {
            io.client_is_behind = true;
        }
    }

    /// It does again, or has gone.
    pub(in crate::shim) fn unhold(&mut self, process: &Process, watches: &Watches) {
        if let Some(io) = self.ios.get_mut(process) {
            io.client_is_behind = false;
        }
        self.unstall(process, watches);
    }

    /// Reads again what was stalled, if nothing is behind any more.
    pub(in crate::shim) fn unstall(&mut self, process: &Process, watches: &Watches) {
        let Some(io) = self.ios.get_mut(process).filter(|io| !io.is_held()) else { return };
        for (token, output) in io.outputs.iter_mut().filter(|(_, output)| output.stalled) {
            output.stalled = watches.resume(&output.fd, *token, Interest::Read).is_err();
        }
    }

    pub(in crate::shim) fn close_output(
        &mut self,
        now: Now,
        process: &Process,
        token: Token,
        watches: &mut Watches,
    ) {
        let Some(io) = self.ios.get_mut(process) else { return };
        let Some(at) = io.outputs.iter().position(|(own, _)| *own == token) else { return };
        let (_, output) = io.outputs.remove(at);
        watches.end(&output.fd, token);
        if let Some(log) = &mut io.log {
            log.finish(now, output.stream);
        }
        self.close_relay_if_done(process, watches);
    }

    /// Copies on what a terminal has written.
    pub(in crate::shim) fn flush_relay(&mut self, process: &Process, watches: &mut Watches) {
        let Some(relay) = self.ios.get_mut(process).and_then(|io| io.relay.as_mut()) else { return };
        match write_pending(&mut relay.fd, &mut relay.pending) {
            Ok(()) => {
                let wants = !relay.pending.is_empty();
                watch(watches, &relay.fd, relay.token, &mut relay.watched, wants);
            }
            Err(_reader_gone) => relay.pending.clear(),
        }
        if relay.pending.len() < RELAY_BYTES_MAX / 2 {
            self.unstall(process, watches);
        }
        self.close_relay_if_done(process, watches);
    }

    /// The reader learns of the end when everything was copied.
    fn close_relay_if_done(&mut self, process: &Process, watches: &mut Watches) {
        let Some(io) = self.ios.get_mut(process) else { return };
        if io.outputs.is_empty()
            && let Some(relay) = io.relay.take_if(|relay| relay.pending.is_empty())
        {
            watches.end(&relay.fd, relay.token);
        }
    }
}
