//! Clients for tests: HTTP as far as an upgrade needs it, SPDY as far as streams need it, WebSockets by the library.

use std::{collections::BTreeMap, net::SocketAddr};

use berth_stream::spdy::Headers;
use futures::{SinkExt as _, StreamExt as _};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

pub(super) const UPGRADE: (&str, &str) = ("connection", "Upgrade");
pub(super) const SPDY: (&str, &str) = ("upgrade", "SPDY/3.1");

/// An answer, and the connection after it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) stream: TcpStream,
}

impl Answer {
    /// The rest, when the connection is closed after it.
    pub(super) async fn text(mut self) -> String {
        let length = self.head.to_ascii_lowercase();
        let length = length.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
        let mut body = vec![0; length.parse().unwrap()];
        self.stream.read_exact(&mut body).await.unwrap();
        String::from_utf8(body).unwrap()
    }
}

/// Sends a request and reads the head of its answer.
pub(super) async fn ask(to: SocketAddr, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let request = format!("{method} {target} HTTP/1.1\r\nhost: node\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, stream }
}

/// A WebSocket by a protocol.
#[derive(Debug)]
pub(super) struct WebSocket(pub(super) WebSocketStream<TcpStream>);

impl WebSocket {
    pub(super) async fn open(to: SocketAddr, target: &str, protocol: &str) -> Self {
        let mut headers = vec![
            UPGRADE,
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        if !protocol.is_empty() {
            headers.push(("sec-websocket-protocol", protocol));
        }
        let answer = ask(to, "GET", target, &headers).await;
        assert_eq!(answer.status, 101, "{}", answer.head);
        assert!(
            answer.head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
            "{}",
            answer.head
        );
        let says_protocol = answer.head.contains(&format!("sec-websocket-protocol: {protocol}\r\n"));
        assert_eq!(says_protocol, !protocol.is_empty(), "{}", answer.head);
        Self(WebSocketStream::from_raw_socket(answer.stream, Role::Client, None).await)
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) {
        self.0.send(Message::binary(bytes.to_vec())).await.unwrap();
    }

    /// The next message; `None` when the other end closes.
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        match self.0.next().await? {
            Ok(Message::Binary(bytes)) => Some(bytes.to_vec()),
            Ok(Message::Text(text)) => Some(text.as_bytes().to_vec()),
            Ok(Message::Close(_)) => None,
            other => panic!("{other:?}"),
        }
    }

    /// Everything that is said in each channel until the end.
    pub(super) async fn rest(&mut self) -> BTreeMap<u8, Vec<u8>> {
        let mut channels: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        while let Some(message) = self.next().await {
            channels.entry(message[0]).or_default().extend_from_slice(&message[1..]);
        }
        channels
    }
}

/// What a server of SPDY says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    Reply(u32),
    Data { stream: u32, bytes: Vec<u8>, is_last: bool },
    Reset(u32),
    Other(u16),
}

