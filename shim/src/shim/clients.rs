//! Connections: accepting, requests in, answers out.

use std::fs::File;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};

use berth_proto::shim::{AttachInput, AttachOutput, attach_input, attach_output};
use berth_proto::ttrpc::{Code, Event as Wire, Request as WireRequest, Status};
use berth_shim_core::{Event, Process, ReqId, Request};
use nix::libc;
use prost::Message;

use super::watches::Source;
use super::{Pending, Shim};
use crate::bundle;
use crate::call::{self, Call, Parsed};
use crate::conn::{Conn, Heard, is_trusted};
use crate::poll::{Interest, Ready};

/// Connections at a time: containerd opens one per container of the pod, the agent a few.
const CONNS_MAX: usize = 1024;
/// Requests that are not answered yet, over all connections.
const PENDING_MAX: usize = 16384;
/// Reads from one connection before others have their turn.
const READS_MAX: usize = 4;

impl Shim {
    pub(super) fn accept_all(&mut self) {
        while let Some(socket) = accept(&self.listener, &mut self.spare) {
            self.add_conn(socket);
        }
    }

    pub(super) fn accept_agents(&mut self) {
        while let Some((listener, _)) = &self.agent_listener
            && let Some(socket) = accept(listener, &mut self.spare)
        {
            self.add_conn(socket);
        }
    }

    /// Serves on the agent's socket too.
    pub(super) fn listen_for_agent(&mut self, path: &str) -> Result<(), Status> {
        let fail = |text: String| Status::new(Code::InvalidArgument, format!("failed to {text}"));
        if !path.starts_with('/') {
            return Err(fail(format!("listen on {path:?}: the path is not absolute")));
        }
        let listener: UnixListener =
            crate::start::listen(path.as_ref()).map_err(|error| fail(crate::chain(&error)))?;
        let watched = listener.set_nonblocking(true).map_err(|error| error.to_string()).and_then(|()| {
            let added = self.watches.add(&listener, Interest::Read, Source::AgentListener);
            added.map_err(|error| error.to_string())
        });
        watched.map_err(|error| fail(format!("watch {path}: {error}")))?;
        self.agent_listener = Some((listener, path.into()));
        bundle::write_sockets(&self.home.bundle, self.sockets()).map_err(|error| fail(crate::chain(&error)))
    }

    fn add_conn(&mut self, socket: UnixStream) {
        if self.conns.len() >= CONNS_MAX || !is_trusted(&socket) || socket.set_nonblocking(true).is_err() {
            return;
        }
        let id = self.last_conn + 1;
        let Ok(token) = self.watches.add(&socket, Interest::Read, Source::Conn(id)) else { return };
        self.last_conn = id;
        self.conns.insert(self.last_conn, Conn::new(socket, token));
    }

    pub(super) fn conn_ready(&mut self, id: u64, ready: Ready) {
        let mut gone = false;
        if ready.read {
            for _read in 0..READS_MAX {
                let Some(conn) = self.conns.get_mut(&id) else { break };
                // A client that is held is not read from, so readiness can only be its end.
                gone = conn.held || conn.read(&mut self.chunk) == Heard::End;
                self.hear(id);
                if gone || self.conns.get(&id).is_some_and(|conn| conn.held) {
                    break;
                }
            }
        }
        if gone {
            self.drop_conn(id);
        } else if ready.write {
            self.flush_conn(id);
        }
    }

    /// Handles everything that has arrived whole.
    fn hear(&mut self, id: u64) {
        while let Some(event) = self.conns.get_mut(&id).and_then(Conn::next) {
            match event {
                Wire::Call { stream, request, .. } => self.call(id, stream, &request),
                Wire::Data { stream, payload } => self.stream_data(id, stream, &payload),
                Wire::HalfClosed { stream } => self.stream_half_closed(id, stream),
                Wire::Aborted { stream } => self.stream_gone(id, stream),
            }
        }
    }

    fn call(&mut self, conn: u64, stream: u32, request: &WireRequest) {
        let done = call::parse(request).and_then(|parsed| self.take_call(conn, stream, parsed));
        if let Err(status) = done {
            self.respond(conn, stream, Err(status));
        }
    }

