//! Forwarded connections. The pod is on the network of the node.

use berth_stream::{port_forward::Ports, web_socket::Encoding};
use futures::{SinkExt as _, StreamExt as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex, split},
    net::TcpListener,
    time::{Instant, timeout},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

use super::{
    client::{Frame, Spdy, UPGRADE, WebSocket, ask, spdy},
    commands::{for_spdy, for_websocket, has_all_places},
    world::{LONG, World},
};
use crate::{
    pod_port::{self, tests::nobodys_port},
    server::streaming::{forward::Target, places::POD_MAX, port_channels::over_channels, sockets::Sockets},
};

const TARGET: &str = "/portForward/shop/web";
const VERSION: &str = "portforward.k8s.io";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const V4: &str = "v4.channel.k8s.io";

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    (listener, port)
}

/// Both streams of a connection: for errors, and for data.
async fn connect<T>(client: &mut Spdy<T>, port: &str, request: &str) -> (u32, u32)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let headers = |kind| [("streamtype", kind), ("port", port), ("requestid", request)];
    (client.open(&headers("error")).await, client.open(&headers("data")).await)
}

/// Reads to the end of the input, then answers, then ends.
async fn answers_at_the_end(listener: &TcpListener, expected: &[u8]) {
    let (mut socket, _) = listener.accept().await.unwrap();
    let mut said = Vec::new();
    socket.read_to_end(&mut said).await.unwrap();
    assert_eq!(said, expected);
    socket.write_all(b"pong").await.unwrap();
}

#[tokio::test]
async fn each_end_of_a_connection_is_passed_on() {
    let world = World::start().await;
    let (listener, port) = listen().await;
    let talk = async {
        let mut client = spdy(world.address, TARGET, VERSION).await;
        let (error, data) = connect(&mut client, &port, "0").await;
        client.data(data, b"ping", true).await;
        let both = [error, data];
        let (said, ()) = tokio::join!(client.rest(&both), answers_at_the_end(&listener, b"ping"));
        assert_eq!(said[&data], b"pong");
        assert_eq!(said.get(&error).map(Vec::as_slice).unwrap_or_default(), b"");

        // The pod's end comes first: both streams end for the client, which may still write.
        let (error, data) = connect(&mut client, &port, "1").await;
        let server = async {
            let (socket, _) = listener.accept().await.unwrap();
            let (mut reader, mut writer) = socket.into_split();
            writer.write_all(b"hello").await.unwrap();
            writer.shutdown().await.unwrap();
            let mut said = Vec::new();
            reader.read_to_end(&mut said).await.unwrap();
            said
        };
        let client = async {
            let said = client.rest(&[error, data]).await;
            client.data(data, b"late", true).await;
            (said, client)
        };
        let ((said, _client), server_said) = tokio::join!(client, server);
        assert_eq!((said[&data].as_slice(), server_said.as_slice()), (&b"hello"[..], &b"late"[..]));
    };
    timeout(LONG, talk).await.unwrap();
}

#[tokio::test]
async fn a_port_that_nobody_has_is_told_on_the_error_stream() {
    let world = World::start().await;
    let (_held, port) = nobodys_port();
    let port = port.to_string();
    let talk = async {
        let mut client = spdy(world.address, TARGET, VERSION).await;
        let (error, data) = connect(&mut client, &port, "0").await;
        let said = client.rest(&[error, data]).await;
        let text = String::from_utf8(said[&error].clone()).unwrap();
        assert!(
            text.starts_with(&format!("error forwarding port {port} to pod 0123456789, uid : ")),
            "{text}"
        );
        assert!(text.contains(&format!("dial tcp4 127.0.0.1:{port}: connect: connection refused")), "{text}");
        // The session goes on.
        let (listener, port) = listen().await;
        let (error, data) = connect(&mut client, &port, "0").await;
        client.data(data, b"ping", true).await;
        let both = [error, data];
        let (said, ()) = tokio::join!(client.rest(&both), answers_at_the_end(&listener, b"ping"));
        assert_eq!(said[&data], b"pong");
    };
    timeout(LONG, talk).await.unwrap();
}

#[tokio::test]
async fn streams_without_a_port_are_refused_and_one_that_is_stuck_holds_up_no_other() {
    let world = World::start().await;
    let (stuck, stuck_port) = listen().await;
    let (listener, port) = listen().await;
    let talk = async {
        let mut client = spdy(world.address, TARGET, VERSION).await;
        let none = client.open(&[("streamtype", "data")]).await;
        assert_eq!(client.next().await, Some(Frame::Reset(none)));
        let (_, held) = connect(&mut client, &stuck_port, "0").await;
        let (_socket, _) = stuck.accept().await.unwrap();
        // Some of it stays here, since nobody reads it.
        for _ in 0..8 {
            client.data(held, &[0; 64 << 10], false).await;
        }
        let (error, data) = connect(&mut client, &port, "1").await;
        client.data(data, b"ping", true).await;
        let both = [error, data];
        let (said, ()) = tokio::join!(client.rest(&both), answers_at_the_end(&listener, b"ping"));
        assert_eq!(said[&data], b"pong");
        // One that the client gives up ends for the pod.
        let (_, given_up) = connect(&mut client, &port, "2").await;
        let (mut socket, _) = listener.accept().await.unwrap();
        client.reset(given_up).await;
        let mut said = Vec::new();
        drop(socket.read_to_end(&mut said).await);
        assert_eq!(said, b"");
    };
    timeout(LONG, talk).await.unwrap();
}

