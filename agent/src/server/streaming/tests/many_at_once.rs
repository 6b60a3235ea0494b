//! Many connections at once through one session, with a client that goes by the rules of `kubectl port-forward`: of `handleConnection` of
//! client-go's `portforward.go`, and of the streams of `spdystream`, which loses what comes for a stream that it has forgotten.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use futures::{SinkExt as _, StreamExt as _, future::join_all};
use tokio::{
    io::{
        AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, Empty, Join, ReadHalf,
        Sink, WriteHalf, duplex, empty, join, sink, split,
    },
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

use super::{
    client::{Frame, Spdy},
    world::LONG,
};
use crate::{
    pod_port::Ports,
    server::streaming::{
        forward::{Target, over_spdy, over_tunnel},
        sockets::Sockets,
    },
};

const AT_ONCE: u64 = 8;
const ROUNDS: u64 = 4;
/// Most bytes of a connection: more than wait anywhere on the way.
const BYTES_MAX: u64 = 200_000;

/// Numbers that look like any, the same each time.
#[derive(Debug, Clone)]
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn size(&mut self) -> usize {
        let bound = [10, 1000, 20_000, 70_000][usize::try_from(self.below(4)).unwrap()];
        usize::try_from(1 + self.below(bound)).unwrap()
    }
}

/// Which end of a connection ends first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    Client,
    Pod,
}

/// A stream as `spdystream` knows it.
#[derive(Debug)]
struct Known {
    replied: Option<oneshot::Sender<()>>,
    /// To who reads; without it reading has ended.
    data: Option<mpsc::Sender<Vec<u8>>>,
    is_finished: bool,
}

struct Client {
    writer: tokio::sync::Mutex<Spdy<Join<Empty, WriteHalf<DuplexStream>>>>,
    streams: Mutex<BTreeMap<u32, Known>>,
}

impl Client {
    fn over(io: DuplexStream) -> (Self, Spdy<Join<ReadHalf<DuplexStream>, Sink>>) {
        let (reader, writer) = split(io);
        let writer = tokio::sync::Mutex::new(Spdy::over(join(empty(), writer)));
        (Self { writer, streams: Mutex::default() }, Spdy::over(join(reader, sink())))
    }