    fn take_call(&mut self, conn: u64, stream: u32, parsed: Parsed) -> Result<(), Status> {
        let answer = match parsed {
            Parsed::Ask(call, request) => return self.ask(conn, stream, call, request),
            Parsed::Stream => {
                self.opening.insert((conn, stream));
                return Ok(());
            }
            Parsed::CreateSandbox(request) => return self.create_sandbox(conn, stream, *request),
            Parsed::OfSandbox(sandbox, parsed) => {
                self.must_be_ours(&sandbox)?;
                return self.take_call(conn, stream, *parsed);
            }
            Parsed::Pids(of) => match self.sandbox_pids(&of) {
                Some(pids) => pids,
                None => return self.ask(conn, stream, Call::Pids, Request::OfMade(Process::init(&of))),
            },
            Parsed::Platform => platform(),
            Parsed::Ping => Vec::new(),
            Parsed::SandboxMetrics => self.sandbox_metrics()?,
            Parsed::Stats => self.own_stats(),
        };
        self.respond(conn, stream, Ok(answer));
        Ok(())
    }

    /// Gives a request to the machine.
    pub(super) fn ask(&mut self, conn: u64, stream: u32, call: Call, request: Request) -> Result<(), Status> {
        if self.pending.len() >= PENDING_MAX {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!("{PENDING_MAX} requests are under way"),
            ));
        }
        self.last_request += 1;
        let id = ReqId(self.last_request);
        self.pending.insert(id, Pending { conn, stream, call });
        self.happen(Event::Request(id, request));
        Ok(())
    }

    fn stream_data(&mut self, conn: u64, stream: u32, payload: &[u8]) {
        let input = match AttachInput::decode(payload) {
            Ok(input) => input,
            Err(error) => {
                let status =
                    Status::new(Code::InvalidArgument, format!("decode a stream's message: {error}"));
                self.end_stream(conn, stream, Err(status));
                return;
            }
        };
        if self.opening.remove(&(conn, stream)) {
            let asked = call::parse_stream_start(input);
            if let Err(status) = asked.and_then(|(call, request)| self.ask(conn, stream, call, request)) {
                self.respond(conn, stream, Err(status));
            }
            return;
        }
        let Some(route) = self.routes.get(&(conn, stream)).cloned() else { return };
        match input.what {
            Some(attach_input::What::Stdin(bytes)) if route.stdin => {
                self.client_input(conn, stream, &route, &bytes);
            }
            Some(attach_input::What::CloseStdin(true)) if route.stdin => self.close_input(&route.process),
            Some(attach_input::What::Resize(size)) => {
                if let Ok((columns, rows)) = call::size(size.width, size.height) {
                    // A process without a terminal has no size.
                    let _no_terminal = self.resize(&route.process, columns, rows).is_err();
                }
            }
            Some(attach_input::What::Stdin(_) | attach_input::What::CloseStdin(_)) | None => {}
            Some(attach_input::What::Attach(_) | attach_input::What::Exec(_)) => {
                let status = Status::new(Code::InvalidArgument, "a stream is opened once");
                self.end_stream(conn, stream, Err(status));
            }
        }
    }

    /// The client sends nothing more. For a process that is the client's own this is the end of its input; a container's
    /// input goes on when a client detaches.
    fn stream_half_closed(&mut self, conn: u64, stream: u32) {
        if self.opening.remove(&(conn, stream)) {
            let status =
                Status::new(Code::InvalidArgument, "the stream ended before it said what to stream with");
            self.respond(conn, stream, Err(status));
            return;
        }
        if let Some(route) = self.routes.get(&(conn, stream)).cloned()
            && route.stdin
            && route.process.exec.is_some()
        {
            self.close_input(&route.process);
        }
    }

    /// A stream is over on the client's side: its process loses a client, and ends if it was the client's own.
    pub(super) fn stream_gone(&mut self, conn: u64, stream: u32) {
        self.opening.remove(&(conn, stream));
        if let Some(route) = self.routes.remove(&(conn, stream)) {
            self.detach(&route, conn, stream);
        }
        let request =
            self.pending.iter().find(|(_, pending)| pending.conn == conn && pending.stream == stream);
        if let Some(id) = request.map(|(id, _)| *id) {
            self.pending.remove(&id);
            self.happen(Event::Gone(id));
        }
    }

    /// Ends a stream from this side.
    pub(super) fn end_stream(&mut self, conn: u64, stream: u32, result: Result<(), Status>) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            match result {
                Ok(()) => conn.server.finish(stream),
                Err(status) => conn.server.respond(stream, Err(status)),
            }
        }
        self.stream_gone(conn, stream);
    }

    /// Sends one message of a stream; returns the bytes that now wait on the connection.
    pub(super) fn send(&mut self, conn: u64, stream: u32, what: attach_output::What) -> usize {
        self.send_encoded(conn, stream, &AttachOutput { what: Some(what) }.encode_to_vec())
    }

    pub(super) fn send_encoded(&mut self, conn: u64, stream: u32, message: &[u8]) -> usize {
        let Some(conn) = self.conns.get_mut(&conn) else { return 0 };
        // Messages are as long as one read, far below what a frame takes.
        let _too_large = conn.server.send(stream, message).is_err();
        conn.pending()
    }

    pub(super) fn respond(&mut self, conn: u64, stream: u32, result: Result<Vec<u8>, Status>) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.server.respond(stream, result);
        }
    }

    /// Writes what waits on every connection, and watches for what is left.
    pub(super) fn flush_conns(&mut self) {
        let ids: Vec<u64> = self.conns.keys().copied().collect();
        for id in ids {
            self.flush_conn(id);
        }
    }

    fn flush_conn(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !conn.write() {
            self.drop_conn(id);
            return;
        }
        if conn.behind {
            self.hear(id);
        }
        self.resume_outputs(id);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Some(interest) = conn.new_interest() {
            let token = conn.token;
            if self.watches.set(&*conn, token, interest).is_err() {
                self.drop_conn(id);
            }
        }
    }

    /// Hangs up on everybody.
    pub(super) fn drop_conns(&mut self) {
        let ids: Vec<u64> = self.conns.keys().copied().collect();
        for id in ids {
            self.drop_conn(id);
        }
    }

    fn drop_conn(&mut self, id: u64) {
        let Some(conn) = self.conns.remove(&id) else { return };
        self.watches.end(&conn, conn.token);
        drop(conn);
        let routes = self.routes.range((id, 0)..=(id, u32::MAX));
        let streams: Vec<u32> = routes.map(|((_, stream), _)| *stream).collect();
        for stream in streams {
            self.stream_gone(id, stream);
        }
        self.opening.retain(|(conn, _)| *conn != id);
        let requests: Vec<ReqId> =
            self.pending.iter().filter(|(_, pending)| pending.conn == id).map(|(id, _)| *id).collect();
        for request in requests {
            self.pending.remove(&request);
            self.happen(Event::Gone(request));
        }
    }
}