#[tokio::test]
async fn a_tunnel_carries_spdy_within_messages() {
    let world = World::start().await;
    let (listener, port) = listen().await;
    let talk = async {
        let mut socket = WebSocket::open(world.address, TARGET, TUNNEL).await;
        let (near, far) = duplex(1 << 16);
        let (mut reader, mut writer) = split(far);
        let passing = async {
            let mut buffer = [0; 1 << 10];
            loop {
                tokio::select! {
                    count = reader.read(&mut buffer) => socket.send(&buffer[..count.unwrap()]).await,
                    message = socket.next() => writer.write_all(&message.unwrap()).await.unwrap(),
                }
            }
        };
        let talking = async {
            let mut client = Spdy::over(near);
            let (error, data) = connect(&mut client, &port, "0").await;
            client.data(data, b"ping", true).await;
            let both = [error, data];
            let (said, ()) = tokio::join!(client.rest(&both), answers_at_the_end(&listener, b"ping"));
            assert_eq!(said[&data], b"pong");
        };
        tokio::select! {
            () = passing => {}
            () = talking => {}
        }
    };
    timeout(LONG, talk).await.unwrap();
}

#[tokio::test]
async fn channels_of_ports_begin_with_their_port() {
    let world = World::start().await;
    let (listener, port) = listen().await;
    let (_held, gone_port) = nobodys_port();
    let talk = async {
        let target = format!("{TARGET}?port={port},{gone_port}");
        let mut client = WebSocket::open(world.address, &target, V4).await;
        client.send(b"\0ping").await;
        let server = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut said = [0; 4];
            socket.read_exact(&mut said).await.unwrap();
            socket.write_all(b"pong").await.unwrap();
        };
        let (said, ()) = tokio::join!(client.rest(), server);
        let (number, gone_number) = (port.parse::<u16>().unwrap().to_le_bytes(), gone_port.to_le_bytes());
        assert_eq!(said[&0], [&number[..], b"pong"].concat());
        assert_eq!(said[&1], number);
        assert_eq!(said[&2], gone_number);
        let failure = said[&3].strip_prefix(&gone_number[..]).unwrap();
        assert!(String::from_utf8_lossy(failure).contains("connection refused"));
    };
    timeout(LONG, talk).await.unwrap();
}

