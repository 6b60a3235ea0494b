//! Handles to a connection: calls and streams.

use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prost::Message;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use super::connection::{COMMANDS_MAX, Command, Connection, Opened, STREAM_MESSAGES_MAX, Sink, Waiter};
use crate::ttrpc::{ClientError, FrameError, MESSAGE_LEN_MAX, MessageType, Request, Status};

/// Why a call or a stream failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody listens at the socket.
    #[error("connect to {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The connection ended. Whether the call was performed is unknown.
    #[error("wait for an answer: the connection was lost")]
    Lost(#[source] Arc<io::Error>),
    /// No answer came in time. Whether the call was performed is unknown.
    #[error("wait for an answer of {method}: none came within {} ms", after.as_millis())]
    Timeout {
        /// What was called.
        method: String,
        /// How long was waited.
        after: Duration,
    },
    /// The other end answered with a failure.
    #[error(transparent)]
    Status(#[from] Status),
    /// The answer is not the message that it should be.
    #[error("decode the answer")]
    Decode(#[source] prost::DecodeError),
    /// The call was not made.
    #[error("make the call")]
    NotSent(#[source] ClientError),
}

/// A handle to one connection. Clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    commands: mpsc::Sender<Command>,
    /// Why the connection ended, once it has.
    fate: Arc<OnceLock<Arc<io::Error>>>,
}

impl Client {
    /// Connects to a unix socket. Must be called on a Tokio runtime.
    ///
    /// # Errors
    /// [`CallError::Connect`].
    pub async fn connect(path: &Path) -> Result<Client, CallError> {
        let socket = UnixStream::connect(path).await;
        let socket = socket.map_err(|source| CallError::Connect { path: path.to_owned(), source })?;
        Ok(Client::over(socket))
    }

    /// Takes over a connected socket. Must be called on a Tokio runtime.
    pub fn over(socket: UnixStream) -> Client {
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let fate = Arc::new(OnceLock::new());
        tokio::spawn(Connection::new(socket, receiver, Arc::clone(&fate)).run());
        Client { commands, fate }
    }

    /// Makes a call with one message each way. With a `timeout`, which goes to the server too, it is cancelled when its time is
    /// over. Dropping the future cancels it in the same way.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call<Req: Message, Resp: Message + Default>(
        &self,
        service: &str,
        method: &str,
        request: &Req,
        timeout: Option<Duration>,
    ) -> Result<Resp, CallError> {
        let (answer, answered) = oneshot::channel();
        let request = Request::of(service, method, request, timeout.unwrap_or_default());
        let answered = async {
            let mut opened = self.open(request, Waiter::Call(answer)).await?;
            let answer = answered.await.unwrap_or_else(|_| Err(self.lost()));
            opened.lease.end();
            answer
        };
        let payload = match timeout {
            None => answered.await?,
            Some(after) => tokio::time::timeout(after, answered)
                .await
                .map_err(|_elapsed| CallError::Timeout { method: method.to_owned(), after })??,
        };
        Resp::decode(payload.as_slice()).map_err(CallError::Decode)
    }

    /// Makes a call with any number of messages each way.
    ///
    /// # Errors
    /// See [`CallError`]; a failure that the server reports comes out of the receiver.
    pub async fn stream<Req: Message, Resp: Message + Default>(
        &self,
        service: &str,
        method: &str,
    ) -> Result<(StreamSender<Req>, StreamReceiver<Resp>), CallError> {
        let request = Request::of(service, method, &(), Duration::ZERO);
        let (messages, inbox) = mpsc::channel(STREAM_MESSAGES_MAX);
        let Opened { stream, mut lease } = self.open(request, Waiter::Stream(messages)).await?;
        lease.end();
        let sender = StreamSender { client: self.clone(), stream, message: PhantomData };
        Ok((sender, StreamReceiver { client: self.clone(), inbox: Some(inbox), message: PhantomData }))
    }

    /// Waits until the connection is lost and returns why.
    pub async fn closed(&self) -> CallError {
        self.commands.closed().await;
        self.lost()
    }

    /// Whether the connection is lost already.
    pub fn is_closed(&self) -> bool {
        self.commands.is_closed()
    }

    /// Opens a stream whose messages a sink takes, so that it holds up nobody.
    pub(super) async fn stream_into(
        &self,
        service: &str,
        method: &str,
        sink: Arc<dyn Sink>,
    ) -> Result<Opened, CallError> {
        self.open(Request::of(service, method, &(), Duration::ZERO), Waiter::Sink(sink)).await
    }

    /// Queues a message of a stream.
    pub(super) async fn send<M: Message>(&self, stream: u32, message: &M) -> Result<(), CallError> {
        let len = message.encoded_len();
        if len > MESSAGE_LEN_MAX {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            let error = FrameError::Oversized { stream, kind: MessageType::Data, len };
            return Err(CallError::NotSent(ClientError::TooLarge(error)));
        }
        self.command(Command::Send { stream, payload: message.encode_to_vec() }).await
    }

    /// Waits for a place in the queue of messages.
    pub(super) async fn reserve(&self) -> Result<Place<'_>, CallError> {
        self.commands.reserve().await.map(Place).map_err(|_closed| self.lost())
    }

    /// A place in the queue of messages, if one is free.
    pub(super) fn try_reserve(&self) -> Option<Place<'_>> {
        self.commands.try_reserve().ok().map(Place)
    }

    /// Handles to the connection, those in streams included.
    pub(super) fn handles(&self) -> usize {
        self.commands.strong_count()
    }

    /// Whether two handles are to one connection.
    pub(super) fn is_same(&self, other: &Client) -> bool {
        self.commands.same_channel(&other.commands)
    }

    async fn open(&self, request: Request, waiter: Waiter) -> Result<Opened, CallError> {
        let (opened, id) = oneshot::channel();
        self.command(Command::Open { request, waiter, opened }).await?;
        id.await.unwrap_or_else(|_| Err(self.lost()))
    }

    async fn command(&self, command: Command) -> Result<(), CallError> {
        self.commands.send(command).await.map_err(|_rejected| self.lost())
    }

    fn lost(&self) -> CallError {
        let unknown = || Arc::new(io::Error::from(io::ErrorKind::ConnectionAborted));
        CallError::Lost(self.fate.get().map_or_else(unknown, Arc::clone))
    }
}