/// The next connection. Where no descriptor is free, the spare one takes it and it is closed: left to wait, it would
/// wake the loop without end.
fn accept(listener: &UnixListener, spare: &mut Option<File>) -> Option<UnixStream> {
    loop {
        match listener.accept() {
            Ok((socket, _)) => return Some(socket),
            Err(error) if is_without_descriptors(&error) && spare.take().is_some() => {
                // The same is answered where nobody waits.
                let turned_away = listener.accept().is_ok();
                *spare = open_spare();
                if !turned_away {
                    return None;
                }
            }
            Err(_) => return None,
        }
    }
}

fn is_without_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// A descriptor to have when there is no other.
pub(super) fn open_spare() -> Option<File> {
    File::open("/dev/null").ok()
}

fn platform() -> Vec<u8> {
    // Go's names, which image manifests use too, with the variant that containerd gives (`platforms.DefaultSpec`).
    let (architecture, variant) = match std::env::consts::ARCH {
        "x86_64" => ("amd64", ""),
        "aarch64" => ("arm64", "v8"),
        other => (other, ""),
    };
    let platform = berth_proto::types::Platform {
        os: "linux".to_owned(),
        architecture: architecture.to_owned(),
        variant: variant.to_owned(),
        ..Default::default()
    };
    berth_proto::sandbox::PlatformResponse { platform: Some(platform) }.encode_to_vec()
}
