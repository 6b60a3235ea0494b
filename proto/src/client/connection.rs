//! The task that owns a connection.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};

use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use super::abandoned::{Abandoned, Lease};
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
pub(super) enum Command {
    Open { request: Request, waiter: Waiter, opened: oneshot::Sender<Result<Opened, CallError>> },
    Send { stream: u32, payload: Vec<u8> },
    CloseSend { stream: u32 },
}

/// A stream that was opened. It is cancelled when this is dropped, on its way as well.
pub(super) struct Opened {
    pub(super) stream: u32,
    pub(super) lease: Lease,
}

/// Takes what a stream brings, never waits for anybody, and so holds up no other stream of its connection.
pub(super) trait Sink: Send + Sync {
    fn message(&self, payload: Vec<u8>);

    /// Nothing follows.
    fn end(&self, result: Result<Vec<u8>, CallError>);
}

/// Who waits for what a stream brings.
pub(super) enum Waiter {
    Call(oneshot::Sender<Result<Vec<u8>, CallError>>),
    Stream(mpsc::Sender<Inbound>),
    Sink(Arc<dyn Sink>),
}

impl Waiter {
    fn is_gone(&self) -> bool {
        match self {
            Waiter::Call(answer) => answer.is_closed(),
            Waiter::Stream(messages) => messages.is_closed(),
            // It is told.
            Waiter::Sink(_) => false,
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
    abandoned: Arc<Abandoned>,
    fate: Arc<OnceLock<Arc<io::Error>>>,
}

/// What the connection's task waits for.
enum Wake {
    Readable(io::Result<()>),
    Writable(io::Result<()>),
    Unstalled,
    Command(Option<Command>),
    Abandoned,
}

impl Connection {
    pub(super) fn new(
        socket: UnixStream,
        commands: mpsc::Receiver<Command>,
        fate: Arc<OnceLock<Arc<io::Error>>>,
    ) -> Connection {
        let (ttrpc, waiting) = (ttrpc::Client::default(), BTreeMap::new());
        let (stalled, read) = (None, Box::new([0; _]));
        Connection { socket, ttrpc, commands, waiting, stalled, read, abandoned: Arc::default(), fate }
    }

    /// Runs until the connection is lost, or until nobody holds a handle and everything is written.
    pub(super) async fn run(mut self) {
        if let Err(error) = self.serve().await {
            let error = Arc::new(error);
            // Set once, before the waiters and the command queue go: whoever sees them gone finds the reason.
            self.fate.get_or_init(|| Arc::clone(&error));
            for (_, waiter) in std::mem::take(&mut self.waiting) {
                let lost = Err(CallError::Lost(Arc::clone(&error)));
                match waiter {
                    Waiter::Call(answer) => drop(answer.send(lost)),
                    Waiter::Sink(sink) => sink.end(lost),
                    // It finds the fate.
                    Waiter::Stream(_) => {}
                }
            }
        }
    }

    async fn serve(&mut self) -> io::Result<()> {
        let mut deserted = false;
        loop {
            self.deliver();
            if deserted && self.ttrpc.output().pending().is_empty() {
                return Ok(());
            }
            match self.wait(deserted).await {
                Wake::Readable(ready) => ready.and_then(|()| self.read())?,
                Wake::Writable(ready) => ready.and_then(|()| self.write())?,
                Wake::Unstalled => {}
                Wake::Command(Some(command)) => self.command(command),
                Wake::Command(None) => deserted = true,
                Wake::Abandoned => self.cancel_abandoned(),
            }
        }
    }

    /// Every branch is cancel safe: readiness, a free place in a queue and a queue's next item are lost by none.
    async fn wait(&mut self, deserted: bool) -> Wake {
        let stalled = self.stalled.as_ref().map(|stalled| stalled.messages.clone());
        let pending = self.ttrpc.output().pending().len();
        let (writing, taking) = (pending > 0, !deserted && pending < OUTPUT_BYTES_MAX);
        tokio::select! {
            ready = self.socket.readable(), if stalled.is_none() => Wake::Readable(ready),
            ready = self.socket.writable(), if writing => Wake::Writable(ready),
            () = room(stalled.as_ref()), if stalled.is_some() => Wake::Unstalled,
            command = self.commands.recv(), if taking => Wake::Command(command),
            () = self.abandoned.wait() => Wake::Abandoned,
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
                    Some(Waiter::Sink(sink)) => sink.message(payload),
                    Some(Waiter::Call(_)) | None => {}
                },
                Reply::End { stream, result } => match self.waiting.remove(&stream) {
                    Some(Waiter::Stream(messages)) => self.hand(messages, Inbound::End(result)),
                    Some(Waiter::Call(answer)) => drop(answer.send(result.map_err(CallError::Status))),
                    Some(Waiter::Sink(sink)) => sink.end(result.map_err(CallError::Status)),
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
            Command::Open { request, waiter, opened } => {
                let result = self.open(&request, &waiter).map_err(CallError::NotSent).map(|stream| {
                    self.waiting.insert(stream, waiter);
                    Opened { stream, lease: Lease::of(stream, Arc::clone(&self.abandoned)) }
                });
                drop(opened.send(result));
            }
            // The stream may have ended on its own: its receiver says how.
            Command::Send { stream, payload } => drop(self.ttrpc.send(stream, &payload)),
            Command::CloseSend { stream } => drop(self.ttrpc.close_send(stream)),
        }
    }

    /// Opens a stream, making room for it by forgetting those whose callers have gone.
    fn open(&mut self, request: &Request, waiter: &Waiter) -> Result<u32, ClientError> {
        let how = match waiter {
            Waiter::Call(_) => ttrpc::Client::call,
            Waiter::Stream(_) | Waiter::Sink(_) => ttrpc::Client::call_streaming,
        };
        match how(&mut self.ttrpc, request) {
            Err(ClientError::TooManyStreams) => {}
            opened => return opened,
        }
        for (stream, _) in self.waiting.extract_if(.., |_, waiter| waiter.is_gone()) {
            self.ttrpc.forget(stream);
        }
        how(&mut self.ttrpc, request)
    }

    /// Ends the streams whose users have gone, behind everything that they have said: their handles have queued it.
    fn cancel_abandoned(&mut self) {
        let streams = self.abandoned.take();
        while let Ok(command) = self.commands.try_recv() {
            self.command(command);
        }
        for stream in streams {
            if self.waiting.remove(&stream).is_some() {
                self.ttrpc.cancel(stream);
            }
        }
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
