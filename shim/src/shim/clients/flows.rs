//! Flow-controlled streams: what their clients have granted, and what they were granted.

use std::cell::OnceCell;

use berth_proto::flow::{Outbox, Overrun, Window};
use berth_proto::shim::{AttachOutput, attach_output::What};
use prost::Message;

use super::Clients;
use crate::conn::STREAM_PENDING_BYTES_MAX;

/// Bytes of input that a client may send before its process has taken some: what a pipe holds.
const INPUT_WINDOW_BYTES: u64 = 64 << 10;

/// A flow-controlled stream. It outlives its process until the client has taken what that wrote.
pub(super) struct Flow {
    outbox: Outbox,
    input: Window,
}

/// Output of a process for all of its clients.
pub(in crate::shim) struct Said {
    what: What,
    message: OnceCell<Vec<u8>>,
}

impl Said {
    pub(in crate::shim) fn new(what: What) -> Self {
        Self { what, message: OnceCell::new() }
    }

    fn message(&self) -> &[u8] {
        self.message.get_or_init(|| AttachOutput::from(self.what.clone()).encode_to_vec())
    }
}

/// What has become of output for a client.
#[derive(Debug, Clone, Copy)]
pub(in crate::shim) struct Sent {
    /// Bytes that wait for it.
    pub(in crate::shim) waiting: usize,
    /// More may follow at once.
    pub(in crate::shim) room: bool,
}

impl Clients {
    /// A stream begins whose client grants output: from now on it is flow-controlled.
    pub(in crate::shim) fn begin_flow(&mut self, conn: u64, stream: u32, granted: u64) {
        let mut outbox = Outbox::default();
        outbox.grant(granted);
        self.flows.insert((conn, stream), Flow { outbox, input: Window::new(0) });
    }

    /// A client takes so many bytes more. Returns whether more may be sent to it now.
    pub(in crate::shim) fn grant_output(&mut self, conn: u64, stream: u32, bytes: u64) -> bool {
        let Some(flow) = self.flows.get_mut(&(conn, stream)) else { return false };
        flow.outbox.grant(bytes);
        self.pump(conn, stream);
        self.stream_has_room(conn, stream)
    }

    /// A client may send input from now on, as much as it is granted where it is flow-controlled.
    pub(in crate::shim) fn open_input(&mut self, conn: u64, stream: u32) {
        if let Some(flow) = self.flows.get_mut(&(conn, stream)) {
            flow.input = Window::new(INPUT_WINDOW_BYTES);
            self.grant_input(conn, stream);
        }
    }

    /// The process has taken what the client sent, or will.
    pub(in crate::shim) fn grant_input(&mut self, conn: u64, stream: u32) {
        let due = self.flows.get_mut(&(conn, stream)).and_then(|flow| flow.input.refill(0));
        if let (Some(window), Some(known)) = (due, self.conns.get_mut(&conn)) {
            let message = AttachOutput { what: None, window }.encode_to_vec();
            let _too_large = known.server.send(stream, &message).is_err();
        }
    }

    /// Counts input. `None` when the stream is not flow-controlled.
    pub(in crate::shim) fn receive_input(
        &mut self,
        conn: u64,
        stream: u32,
        bytes: usize,
    ) -> Option<Result<(), Overrun>> {
        self.flows.get_mut(&(conn, stream)).map(|flow| flow.input.receive(bytes))
    }

    /// Sends output of a process to one of its clients, now or when it takes it.
    pub(in crate::shim) fn send_output(&mut self, conn: u64, stream: u32, said: &Said) -> Sent {
        if let Some(flow) = self.flows.get_mut(&(conn, stream)) {
            flow.outbox.push(said.what.clone());
            self.pump(conn, stream);
            let waiting = self.flows.get(&(conn, stream)).map_or(0, |flow| flow.outbox.waiting_bytes());
            return Sent { waiting, room: self.stream_has_room(conn, stream) };
        }
        let waiting = self.send(conn, stream, said.message());
        Sent { waiting, room: waiting < STREAM_PENDING_BYTES_MAX }
    }

    /// Tells a client how its process ended, once it has taken everything before that.
    pub(in crate::shim) fn end_with_process(&mut self, conn: u64, stream: u32, code: u32) {
        self.send_output(conn, stream, &Said::new(What::ExitCode(code)));
        let is_over = !self.flows.contains_key(&(conn, stream));
        self.finish_with_process(conn, stream, is_over);
    }

    /// Whether output for a stream may be read again.
    pub(in crate::shim) fn stream_has_room(&mut self, conn: u64, stream: u32) -> bool {
        let granted = self.flows.get(&(conn, stream)).is_none_or(|flow| flow.outbox.has_room());
        granted && self.conns.get_mut(&conn).is_some_and(|conn| conn.pending() < STREAM_PENDING_BYTES_MAX)
    }

    /// Sends what the clients behind a connection have granted and the connection had no room for.
    pub(in crate::shim) fn pump_all(&mut self, conn: u64) {
        let flows = self.flows.range((conn, 0)..=(conn, u32::MAX));
        let streams: Vec<u32> = flows.map(|((_, stream), _)| *stream).collect();
        for stream in streams {
            self.pump(conn, stream);
        }
    }

    /// Whether any client has not taken what there is for it.
    pub(super) fn has_unsent_flows(&self) -> bool {
        self.flows.values().any(|flow| !flow.outbox.is_empty())
    }

    pub(in crate::shim) fn forget_flow(&mut self, conn: u64, stream: u32) {
        self.flows.remove(&(conn, stream));
    }

    pub(super) fn forget_flows(&mut self, conn: u64) {
        self.flows.retain(|(other, _), _| *other != conn);
    }

    /// Sends what a client has granted while its connection has room. The exit code ends the stream.
    fn pump(&mut self, conn: u64, stream: u32) {
        let (Some(flow), Some(known)) = (self.flows.get_mut(&(conn, stream)), self.conns.get_mut(&conn))
        else {
            return;
        };
        loop {
            if known.pending() >= STREAM_PENDING_BYTES_MAX {
                self.throttled.insert(conn);
                return;
            }
            let Some(what) = flow.outbox.pop() else { return };
            let is_exit = matches!(what, What::ExitCode(_));
            let _too_large = known.server.send(stream, &AttachOutput::from(what).encode_to_vec()).is_err();
            if is_exit {
                known.server.finish(stream);
                self.flows.remove(&(conn, stream));
                return;
            }
        }
    }
}
