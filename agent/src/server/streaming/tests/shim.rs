//! A shim for tests: it speaks the shim's service, and its processes are a few words.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use berth_proto::{
    FLOW_CONTROL,
    flow::{Outbox, Window},
    shim::{AttachInput, AttachOutput, StateResponse, attach_input::What, attach_output, shim_service},
    ttrpc::{Code, Event, Server, Status},
};
use prost::Message as _;
use tokio::net::{UnixListener, UnixStream};

/// Bytes of the output that [`FLOOD`] writes.
const FLOOD_BYTES: usize = 256 << 20;

/// Bytes that wait for a connection before nothing more is written to it.
const PENDING_MAX: usize = 64 << 10;

/// Bytes of input that a stream takes before its output is taken.
const INPUT_WINDOW: u64 = 32 << 10;

/// What was seen of clients.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// How streams with processes were begun.
    pub(super) begun: Mutex<Vec<What>>,
    /// Bytes of the flood that somebody took.
    pub(super) flooded: AtomicUsize,
    /// Connections that are open.
    pub(super) connections: AtomicUsize,
    /// Streams with processes.
    pub(super) running: AtomicUsize,
    /// Inputs of containers that a client has closed.
    pub(super) closed: AtomicUsize,
}

/// Serves a socket by a version of the protocol.
pub(super) fn start(socket: &Path, version: u32) -> Arc<Seen> {
    let seen = Arc::new(Seen::default());
    let listener = UnixListener::bind(socket).unwrap();
    let kept = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            kept.connections.fetch_add(1, Ordering::SeqCst);
            let kept = Arc::clone(&kept);
            tokio::spawn(async move {
                serve(connection, version, &kept).await;
                kept.connections.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    seen
}

/// What a stream is with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    /// Of a container: it goes on when its input ends.
    Container,
    /// Says what it reads, and ends with it.
    Cat,
    /// Reads nothing.
    Deaf,
    /// Writes without end.
    Flood,
    /// Writes and ends.
    Said,
}

/// A stream with a process. With a shim that knows no flow control, everything is granted.
struct Stream {
    process: Process,
    output: Outbox,
    input: Option<Window>,
}

struct Shim<'s> {
    version: u32,
    server: Server,
    streams: BTreeMap<u32, Stream>,
    seen: &'s Seen,
}

async fn serve(socket: UnixStream, version: u32, seen: &Seen) {
    let mut shim = Shim { version, server: Server::default(), streams: BTreeMap::new(), seen };
    let mut buffer = vec![0; 16 << 10];
    loop {
        while let Some(event) = shim.server.poll() {
            shim.take(event);
        }
        shim.flood();
        let is_writing = !shim.server.output().pending().is_empty();
        let done = tokio::select! {
            _ = socket.readable() => {
                let read = socket.try_read(&mut buffer);
                read.inspect(|count| shim.server.feed(&buffer[..*count]))
            }
            _ = socket.writable(), if is_writing => {
                let written = socket.try_write(shim.server.output().pending());
                written.inspect(|count| shim.server.output().written(*count))
            }
        };
        match done {
            Ok(0) => return,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
            Ok(_) | Err(_) => {}
        }
    }
}

