//! WebSockets: messages as they come, and as they are sent.

use berth_stream::web_socket::{Codec, DATA_MAX, Incoming, MESSAGE_MAX};
use futures::{
    SinkExt as _, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use hyper::body::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message, Utf8Bytes,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};

use super::spdy::GOODBYE_WITHIN;
use crate::causes::with_causes;

/// Bytes that are read, and gathered for writing, at once.
const BUFFER: usize = 16 << 10;

/// What a client says in a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// Bytes.
    Data(u8, Bytes),
    /// Nothing more.
    Closed(u8),
}

/// The client's half.
#[derive(Debug)]
pub(super) struct Reader<T>(SplitStream<WebSocketStream<T>>);

/// The half of this end.
#[derive(Debug)]
pub(super) struct Writer<T>(SplitSink<WebSocketStream<T>, Message>);

/// Speaks WebSocket on a connection whose handshake is done.
pub(super) async fn over<T: AsyncRead + AsyncWrite + Unpin>(io: T) -> (Reader<T>, Writer<T>) {
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER)
        .max_message_size(Some(MESSAGE_MAX))
        .max_frame_size(Some(MESSAGE_MAX));
    let (sink, stream) = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await.split();
    (Reader(stream), Writer(sink))
}

impl<T: AsyncRead + AsyncWrite + Unpin> Reader<T> {
    /// The bytes of the next message; `None` when the client has gone, or breaks the protocol.
    pub(super) async fn message(&mut self) -> Option<Bytes> {
        loop {
            match self.0.next().await? {
                Ok(Message::Binary(bytes)) => return Some(bytes),
                Ok(Message::Text(text)) => return Some(text.into()),
                Ok(Message::Close(_)) => return None,
                // Pings are answered by the library.
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
                Err(error) => {
                    tracing::debug!(error = with_causes(&error), "a WebSocket was lost");
                    return None;
                }
            }
        }
    }

    /// What the client says next; `None` when it has gone, or breaks the protocol.
    pub(super) async fn said(&mut self, codec: Codec) -> Option<Said> {
        loop {
            let message = self.message().await?;
            match codec.decode(&message) {
                Ok(Incoming::Data { channel, bytes }) => {
                    let bytes = match bytes {
                        std::borrow::Cow::Borrowed(part) => message.slice_ref(part),
                        std::borrow::Cow::Owned(bytes) => bytes.into(),
                    };
                    return Some(Said::Data(channel, bytes));
                }
                Ok(Incoming::Closed { channel }) => return Some(Said::Closed(channel)),
                Ok(Incoming::Nothing) => {}
                Err(error) => {
                    tracing::debug!(error = with_causes(&error), "a client breaks the protocol");
                    return None;
                }
            }
        }
    }

    /// Waits a moment for a client that was told everything: bytes of it that nobody reads would make the kernel take back
    /// what was written.
    pub(super) async fn farewell(&mut self) {
        let gone = async { while self.message().await.is_some() {} };
        drop(timeout(GOODBYE_WITHIN, gone).await);
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Writer<T> {
    /// Sends bytes in a channel.
    pub(super) async fn send(&mut self, codec: Codec, channel: u8, bytes: &[u8]) -> Result<(), Error> {
        let mut rest = bytes;
        loop {
            let (piece, behind) = rest.split_at(rest.len().min(DATA_MAX));
            let message = codec.encode(channel, piece);
            self.0.send(framed(codec, message)).await?;
            rest = behind;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Sends bytes as they are.
    pub(super) async fn send_raw(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.0.send(Message::Binary(Bytes::copy_from_slice(bytes))).await
    }

    /// Says that nothing more comes.
    pub(super) async fn close(&mut self) -> Result<(), Error> {
        // Clients take any other code, and none, for a failure.
        let normal = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
        self.0.send(Message::Close(Some(normal))).await
    }
}

fn framed(codec: Codec, message: Vec<u8>) -> Message {
    if codec.is_text() {
        // Digits and base64 are ASCII.
        return Message::text(String::from_utf8_lossy(&message).into_owned());
    }
    Message::binary(message)
}
