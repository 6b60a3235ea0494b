//! What clients ask, and what becomes of it when they go.

use berth_proto::shim::{AttachInput, attach_input};
use berth_proto::ttrpc::{Code, Event as Wire, Request as WireRequest, Status};
use berth_shim_core::{Event, Process, Request};
use prost::Message;

use super::Shim;
use crate::bundle;
use crate::call::{self, Call, Parsed};
use crate::conn::Heard;
use crate::poll::Ready;

/// Reads from one connection before others have their turn.
const READS_MAX: usize = 4;

impl Shim {
    /// Serves on the agent's socket too.
    pub(super) fn listen_for_agent(&mut self, path: &str) -> Result<(), Status> {
        self.clients.listen_for_agent(path, &mut self.watches)?;
        let fail = |text: String| Status::new(Code::InvalidArgument, format!("failed to {text}"));
        bundle::write_sockets(&self.home.bundle, self.sockets())
            .map_err(|error| fail(crate::with_causes(&error)))
    }

    pub(super) fn conn_ready(&mut self, id: u64, ready: Ready) {
        let mut gone = false;
        if ready.read {
            for _read in 0..READS_MAX {
                let Some(heard) = self.clients.read(id, &mut self.chunk) else { break };
                gone = heard == Heard::End;
                self.hear(id);
                if gone || self.clients.is_held(id) {
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
        while let Some(event) = self.clients.next(id) {
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
            self.clients.respond(conn, stream, Err(status));
        }
    }

    fn take_call(&mut self, conn: u64, stream: u32, parsed: Parsed) -> Result<(), Status> {
        let answer = match parsed {
            Parsed::Ask(call, request) => return self.ask(conn, stream, call, request),
            Parsed::Stream => {
                self.clients.open(conn, stream);
                return Ok(());
            }
            Parsed::CreateSandbox(request) => return self.create_sandbox(conn, stream, *request),
            Parsed::OfSandbox(sandbox, parsed) => {
                self.must_be_ours(&sandbox)?;
                return self.take_call(conn, stream, *parsed);
            }
            Parsed::Pids(of) => match self.sandbox_pids(&of) {
                Some(pids) => pids,
                None => return self.ask(conn, stream, Call::Pids, Request::IfCreated(Process::init(&of))),
            },
            Parsed::Platform => platform(),
            Parsed::Ping => Vec::new(),
            Parsed::SandboxMetrics => self.sandbox_metrics()?,
            Parsed::Stats => self.processes.own_stats(),
        };
        self.clients.respond(conn, stream, Ok(answer));
        Ok(())
    }

    /// Gives a request to the machine.
    pub(super) fn ask(&mut self, conn: u64, stream: u32, call: Call, request: Request) -> Result<(), Status> {
        let id = self.clients.ask(conn, stream, call)?;
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
        let window = input.window;
        if self.clients.begins(conn, stream) {
            if window > 0 {
                self.clients.begin_flow(conn, stream, window);
            }
            let asked = call::parse_stream_start(input);
            if let Err(status) = asked.and_then(|(call, request)| self.ask(conn, stream, call, request)) {
                self.clients.respond(conn, stream, Err(status));
            }
            return;
        }
        // A process that has ended may still have something to say.
        if window > 0 {
            self.client_takes(conn, stream, window);
        }
        let Some(route) = self.clients.route(conn, stream).cloned() else { return };
        match input.what {
            Some(attach_input::What::Stdin(bytes)) => self.client_input(conn, stream, &route, &bytes),
            Some(attach_input::What::CloseStdin(true)) if route.stdin => self.close_input(&route.process),
            Some(attach_input::What::Resize(size)) => {
                if let Ok((columns, rows)) = call::size(size.width, size.height) {
                    // A process without a terminal has no size.
                    let _no_terminal = self.streams.resize(&route.process, columns, rows).is_err();
                }
            }
            Some(attach_input::What::CloseStdin(_)) | None => {}
            Some(attach_input::What::Attach(_) | attach_input::What::Exec(_)) => {
                let status = Status::new(Code::InvalidArgument, "a stream is opened once");
                self.end_stream(conn, stream, Err(status));
            }
        }
    }

    /// The client sends nothing more. For a process that is the client's own this is the end of its input; a container's
    /// input goes on when a client detaches.
    fn stream_half_closed(&mut self, conn: u64, stream: u32) {
        if self.clients.begins(conn, stream) {
            let status =
                Status::new(Code::InvalidArgument, "the stream ended before it said what to stream with");
            self.clients.respond(conn, stream, Err(status));
            return;
        }
        if let Some(route) = self.clients.route(conn, stream).cloned()
            && route.stdin
            && route.process.exec.is_some()
        {
            self.close_input(&route.process);
        }
    }

    /// A stream is over on the client's side: its process loses a client, and ends if it was the client's own.
    pub(super) fn stream_gone(&mut self, conn: u64, stream: u32) {
        let _never_begun = self.clients.begins(conn, stream);
        self.clients.forget_flow(conn, stream);
        if let Some(route) = self.clients.take_route(conn, stream) {
            self.detach(&route, conn, stream);
        }
        if let Some(id) = self.clients.take_request_of(conn, stream) {
            self.happen(Event::Gone(id));
        }
    }

    /// Ends a stream from this side.
    pub(super) fn end_stream(&mut self, conn: u64, stream: u32, result: Result<(), Status>) {
        self.clients.finish(conn, stream, result);
        self.stream_gone(conn, stream);
    }

    /// Writes what waits on every connection, and watches for what is left.
    pub(super) fn flush_conns(&mut self) {
        for id in self.clients.conns() {
            self.flush_conn(id);
        }
    }

    fn flush_conn(&mut self, id: u64) {
        if !self.clients.write(id) {
            self.drop_conn(id);
            return;
        }
        if self.clients.is_behind(id) {
            self.hear(id);
        }
        self.resume_outputs(id);
        if !self.clients.watch(id, &self.watches) {
            self.drop_conn(id);
        }
    }

    /// Hangs up on everybody.
    pub(super) fn drop_conns(&mut self) {
        for id in self.clients.conns() {
            self.drop_conn(id);
        }
    }

    fn drop_conn(&mut self, id: u64) {
        if !self.clients.hang_up(id, &mut self.watches) {
            return;
        }
        let streams: Vec<u32> = self.clients.routes(id).map(|(stream, _)| stream).collect();
        for stream in streams {
            self.stream_gone(id, stream);
        }
        self.clients.forget_opening(id);
        while let Some(request) = self.clients.take_request_from(id) {
            self.happen(Event::Gone(request));
        }
    }
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
