//! A shim for tests: it speaks the shim's service, and its processes are a few words.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use berth_proto::{
    EXEC_BY_COMMAND,
    shim::{AttachInput, AttachOutput, StateResponse, attach_input::What, attach_output, shim_service},
    ttrpc::{Code, Event, Server, Status},
};
use prost::Message as _;
use tokio::net::{UnixListener, UnixStream};

/// Bytes of the output that [`FLOOD`] writes.
pub(super) const FLOOD_BYTES: usize = 256 << 20;

/// Bytes that wait for a connection before nothing more is written to it.
const PENDING_MAX: usize = 64 << 10;

/// What was seen of clients.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Bytes of the flood that somebody took.
    pub(super) flooded: AtomicUsize,
    /// Connections that are open.
    pub(super) connections: AtomicUsize,
    /// Inputs of containers that a client has closed.
    pub(super) closed: AtomicUsize,
}

/// Serves a socket.
pub(super) fn start(socket: &Path) -> Arc<Seen> {
    let seen = Arc::new(Seen::default());
    let listener = UnixListener::bind(socket).unwrap();
    let kept = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            kept.connections.fetch_add(1, Ordering::SeqCst);
            let kept = Arc::clone(&kept);
            tokio::spawn(async move {
                serve(connection, &kept).await;
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
    /// Writes without end.
    Flood,
}

#[derive(Default)]
struct Shim {
    server: Server,
    begun: BTreeSet<u32>,
    processes: BTreeMap<u32, Process>,
}

async fn serve(socket: UnixStream, seen: &Seen) {
    let (mut shim, mut buffer) = (Shim::default(), vec![0; 16 << 10]);
    loop {
        while let Some(event) = shim.server.poll() {
            shim.take(event, seen);
        }
        shim.flood(seen);
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

impl Shim {
    fn take(&mut self, event: Event, seen: &Seen) {
        match event {
            Event::Call { stream, request, .. } if request.method == shim_service::STATE => {
                let state = StateResponse { protocol_version: EXEC_BY_COMMAND, ..StateResponse::default() };
                self.server.respond(stream, Ok(state.encode_to_vec()));
            }
            Event::Call { stream, .. } => drop(self.begun.insert(stream)),
            Event::Data { stream, payload } => {
                let what = AttachInput::decode(payload.as_slice()).unwrap().what.unwrap();
                self.said(stream, what, seen);
            }
            Event::HalfClosed { .. } | Event::Aborted { .. } => {}
        }
    }

    fn said(&mut self, stream: u32, what: What, seen: &Seen) {
        match what {
            What::Attach(_) => drop(self.processes.insert(stream, Process::Container)),
            What::Exec(start) => self.exec(stream, &start.command),
            What::Stdin(bytes) if bytes == b"end\n" => self.exit(stream, 7),
            What::Stdin(bytes) => self.tell(stream, attach_output::What::Stdout(bytes)),
            What::CloseStdin(_) if self.processes.get(&stream) == Some(&Process::Container) => {
                seen.closed.fetch_add(1, Ordering::SeqCst);
            }
            What::CloseStdin(_) => self.exit(stream, 0),
            What::Resize(size) => {
                let text = format!("{}x{}\n", size.width, size.height);
                self.tell(stream, attach_output::What::Stdout(text.into_bytes()));
            }
        }
    }

    fn exec(&mut self, stream: u32, command: &[String]) {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["cat"] => drop(self.processes.insert(stream, Process::Cat)),
            ["flood"] => drop(self.processes.insert(stream, Process::Flood)),
            ["fail", code, text] => {
                self.tell(stream, attach_output::What::Stdout(b"out".to_vec()));
                self.tell(stream, attach_output::What::Stderr(text.as_bytes().to_vec()));
                self.exit(stream, code.parse().unwrap());
            }
            _ => {
                let why = format!("OCI runtime exec failed: {words:?}: executable file not found in $PATH");
                self.server.respond(stream, Err(Status::new(Code::Unknown, why)));
            }
        }
    }

    fn tell(&mut self, stream: u32, what: attach_output::What) {
        let mut output = AttachOutput::default();
        output.what.replace(what);
        self.server.send(stream, &output.encode_to_vec()).unwrap();
    }

    fn exit(&mut self, stream: u32, code: u32) {
        self.processes.remove(&stream);
        self.tell(stream, attach_output::What::ExitCode(code));
        self.server.finish(stream);
    }

    fn flood(&mut self, seen: &Seen) {
        let flooding = self.processes.iter().find(|(_, process)| **process == Process::Flood);
        let Some(stream) = flooding.map(|(stream, _)| *stream) else { return };
        while self.server.output().pending().len() < PENDING_MAX {
            let before = seen.flooded.fetch_add(16 << 10, Ordering::SeqCst);
            if before >= FLOOD_BYTES {
                return self.exit(stream, 0);
            }
            self.tell(stream, attach_output::What::Stdout(vec![b'x'; 16 << 10]));
        }
    }
}