    fn with<T>(&self, what: impl FnOnce(&mut BTreeMap<u32, Known>) -> T) -> T {
        what(&mut self.streams.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes frames one by one; whoever does not read his stream holds up the others.
    async fn read(&self, mut reader: Spdy<Join<ReadHalf<DuplexStream>, Sink>>) {
        while let Some(frame) = reader.next().await {
            match frame {
                Frame::Reply(stream) => {
                    let replied = self.with(|streams| streams.get_mut(&stream)?.replied.take());
                    replied.unwrap().send(()).unwrap();
                }
                Frame::Data { stream, bytes, is_last } => {
                    let to = self.with(|streams| {
                        let known = streams.get(&stream).filter(|known| known.replied.is_none())?;
                        known.data.clone()
                    });
                    if let Some(to) = to
                        && !bytes.is_empty()
                    {
                        drop(to.send(bytes).await);
                    }
                    if is_last {
                        self.with(|streams| {
                            let is_over = streams.get_mut(&stream).is_some_and(|known| {
                                known.data = None;
                                known.is_finished
                            });
                            is_over.then(|| streams.remove(&stream));
                        });
                    }
                }
                Frame::Reset(stream) => drop(self.with(|streams| streams.remove(&stream))),
                Frame::Other(_) => {}
            }
        }
    }

    /// `CreateStream`.
    async fn open(&self, kind: &str, port: &str, request: u64) -> (u32, mpsc::Receiver<Vec<u8>>) {
        let request = request.to_string();
        let (replied, reply) = oneshot::channel();
        let (data, receiver) = mpsc::channel(1);
        let stream = {
            let mut writer = self.writer.lock().await;
            let stream = writer.open(&[("streamtype", kind), ("port", port), ("requestid", &request)]).await;
            let known = Known { replied: Some(replied), data: Some(data), is_finished: false };
            self.with(|streams| streams.insert(stream, known));
            stream
        };
        reply.await.unwrap();
        (stream, receiver)
    }

    async fn data(&self, stream: u32, bytes: &[u8]) {
        self.writer.lock().await.data(stream, bytes, false).await;
    }

    /// `Close`.
    async fn finish(&self, stream: u32) {
        let mut writer = self.writer.lock().await;
        self.with(|streams| streams.get_mut(&stream).unwrap().is_finished = true);
        writer.data(stream, b"", true).await;
    }

    /// `Reset`, which says nothing on a stream that was closed.
    async fn reset(&self, stream: u32) {
        let known = self.with(|streams| streams.remove(&stream));
        if known.is_some_and(|known| !known.is_finished) {
            self.writer.lock().await.reset(stream).await;
        }
    }

    /// `handleConnection`: what came back, and what the error stream said.
    async fn connection(&self, port: &str, number: u64, sent: &[u8], first: First) -> (Vec<u8>, Vec<u8>) {
        let mut numbers = Numbers(number);
        let (error, mut errors) = self.open("error", port, number).await;
        self.finish(error).await;
        let (data, mut received) = self.open("data", port, number).await;
        let up = async {
            let mut rest = sent;
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(numbers.size().min(rest.len()));
                self.data(data, piece).await;
                rest = after;
            }
            if first == First::Client {
                self.finish(data).await;
            }
        };
        let down = async {
            let mut all = Vec::new();
            while let Some(bytes) = received.recv().await {
                all.extend_from_slice(&bytes);
            }
            self.reset(data).await;
            all
        };
        let ((), back) = tokio::join!(up, down);
        let mut said = Vec::new();
        while let Some(bytes) = errors.recv().await {
            said.extend_from_slice(&bytes);
        }
        (back, said)
    }
}

/// What a connection sends: who ends it first, how many bytes there are, and these.
fn content(numbers: &mut Numbers, first: First) -> Vec<u8> {
    let count = numbers.below(BYTES_MAX);
    let bytes = (0..count).map(|at| at.wrapping_mul(numbers.0).to_be_bytes()[0]);
    let head = [u8::from(first == First::Pod)].into_iter().chain(count.to_be_bytes());
    head.chain(bytes).collect()
}

/// Sends back what it is sent, to the end of the input or to the end of what was told.
async fn echo(mut socket: TcpStream, mut numbers: Numbers) {
    let mut head = [0; 9];
    socket.read_exact(&mut head).await.unwrap();
    socket.write_all(&head).await.unwrap();
    let [is_first, count @ ..] = head;
    let mut left = if is_first == 1 { u64::from_be_bytes(count) } else { u64::MAX };
    while left > 0 {
        let mut piece = vec![0; numbers.size().min(usize::try_from(left).unwrap_or(usize::MAX))];
        match socket.read(&mut piece).await.unwrap() {
            0 => return,
            count => {
                socket.write_all(&piece[..count]).await.unwrap();
                left -= u64::try_from(count).unwrap();
            }
        }
    }
}

async fn listen() -> (Target, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    tokio::spawn(async move {
        for number in 0.. {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(echo(socket, Numbers(number)));
        }
    });
    let target = Target {
        ports: Ports::OfNode,
        pod: "echoes".to_owned(),
        sockets: Sockets::default().of_session("shop"),
    };
    (target, port)
}

/// Rounds of connections at once through one session; each gets its own bytes, all of them, and no word of a failure.
async fn many_at_once(client: &Client, port: &str, seed: u64) {
    for round in 0..ROUNDS {
        let one = |number: u64| async move {
            let number = round * AT_ONCE + number;
            let mut numbers = Numbers(seed + number);
            let first = if numbers.below(2) == 0 { First::Client } else { First::Pod };
            let sent = content(&mut numbers, first);
            let (back, said) = client.connection(port, number, &sent, first).await;
            assert_eq!(String::from_utf8_lossy(&said), "", "seed {seed}, connection {number}");
            assert_eq!(back.len(), sent.len(), "seed {seed}, connection {number}, {first:?} ends first");
            assert!(back == sent, "seed {seed}, connection {number} has other bytes");
        };
        join_all((0..AT_ONCE).map(one)).await;
    }
    assert_eq!(client.with(|streams| streams.len()), 0, "streams that never ended");
}

async fn talk(near: DuplexStream, serve: impl Future<Output = ()>, port: &str, seed: u64) {
    let (client, reader) = Client::over(near);
    let talking = timeout(LONG, many_at_once(&client, port, seed));
    tokio::select! {
        () = serve => panic!("the session has ended"),
        () = client.read(reader) => panic!("the connection has ended"),
        talked = talking => talked.unwrap(),
    }
}

#[tokio::test]
async fn each_connection_gets_its_own_bytes_over_spdy() {
    for (seed, size) in [(1, 100), (2, 5000), (3, 1 << 20)] {
        let (target, port) = listen().await;
        let (near, far) = duplex(size);
        talk(near, over_spdy(far, target), &port, seed).await;
    }
}

/// Passes bytes on in messages of a WebSocket, as `TunnelingConnection` of client-go: one for each write.
async fn tunnel<T: AsyncRead + AsyncWrite + Unpin>(socket: T, bytes: DuplexStream) {
    let socket = WebSocketStream::from_raw_socket(socket, Role::Client, None).await;
    let (mut to, mut from) = socket.split();
    let (mut reader, mut writer) = split(bytes);
    let sending = async {
        let mut buffer = vec![0; 40_000];
        while let Ok(count @ 1..) = reader.read(&mut buffer).await {
            to.send(Message::binary(buffer[..count].to_vec())).await.unwrap();
        }
    };
    let receiving = async {
        while let Some(Ok(Message::Binary(bytes))) = from.next().await {
            writer.write_all(&bytes).await.unwrap();
        }
    };
    tokio::join!(sending, receiving);
}

#[tokio::test]
async fn each_connection_gets_its_own_bytes_through_a_tunnel() {
    for (seed, size) in [(4, 100), (5, 5000), (6, 1 << 20)] {
        let (target, port) = listen().await;
        let (near, far) = duplex(size);
        let (client_end, node_end) = duplex(size);
        let serve = async {
            tokio::select! {
                () = over_tunnel(node_end, target) => {}
                () = tunnel(client_end, far) => {}
            }
        };
        talk(near, serve, &port, seed).await;
    }
}