/// A client of SPDY on whatever.
#[derive(Debug)]
pub(super) struct Spdy<T> {
    pub(super) io: T,
    next: u32,
    is_begun: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Spdy<T> {
    pub(super) fn over(io: T) -> Self {
        Self { io, next: 1, is_begun: false }
    }

    /// Opens a stream and tells its number.
    pub(super) async fn open(&mut self, headers: &[(&str, &str)]) -> u32 {
        self.open_as(0, headers).await
    }

    /// Opens a stream with flags: 1 for FIN, 2 for UNIDIRECTIONAL.
    pub(super) async fn open_as(&mut self, flags: u8, headers: &[(&str, &str)]) -> u32 {
        let stream = self.next;
        self.next += 2;
        let headers = headers.iter().fold(Headers::default(), |all, (name, value)| all.with(name, value));
        let block = self.compressed(&headers);
        let body = [&stream.to_be_bytes()[..], &[0; 6], &block].concat();
        self.control(1, flags, &body).await;
        stream
    }

    pub(super) async fn data(&mut self, stream: u32, bytes: &[u8], is_last: bool) {
        let length = u32::try_from(bytes.len()).unwrap() | u32::from(is_last) << 24;
        let frame = [&stream.to_be_bytes()[..], &length.to_be_bytes(), bytes].concat();
        self.io.write_all(&frame).await.unwrap();
        self.io.flush().await.unwrap();
    }

    pub(super) async fn reset(&mut self, stream: u32) {
        self.control(3, 0, &[&stream.to_be_bytes()[..], &5_u32.to_be_bytes()].concat()).await;
    }

    /// The next frame; `None` at the end of the connection.
    pub(super) async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 8];
        self.io.read_exact(&mut head).await.ok()?;
        let [a, b, c, d, flags, rest @ ..] = head;
        let [x, y, z] = rest;
        let mut body = vec![0; usize::try_from(u32::from_be_bytes([0, x, y, z])).unwrap()];
        self.io.read_exact(&mut body).await.ok()?;
        let named = || u32::from_be_bytes(body[..4].try_into().unwrap());
        Some(match (a & 0x80 != 0, u16::from_be_bytes([c, d])) {
            (false, _) => {
                let stream = u32::from_be_bytes([a, b, c, d]);
                Frame::Data { stream, bytes: body, is_last: flags & 1 != 0 }
            }
            (true, 2) => Frame::Reply(named()),
            (true, 3) => Frame::Reset(named()),
            (true, kind) => Frame::Other(kind),
        })
    }

    /// Everything that is said in each stream until these are finished or reset, or all is.
    pub(super) async fn rest(&mut self, until: &[u32]) -> BTreeMap<u32, Vec<u8>> {
        let mut open = until.to_vec();
        let mut streams: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        while !open.is_empty() || until.is_empty() {
            match self.next().await {
                Some(Frame::Data { stream, bytes, is_last }) => {
                    streams.entry(stream).or_default().extend_from_slice(&bytes);
                    open.retain(|known| !is_last || *known != stream);
                }
                Some(Frame::Reset(stream)) => open.retain(|known| *known != stream),
                Some(Frame::Reply(_) | Frame::Other(_)) => {}
                None => break,
            }
        }
        streams
    }

    async fn control(&mut self, kind: u16, flags: u8, body: &[u8]) {
        let length = u32::try_from(body.len()).unwrap() | u32::from(flags) << 24;
        let head = [&0x8003_u16.to_be_bytes()[..], &kind.to_be_bytes(), &length.to_be_bytes()].concat();
        self.io.write_all(&[&head, body].concat()).await.unwrap();
        self.io.flush().await.unwrap();
    }

    /// As a zlib stream that is not compressed: with the head that names the protocol's dictionary.
    fn compressed(&mut self, headers: &Headers) -> Vec<u8> {
        let mut block = u32::try_from(headers.iter().count()).unwrap().to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            block.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
            block.extend(text.as_bytes());
        }
        let length = u16::try_from(block.len()).unwrap();
        let head: &[u8] = if self.is_begun { &[] } else { &[0x78, 0x20, 0xe3, 0xc6, 0xa7, 0xc2] };
        self.is_begun = true;
        [head, &[0], &length.to_le_bytes(), &(!length).to_le_bytes(), &block].concat()
    }
}

/// A client of SPDY after its upgrade.
pub(super) async fn spdy(to: SocketAddr, target: &str, version: &str) -> Spdy<TcpStream> {
    let headers = [UPGRADE, SPDY, ("x-stream-protocol-version", version)];
    let answer = ask(to, "POST", target, &headers).await;
    assert_eq!(answer.status, 101, "{}", answer.head);
    assert!(answer.head.contains(&format!("x-stream-protocol-version: {version}\r\n")), "{}", answer.head);
    assert!(answer.head.contains("upgrade: SPDY/3.1\r\n"), "{}", answer.head);
    Spdy::over(answer.stream)
}