impl Shim<'_> {
    fn take(&mut self, event: Event) {
        match event {
            Event::Call { stream, request, .. } if request.method == shim_service::STATE => {
                let state = StateResponse { protocol_version: self.version, ..StateResponse::default() };
                self.server.respond(stream, Ok(state.encode_to_vec()));
            }
            Event::Call { .. } | Event::HalfClosed { .. } => {}
            Event::Data { stream, payload } => {
                let AttachInput { what, window } = AttachInput::decode(payload.as_slice()).unwrap();
                if let Some(what) = what {
                    self.said(stream, what);
                }
                if let Some(known) = self.streams.get_mut(&stream) {
                    known.output.grant(window);
                }
                self.pass_on(stream);
            }
            Event::Aborted { stream } => self.over(stream),
        }
    }

    fn said(&mut self, stream: u32, what: What) {
        if matches!(what, What::Attach(_) | What::Exec(_)) {
            self.seen.begun.lock().unwrap().push(what.clone());
        }
        match what {
            // It reads nothing, and has much to say.
            What::Attach(start) if start.container_id == "closed" => self.begin(stream, Process::Flood),
            What::Attach(_) => self.begin(stream, Process::Container),
            What::Exec(start) => self.exec(stream, &start.command),
            What::Stdin(bytes) => {
                let window = self.streams.get_mut(&stream).and_then(|known| known.input.as_mut());
                window.into_iter().for_each(|window| window.receive(bytes.len()).unwrap());
                if self.streams.get(&stream).is_some_and(|known| known.process == Process::Deaf) {
                    return;
                }
                if bytes == b"end\n" {
                    self.tell(stream, attach_output::What::ExitCode(7));
                } else {
                    self.tell(stream, attach_output::What::Stdout(bytes));
                }
            }
            What::CloseStdin(_) => {
                if self.streams.get(&stream).is_some_and(|known| known.process == Process::Container) {
                    self.seen.closed.fetch_add(1, Ordering::SeqCst);
                } else {
                    self.tell(stream, attach_output::What::ExitCode(0));
                }
            }
            What::Resize(size) => {
                let text = format!("{}x{}\n", size.width, size.height);
                self.tell(stream, attach_output::What::Stdout(text.into_bytes()));
            }
        }
    }

    fn exec(&mut self, stream: u32, command: &[String]) {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["cat"] => self.begin(stream, Process::Cat),
            ["deaf"] => self.begin(stream, Process::Deaf),
            ["flood"] => self.begin(stream, Process::Flood),
            ["fail", code, text] => {
                self.begin(stream, Process::Said);
                self.tell(stream, attach_output::What::Stdout(b"out".to_vec()));
                self.tell(stream, attach_output::What::Stderr(text.as_bytes().to_vec()));
                self.tell(stream, attach_output::What::ExitCode(code.parse().unwrap()));
            }
            _ => {
                let why = format!("OCI runtime exec failed: {words:?}: executable file not found in $PATH");
                self.server.respond(stream, Err(Status::new(Code::Unknown, why)));
            }
        }
    }

    fn begin(&mut self, stream: u32, process: Process) {
        let mut known = Stream { process, output: Outbox::default(), input: None };
        if self.version < FLOW_CONTROL {
            known.output.grant(u64::MAX);
        } else {
            known.input = Some(Window::new(INPUT_WINDOW));
        }
        self.streams.insert(stream, known);
        self.seen.running.fetch_add(1, Ordering::SeqCst);
    }

    fn over(&mut self, stream: u32) {
        if self.streams.remove(&stream).is_some() {
            self.seen.running.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn tell(&mut self, stream: u32, what: attach_output::What) {
        if let Some(known) = self.streams.get_mut(&stream) {
            known.output.push(what);
        }
    }

    /// Sends what the client takes, and grants what it may send.
    fn pass_on(&mut self, stream: u32) {
        let Some(known) = self.streams.get_mut(&stream) else { return };
        let mut is_over = false;
        while let Some(what) = known.output.pop() {
            is_over |= matches!(what, attach_output::What::ExitCode(_));
            self.server.send(stream, &AttachOutput::from(what).encode_to_vec()).unwrap();
        }
        if is_over {
            self.server.finish(stream);
            return self.over(stream);
        }
        if known.process == Process::Deaf {
            return;
        }
        let kept = known.output.waiting_bytes();
        if let Some(window) = known.input.as_mut().and_then(|input| input.refill(kept)) {
            let grant = AttachOutput { what: None, window };
            self.server.send(stream, &grant.encode_to_vec()).unwrap();
        }
    }

    fn flood(&mut self) {
        let flooding =
            |(stream, known): (&u32, &Stream)| (known.process == Process::Flood).then_some(*stream);
        let streams: Vec<u32> = self.streams.iter().filter_map(flooding).collect();
        for stream in streams {
            while self.server.output().pending().len() < PENDING_MAX
                && self.streams.get(&stream).is_some_and(|known| known.output.has_room())
            {
                let before = self.seen.flooded.fetch_add(16 << 10, Ordering::SeqCst);
                let what = if before < FLOOD_BYTES {
                    attach_output::What::Stdout(vec![b'x'; 16 << 10])
                } else {
                    attach_output::What::ExitCode(0)
                };
                self.tell(stream, what);
                self.pass_on(stream);
            }
        }
    }
}

impl Drop for Shim<'_> {
    fn drop(&mut self) {
        self.seen.running.fetch_sub(self.streams.len(), Ordering::SeqCst);
    }
}
