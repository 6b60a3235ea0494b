//! The task that owns a connection.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};

use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use super::call::{CallError, Inbound};
use crate::ttrpc::{self, ClientError, Reply, Request};

/// Commands that wait for the connection's task; senders wait beyond that.
pub(super) const COMMANDS_MAX: usize = 64;

/// Messages of one stream that wait for its receiver; the connection is not read beyond that.
pub(super) const STREAM_MESSAGES_MAX: usize = 16;

/// Bytes that wait for the socket; commands are not taken beyond that.
const OUTPUT_BYTES_MAX: usize = 256 << 10;

/// Bytes taken from the socket at once.
const READ_BYTES_MAX: usize = 16 << 10;

/// What a handle asks of its connection.
#[derive(Debug)]
pub(super) enum Command {
    Call {
        request: Request,
        answer: oneshot::Sender<Result<Vec<u8>, CallError>>,
    },
    Stream {
        request: Request,
        messages: mpsc::Sender<Inbound>,
        opened: oneshot::Sender<Result<u32, CallError>>,
    },
    Send {
        stream: u32,
        payload: Vec<u8>,
    },
    CloseSend {
        stream: u32,
    },
}

/// Who waits for what a stream brings.
enum Waiter {
    Call(oneshot::Sender<Result<Vec<u8>, CallError>>),
    Stream(mpsc::Sender<Inbound>),
}

impl Waiter {
    fn is_gone(&self) -> bool {
        match self {
            Waiter::Call(answer) => answer.is_closed(),
            Waiter::Stream(messages) => messages.is_closed(),
        }
    }
}

/// A message that has to wait for its receiver, and everything read after it with it.
struct Stalled {
    messages: mpsc::Sender<Inbound>,
    message: Inbound,
}

pub(super) struct Connection {
    socket: UnixStream,
    ttrpc: ttrpc::Client,
    commands: mpsc::Receiver<Command>,
    waiting: BTreeMap<u32, Waiter>,
    stalled: Option<Stalled>,
    read: Box<[u8; READ_BYTES_MAX]>,
    fate: Arc<OnceLock<Arc<io::Error>>>,
}

/// What the connection's task waits for.
enum Wake {
    Readable(io::Result<()>),
    Writable(io::Result<()>),
    Unstalled,
    Command(Option<Command>),
}

impl Connection {
    pub(super) fn new(
        socket: UnixStream,
        commands: mpsc::Receiver<Command>,
        fate: Arc<OnceLock<Arc<io::Error>>>,
    ) -> Connection {
        let (ttrpc, waiting) = (ttrpc::Client::default(), BTreeMap::new());
        Connection { socket, ttrpc, commands, waiting, stalled: None, read: Box::new([0; _]), fate }
    }

    /// Runs until the connection is lost, or until nobody holds a handle and everything is written.
    pub(super) async fn run(mut self) {
        if let Err(error) = self.serve().await {
            let error = Arc::new(error);
            // Set once, before the waiters and the command queue go: whoever sees them gone finds the reason.
            self.fate.get_or_init(|| Arc::clone(&error));
            for (_, waiter) in std::mem::take(&mut self.waiting) {
                if let Waiter::Call(answer) = waiter {
                    drop(answer.send(Err(CallError::Lost(Arc::clone(&error)))));
                }
            }
        }
    }

    async fn serve(&mut self) -> io::Result<()> {
        let mut abandoned = false;
        loop {
            self.deliver();
            if abandoned && self.ttrpc.output().pending().is_empty() {
                return Ok(());
            }
            match self.wait(abandoned).await {
                Wake::Readable(ready) => ready.and_then(|()| self.read())?,
                Wake::Writable(ready) => ready.and_then(|()| self.write())?,
                Wake::Unstalled => {}
                Wake::Command(Some(command)) => self.command(command),
                Wake::Command(None) => abandoned = true,
            }
        }
    }

    /// Every branch is cancel safe: readiness, a free place in a queue and a queue's next item are lost by none.
    async fn wait(&mut self, abandoned: bool) -> Wake {
        let stalled = self.stalled.as_ref().map(|stalled| stalled.messages.clone());
        let pending = self.ttrpc.output().pending().len();
        let (writing, taking) = (pending > 0, !abandoned && pending < OUTPUT_BYTES_MAX);
        tokio::select! {
            ready = self.socket.readable(), if stalled.is_none() => Wake::Readable(ready),
            ready = self.socket.writable(), if writing => Wake::Writable(ready),
            () = room(stalled.as_ref()), if stalled.is_some() => Wake::Unstalled,
            command = self.commands.recv(), if taking => Wake::Command(command),
        }
    }

    /// Hands out what was read, up to a message whose receiver has no room.
    fn deliver(&mut self) {
        if let Some(stalled) = self.stalled.take() {
            self.hand(stalled.messages, stalled.message);
        }
        while self.stalled.is_none()
            && let Some(reply) = self.ttrpc.poll()
        {
            match reply {
                Reply::Data { stream, payload } => match self.waiting.get(&stream) {
                    Some(Waiter::Stream(messages)) => self.hand(messages.clone(), Inbound::Message(payload)),
                    Some(Waiter::Call(_)) | None => {}
                },
                Reply::End { stream, result } => match self.waiting.remove(&stream) {
                    Some(Waiter::Stream(messages)) => self.hand(messages, Inbound::End(result)),
                    Some(Waiter::Call(answer)) => drop(answer.send(result.map_err(CallError::Status))),
                    None => {}
                },
            }
        }
    }

    fn hand(&mut self, messages: mpsc::Sender<Inbound>, message: Inbound) {
        match messages.try_send(message) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(message)) => {
                self.stalled = Some(Stalled { messages, message });
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Call { request, answer } => match self.open(&request, ttrpc::Client::call) {
                Ok(stream) => drop(self.waiting.insert(stream, Waiter::Call(answer))),
                Err(error) => drop(answer.send(Err(CallError::NotSent(error)))),
            },
            Command::Stream { request, messages, opened } => {
                let stream = self.open(&request, ttrpc::Client::call_streaming);
                if let Ok(stream) = stream {
                    self.waiting.insert(stream, Waiter::Stream(messages));
                }
                drop(opened.send(stream.map_err(CallError::NotSent)));
            }
            // The stream may have ended on its own: its receiver says how.
            Command::Send { stream, payload } => drop(self.ttrpc.send(stream, &payload)),
            Command::CloseSend { stream } => drop(self.ttrpc.close_send(stream)),
        }
    }

    /// Opens a stream, making room for it by forgetting those whose callers have gone.
    fn open(
        &mut self,
        request: &Request,
        how: fn(&mut ttrpc::Client, &Request) -> Result<u32, ClientError>,
    ) -> Result<u32, ClientError> {
        match how(&mut self.ttrpc, request) {
            Err(ClientError::TooManyStreams) => {}
            opened => return opened,
        }
        for (stream, _) in self.waiting.extract_if(.., |_, waiter| waiter.is_gone()) {
            self.ttrpc.forget(stream);
        }
        how(&mut self.ttrpc, request)
    }

    fn read(&mut self) -> io::Result<()> {
        match self.socket.try_read(&mut self.read[..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                self.ttrpc.feed(&self.read[..len]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let output = self.ttrpc.output();
        match self.socket.try_write(output.pending()) {
            Ok(len) => {
                output.written(len);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Waits until a stream's receiver has room, or is gone.
async fn room(messages: Option<&mpsc::Sender<Inbound>>) {
    match messages {
        Some(messages) => drop(messages.reserve().await),
        None => std::future::pending().await,
    }
}