/// A place for a message that is made when there is one, so that none is made in vain.
pub(super) struct Place<'c>(mpsc::Permit<'c, Command>);

impl Place<'_> {
    pub(super) fn send(self, stream: u32, message: impl FnOnce() -> Option<Vec<u8>>) {
        if let Some(payload) = message() {
            self.0.send(Command::Send { stream, payload });
        }
    }
}

/// The sending half of a stream. Dropping it does not close the stream.
#[derive(Debug)]
pub struct StreamSender<Req> {
    client: Client,
    stream: u32,
    message: PhantomData<fn(Req)>,
}

impl<Req: Message> StreamSender<Req> {
    /// Queues a message, waiting while the connection takes none. A message for a stream that has ended is dropped:
    /// the receiver has the reason.
    ///
    /// # Errors
    /// When the message does not fit in a frame, or the connection is lost.
    pub async fn send(&self, message: &Req) -> Result<(), CallError> {
        self.client.send(self.stream, message).await
    }

    /// Says that nothing more is sent.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn close(self) -> Result<(), CallError> {
        self.client.command(Command::CloseSend { stream: self.stream }).await
    }
}

/// The receiving half of a stream. Dropping it makes the client forget the stream.
#[derive(Debug)]
pub struct StreamReceiver<Resp> {
    client: Client,
    /// `None` after the end.
    inbox: Option<mpsc::Receiver<Inbound>>,
    message: PhantomData<fn() -> Resp>,
}

/// What a connection hands to a stream.
#[derive(Debug)]
pub(super) enum Inbound {
    Message(Vec<u8>),
    End(Result<Vec<u8>, Status>),
}

impl<Resp: Message + Default> StreamReceiver<Resp> {
    /// The next message; `None` after the last. Cancel safe.
    ///
    /// # Errors
    /// See [`CallError`]. Nothing follows an error.
    pub async fn recv(&mut self) -> Result<Option<Resp>, CallError> {
        let Some(inbox) = &mut self.inbox else { return Ok(None) };
        let payload = match inbox.recv().await {
            Some(Inbound::Message(payload)) => payload,
            Some(Inbound::End(result)) => {
                self.inbox = None;
                match result? {
                    last if last.is_empty() => return Ok(None),
                    last => last,
                }
            }
            None => {
                self.inbox = None;
                return Err(self.client.lost());
            }
        };
        Resp::decode(payload.as_slice()).map(Some).map_err(CallError::Decode)
    }
}