/// A request to forward a port: its method, target and headers.
type Asked = (&'static str, String, Vec<(&'static str, &'static str)>);

/// One by SPDY, one by a tunnel and one by channels.
fn by_each_protocol(port: &str) -> [Asked; 3] {
    [
        ("POST", TARGET.to_owned(), for_spdy(VERSION)),
        ("GET", TARGET.to_owned(), for_websocket(TUNNEL)),
        ("GET", format!("{TARGET}?port={port}"), for_websocket(V4)),
    ]
}

#[tokio::test]
async fn no_port_is_forwarded_of_a_pod_that_has_all_its_sessions() {
    let world = World::start().await;
    let (_listener, port) = listen().await;
    let talk = async {
        for (method, target, headers) in by_each_protocol(&port) {
            let pod = world.streaming.view.pods().remove(0);
            let held: Vec<_> = (0..POD_MAX).map(|_| world.streaming.place(&pod).unwrap()).collect();
            let answer = ask(world.address, method, &target, &headers).await;
            assert_eq!(answer.status, 429, "{headers:?}");
            assert!(answer.head.contains("retry-after: 10\r\n"), "{}", answer.head);
            assert!(answer.text().await.starts_with("the pod has 208 streaming sessions"));
            drop(held);
            let answer = ask(world.address, method, &target, &headers).await;
            assert_eq!(answer.status, 101, "{headers:?}");
            drop(answer);
            while !has_all_places(&world) {
                tokio::task::yield_now().await;
            }
        }
    };
    timeout(LONG, talk).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn forwarded_ports_on_which_nothing_happens_end() {
    let world = World::start().await;
    let (_listener, port) = listen().await;
    for (method, target, headers) in by_each_protocol(&port) {
        let begun = Instant::now();
        let mut answer = ask(world.address, method, &target, &headers).await;
        assert_eq!(answer.status, 101, "{headers:?}");
        assert!(!has_all_places(&world), "{headers:?}");
        let mut rest = Vec::new();
        let ended = timeout(10 * LONG, answer.stream.read_to_end(&mut rest)).await;
        // Closed or reset: it has ended.
        drop(ended.unwrap_or_else(|_| panic!("{headers:?} does not end")));
        assert!(begun.elapsed() >= LONG, "{headers:?}: {:?}", begun.elapsed());
        assert!(has_all_places(&world), "{headers:?}");
    }
}

#[tokio::test]
async fn a_session_has_so_many_connections_and_the_next_is_told() {
    let world = World::start().await;
    let (listener, port) = listen().await;
    let accepting = async {
        let mut held = Vec::new();
        loop {
            held.push(listener.accept().await.unwrap());
        }
    };
    let talk = async {
        let mut client = spdy(world.address, TARGET, VERSION).await;
        for request in 0..256 {
            let (error, data) = connect(&mut client, &port, &request.to_string()).await;
            for stream in [error, data] {
                assert_eq!(client.next().await, Some(Frame::Reply(stream)));
            }
        }
        let (error, data) = connect(&mut client, &port, "one more").await;
        let said = client.rest(&[error, data]).await;
        let expected = format!(
            "error forwarding port {port} to pod 0123456789, uid : this session has 256 connections, which is as many as it \
             may: end one of them"
        );
        assert_eq!(String::from_utf8_lossy(&said[&error]), expected);
    };
    tokio::select! {
        () = accepting => {}
        talked = timeout(LONG, talk) => talked.unwrap(),
    }
}

#[tokio::test]
async fn a_request_for_more_ports_than_there_are_places_is_refused_and_has_none() {
    let world = World::start().await;
    let headers = [
        UPGRADE,
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-protocol", "v4.channel.k8s.io"),
    ];
    let sessions = [(); 2].map(|()| world.streaming.sockets.of_session("shop"));
    let mut held: Vec<_> = sessions.iter().map(|session| session.take_all(256).unwrap()).collect();
    held[0].pop();
    let (_port, number) = nobodys_port();
    let talk = async {
        for _ in 0..2 {
            let answer =
                ask(world.address, "GET", &format!("{TARGET}?port={number},{number}"), &headers).await;
            assert!(answer.head.contains("retry-after: 10"), "{}", answer.head);
            let status = answer.status;
            let text =
                "the namespace has 512 forwarded connections, which is as many as it may: end one of them";
            assert_eq!((status, answer.text().await.trim_end()), (429, text));
        }
        let answer = ask(world.address, "GET", &format!("{TARGET}?port={number}"), &headers).await;
        assert_eq!(answer.status, 101, "{}", answer.head);
    };
    timeout(LONG, talk).await.unwrap();
}

/// 32 MiB are more than wait anywhere on the way.
#[tokio::test(start_paused = true)]
async fn a_port_that_takes_nothing_is_given_up_when_others_wait() {
    let ((stuck, stuck_port), (listener, port)) = (listen().await, listen().await);
    let ports = Ports::of_query([&*stuck_port, &*port]).unwrap();
    let sockets = Sockets::default().of_session("shop");
    let places = sockets.take_all(2).unwrap();
    let target = Target { ports: pod_port::Ports::OfNode, pod: "web".to_owned(), sockets };
    let (near, far) = duplex(64 << 10);
    let pods = async {
        let _held = stuck.accept().await.unwrap();
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut said = [0; 4];
        socket.read_exact(&mut said).await.unwrap();
        socket.write_all(b"pong").await.unwrap();
        std::future::pending::<()>().await;
    };
    let socket = WebSocketStream::from_raw_socket(far, Role::Client, None).await;
    let (mut to, mut from) = socket.split();
    let sending = async {
        for _ in 0..1024 {
            to.send(Message::binary([&[0][..], &[b'x'; 32 << 10]].concat())).await.unwrap();
        }
        to.send(Message::binary(b"\x02ping".as_slice())).await.unwrap();
        std::future::pending::<()>().await;
    };
    let receiving = async {
        let (mut failure, mut answer) = (Vec::new(), Vec::new());
        while !failure.ends_with(b"waited for it") || !answer.ends_with(b"pong") {
            let message = from.next().await.unwrap().unwrap().into_data();
            match message[0] {
                1 => failure.extend_from_slice(&message[1..]),
                2 => answer.extend_from_slice(&message[1..]),
                _ => {}
            }
        }
        failure
    };
    // Time goes on by itself wherever all wait, so there is none that is long.
    let failure = tokio::select! {
        () = over_channels(near, Encoding::Binary, (&ports, places), target) => panic!("the session has ended"),
        () = async { tokio::join!(pods, sending); } => unreachable!(),
        failure = receiving => failure,
    };
    let expected =
        format!("error forwarding port {stuck_port} to pod web, uid : the port took nothing for 30 s");
    // Behind the port, with which each channel begins.
    assert!(String::from_utf8_lossy(&failure[2..]).starts_with(&expected));
}
