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

/// Bytes that may wait to be written. When there are so many, a further pong takes the place of the one that waits to join them: a client
/// that sends pings and reads nothing has no more of them kept.
const WAITING_MAX: usize = 64 << 10;

const _: () =
    assert!(DATA_MAX.div_ceil(3) * 4 + 64 < WAITING_MAX, "a message finds room where nothing waits");

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
pub(super) struct Reader<T> {
    messages: SplitStream<WebSocketStream<T>>,
    /// Whether it ended with a message that is too large.
    is_too_large: bool,
}

/// The half of this end.
#[derive(Debug)]
pub(super) struct Writer<T>(SplitSink<WebSocketStream<T>, Message>);

/// Speaks WebSocket on a connection whose handshake is done.
pub(super) async fn over<T: AsyncRead + AsyncWrite + Unpin>(io: T) -> (Reader<T>, Writer<T>) {
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER)
        .max_write_buffer_size(WAITING_MAX)
        .max_message_size(Some(MESSAGE_MAX))
        .max_frame_size(Some(MESSAGE_MAX));
    let (sink, stream) = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await.split();
    (Reader { messages: stream, is_too_large: false }, Writer(sink))
}

/// Ends a WebSocket of which nothing more is read. A client that has sent too much at once is told so.
pub(super) async fn part<T: AsyncRead + AsyncWrite + Unpin>(reader: Reader<T>, mut writer: Writer<T>) {
    if !reader.is_too_large {
        return;
    }
    let goodbye = async {
        writer.close_with(CloseCode::Size).await.ok()?;
        let mut io = reader.messages.reunite(writer.0).ok()?.into_inner();
        // The rest of the message goes nowhere, but bytes that nobody reads would make the kernel take back what was written.
        tokio::io::copy(&mut io, &mut tokio::io::sink()).await.ok()
    };
    drop(timeout(GOODBYE_WITHIN, goodbye).await);
}

impl<T: AsyncRead + AsyncWrite + Unpin> Reader<T> {
    /// The bytes of the next message; `None` when the client has gone, or breaks the protocol.
    pub(super) async fn message(&mut self) -> Option<Bytes> {
        loop {
            match self.messages.next().await? {
                Ok(Message::Binary(bytes)) => return Some(bytes),
                Ok(Message::Text(text)) => return Some(text.into()),
                Ok(Message::Close(_)) => return None,
                // Pings are answered by the library.
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
                Err(error) => {
                    tracing::debug!(error = with_causes(&error), "a WebSocket was lost");
                    self.is_too_large = matches!(error, Error::Capacity(_));
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
            self.put(framed(codec, message)).await?;
            rest = behind;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Sends bytes as they are.
    pub(super) async fn send_raw(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.put(Message::Binary(Bytes::copy_from_slice(bytes))).await
    }

    /// Says that nothing more comes.
    pub(super) async fn close(&mut self) -> Result<(), Error> {
        // Clients take any other code, and none, for a failure.
        self.close_with(CloseCode::Normal).await
    }

    async fn close_with(&mut self, code: CloseCode) -> Result<(), Error> {
        self.put(Message::Close(Some(CloseFrame { code, reason: Utf8Bytes::default() }))).await
    }

    /// Sends a message once nothing waits before it: among pongs it might find no room.
    async fn put(&mut self, message: Message) -> Result<(), Error> {
        self.0.flush().await?;
        self.0.send(message).await
    }
}

fn framed(codec: Codec, message: Vec<u8>) -> Message {
    if codec.is_text() {
        // Digits and base64 are ASCII.
        return Message::text(String::from_utf8_lossy(&message).into_owned());
    }
    Message::binary(message)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_stream::{
        port_forward::Ports,
        web_socket::{Encoding, PortForward},
    };
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex, split};
    use tokio_tungstenite::tungstenite::Message;

    use super::*;

    /// Far longer than anything here takes.
    const LONG: Duration = Duration::from_secs(300);

    /// Bytes on their way between both ends.
    const PIPE: usize = 1 << 10;

    fn codec() -> Codec {
        PortForward::codec(Encoding::Base64, &Ports::of_query(["80"]).unwrap())
    }

    /// A message of a client, whose mask changes nothing.
    fn of_client(first: u8, bytes: &[u8]) -> Vec<u8> {
        [&[first, 0x80 | u8::try_from(bytes.len()).unwrap(), 0, 0, 0, 0], bytes].concat()
    }

    #[tokio::test]
    async fn of_a_client_that_sends_pings_and_reads_nothing_so_much_is_kept_and_no_more() {
        const PINGS: usize = 40_000;
        let (near, far) = duplex(PIPE);
        let (mut reader, mut writer) = over(near).await;
        let (mut from, mut to) = split(far);
        let pinging = async {
            let ping = of_client(0x89, &[b'p'; 125]);
            for _ in 0..PINGS {
                to.write_all(&ping).await.unwrap();
            }
            to.write_all(&of_client(0x82, b"last")).await.unwrap();
        };
        let talk = async {
            let ((), last) = tokio::join!(pinging, reader.message());
            assert_eq!(last.as_deref(), Some(&b"last"[..]), "all pings were read");
            let answering = async {
                writer.send(codec(), 0, &[b'x'; 3 * DATA_MAX]).await.unwrap();
                writer.close().await.unwrap();
                drop((reader, writer));
            };
            let mut back = Vec::new();
            let ((), read) = tokio::join!(answering, from.read_to_end(&mut back));
            read.unwrap();
            back
        };
        let back = timeout(LONG, talk).await.unwrap();
        let pongs = back.iter().filter(|byte| **byte == b'p').count();
        assert!((1..=WAITING_MAX + PIPE).contains(&pongs), "{pongs} bytes of {PINGS} pings were kept");
        let mut client =
            WebSocketStream::from_partially_read(tokio::io::empty(), back, Role::Client, None).await;
        let mut said = 0;
        loop {
            match client.next().await.unwrap().unwrap() {
                Message::Text(text) => said += text.len() - 1,
                Message::Close(_) => break,
                _ => {}
            }
        }
        assert_eq!(said, 3 * DATA_MAX.div_ceil(3) * 4, "what was sent has found its way");
    }

    /// Sends a message of so many bytes: whether it was taken, and the code that the client is told.
    async fn sent(length: usize) -> (bool, Option<CloseCode>) {
        let (near, far) = duplex(PIPE);
        let (mut reader, writer) = over(near).await;
        let mut client = WebSocketStream::from_raw_socket(far, Role::Client, None).await;
        let serving = async {
            let is_taken = reader.message().await.is_some_and(|message| message.len() == length);
            part(reader, writer).await;
            is_taken
        };
        let talking = async move {
            // All of it is read, whatever becomes of it.
            client.send(Message::binary(vec![0; length])).await.unwrap();
            match client.next().await {
                Some(Ok(Message::Close(Some(frame)))) => Some(frame.code),
                _ => None,
            }
        };
        timeout(LONG, async { tokio::join!(serving, talking) }).await.unwrap()
    }

    #[tokio::test]
    async fn a_message_that_is_too_large_ends_the_session_and_the_client_is_told() {
        assert_eq!(sent(1 << 20).await, (true, None));
        assert_eq!(sent((1 << 20) + 1).await, (false, Some(CloseCode::Size)));
    }
}
