//! What a client may not make of the server.

use std::time::Duration;

use berth_core::server::{Kind, Places};
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{
    client::{H2_ALONE, LONG, Speaks, ask, connect, http2, read, request, send, usual_http2},
    world::{Decides, Settings, World},
};

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n";
const SOON: Duration = Duration::from_millis(50);

/// Waits until the other side has closed a connection.
async fn has_ended(stream: &mut (impl tokio::io::AsyncRead + Unpin)) {
    let mut rest = Vec::new();
    // Closed or reset: it has ended.
    drop(timeout(LONG, stream.read_to_end(&mut rest)).await.expect("an end"));
}

#[tokio::test]
async fn cve_2020_8551_what_is_too_large_is_not_read() {
    let world = World::start(Settings::default()).await;
    let admin = world.authority.client("admin");
    let heard = world.ask(Some(&admin), "POST", "/run/ns/p/c", "Content-Length: 100000000000\r\n").await;
    assert_eq!(heard.status, 413);
    let heard = world.ask(None, "POST", "/run/ns/p/c", "Content-Length: 100000000000\r\n").await;
    assert_eq!(heard.status, 401);
    let heard = world.ask(Some(&admin), "POST", "/run/ns/p/c", "Content-Length: 3\r\n\r\nabc").await;
    assert_eq!(heard.status, 200, "what is small is left unread");
    let long = format!("/exec/ns/p/c?command={}", "x".repeat(60_000));
    assert_eq!(world.status(Some(&admin), &long).await, 200, "the command of an exec");
    for (path, headers) in [
        (format!("/{}", "x".repeat(9_000)), String::new()),
        (format!("/pods?{}", "x".repeat(100_000)), String::new()),
        ("/pods".to_owned(), format!("X: {}\r\n", "x".repeat(3 << 20))),
        ("/pods".to_owned(), "X: y\r\n".repeat(1000)),
    ] {
        let mut stream = world.connect(Some(&admin)).await;
        let heard = ask(&mut stream, &request("GET", &path, &headers)).await;
        assert!(heard.as_ref().is_none_or(|heard| matches!(heard.status, 400 | 414 | 431)), "{heard:?}");
    }
    assert_eq!(world.status(Some(&admin), "/pods").await, 200);
}

#[tokio::test]
async fn a_stream_has_its_connection_and_nothing_ends_it() {
    let places = Places { all: 3, not_admitted: 2, known: 0 };
    let world = World::start(Settings { places, ..Settings::default() }).await;
    let admin = world.authority.client("admin");
    let mut stream = world.connect(Some(&admin)).await;
    let answer = ask(&mut stream, &request("POST", "/exec/ns/p/c", UPGRADE)).await.unwrap();
    assert!(answer.status == 101 && answer.head.contains("upgrade: SPDY/3.1"), "{answer:?}");
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(world.address).await.unwrap());
        assert_eq!(world.status(Some(&admin), "/pods").await, 200);
    }
    stream.write_all(b"said back").await.unwrap();
    stream.flush().await.unwrap();
    let mut back = [0; 9];
    timeout(LONG, stream.read_exact(&mut back)).await.unwrap().unwrap();
    assert_eq!(&back, b"said back");
}

#[tokio::test]
async fn connections_that_are_not_let_in_keep_nobody_out() {
    let places = Places { all: 8, not_admitted: 4, known: 0 };
    let world = World::start(Settings { places, ..Settings::default() }).await;
    let admin = world.authority.client("admin");
    let mut kept = world.connect(Some(&admin)).await;
    assert_eq!(ask(&mut kept, &request("GET", "/pods", "")).await.unwrap().status, 200);
    let mut strangers = Vec::new();
    for at in 0..40 {
        if at % 2 == 0 {
            let mut stranger = world.connect(None).await;
            assert_eq!(ask(&mut stranger, &request("GET", "/pods", "")).await.unwrap().status, 401);
            strangers.push(stranger);
        } else {
            let silent = TcpStream::connect(world.address).await.unwrap();
            drop(silent.into_std());
        }
        assert_eq!(world.status(Some(&admin), "/healthz").await, 200, "a new one has a place");
    }
    has_ended(&mut strangers[0]).await;
    assert_eq!(ask(&mut kept, &request("GET", "/pods", "")).await.unwrap().status, 200, "it was never ended");
}

#[tokio::test]
async fn a_handshake_that_does_not_come_ends_its_connection() {
    let mut settings = Settings::default();
    settings.times.handshake = SOON;
    let world = World::start(settings).await;
    let mut silent = TcpStream::connect(world.address).await.unwrap();
    has_ended(&mut silent).await;
    let mut slow = TcpStream::connect(world.address).await.unwrap();
    slow.write_all(&[22, 3, 1]).await.unwrap();
    has_ended(&mut slow).await;
    let mut plain = TcpStream::connect(world.address).await.unwrap();
    plain.write_all(&request("GET", "/healthz", "")).await.unwrap();
    has_ended(&mut plain).await;
}

#[tokio::test]
async fn a_request_that_does_not_come_ends_its_connection() {
    for alpn in [&[], H2_ALONE] {
        let mut settings = Settings::default();
        (settings.times.first, settings.times.end) = (SOON, SOON);
        let world = World::start(settings).await;
        let admin = world.authority.client("admin");
        let speaks = Speaks { alpn, ..Speaks::default() };
        let mut stream = connect(world.address, &world.of_server, Some(&admin), speaks).await.unwrap();
        if alpn.is_empty() {
            stream.write_all(b"GET /pods HTTP/1.1\r\nHost: x\r\n").await.unwrap();
        }
        has_ended(&mut stream).await;
    }
}

#[tokio::test]
async fn a_connection_that_asks_nothing_more_ends_and_a_stream_does_not() {
    let mut settings = Settings::default();
    settings.times.idle = SOON;
    let world = World::start(settings).await;
    let admin = world.authority.client("admin");
    let mut stream = world.connect(Some(&admin)).await;
    assert_eq!(ask(&mut stream, &request("POST", "/exec/ns/p/c", UPGRADE)).await.unwrap().status, 101);
    let mut idle = world.connect(Some(&admin)).await;
    assert_eq!(ask(&mut idle, &request("GET", "/pods", "")).await.unwrap().status, 200);
    has_ended(&mut idle).await;
    stream.write_all(b"x").await.unwrap();
    stream.flush().await.unwrap();
    assert_eq!(timeout(LONG, stream.read_u8()).await.unwrap().unwrap(), b'x');
}

#[tokio::test]
async fn http_2_is_spoken_and_has_no_upgrades() {
    let world = World::start(Settings::default()).await;
    let admin = world.authority.client("admin");
    let speaks = Speaks { alpn: &[b"h2", b"http/1.1"], ..Speaks::default() };
    let stream = connect(world.address, &world.of_server, Some(&admin), speaks).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let client = http2(stream, &usual_http2()).await;
    for (method, path, status) in [
        ("GET", "/pods", 200),
        ("GET", "/x", 404),
        ("GET", "/metrics/../pods", 404),
        ("DELETE", "/pods", 405),
        ("POST", "/exec/ns/p/c", 200),
        ("HEAD", "/healthz", 200),
        ("HEAD", "/pods", 405),
    ] {
        let request = http::Request::builder().method(method).uri(format!("https://localhost{path}"));
        let answer = send(&client, request).await;
        assert_eq!(answer.status(), status, "{method} {path}");
        let length = answer.headers()["content-length"].to_str().unwrap().parse::<usize>().unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body.len(), if method == "HEAD" { 0 } else { length }, "{method} {path}");
        assert!(length > 0);
    }
}

/// CVE-2023-44487: requests that are taken back as soon as they are made.
#[tokio::test]
async fn cve_2023_44487_who_takes_requests_back_again_and_again_is_cut_off() {
    let world = World::start(Settings::default()).await;
    let admin = world.authority.client("admin");
    let speaks = Speaks { alpn: H2_ALONE, ..Speaks::default() };
    let mut stream = connect(world.address, &world.of_server, Some(&admin), speaks).await.unwrap();
    let mut frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        frames.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
        frames.extend_from_slice(&[kind, flags]);
        frames.extend_from_slice(&stream.to_be_bytes());
        frames.extend_from_slice(payload);
    };
    frame(4, 0, 0, &[]);
    for number in (1..20_000).step_by(2) {
        // GET https / with authority "x", and at once RST_STREAM (CANCEL).
        frame(1, 5, number, &[0x82, 0x87, 0x84, 0x41, 0x01, b'x']);
        frame(3, 0, number, &8_u32.to_be_bytes());
    }
    drop(stream.write_all(&frames).await);
    drop(stream.flush().await);
    has_ended(&mut stream).await;
    assert_eq!(world.status(Some(&admin), "/pods").await, 200);
}

/// CVE-2019-11248, CVE-2025-0426: nothing for debugging is there for those who need not say who they are.
#[tokio::test]
async fn cve_2019_11248_the_read_only_port_shows_health_pods_and_numbers() {
    let world = World::start(Settings { decides: Decides::ReadOnly, ..Settings::default() }).await;
    for (method, path, status) in [
        ("GET", "/healthz", 200),
        ("GET", "/pods", 200),
        ("GET", "/metrics", 200),
        ("GET", "/stats/summary", 200),
        ("GET", "/debug/pprof/heap", 405),
        ("GET", "/debug/flags/v", 404),
        ("GET", "/configz", 404),
        ("GET", "/logs/", 405),
        ("GET", "/containerLogs/ns/p/c", 405),
        ("POST", "/exec/ns/p/c", 405),
        ("POST", "/run/ns/p/c", 405),
        ("POST", "/checkpoint/ns/p/c", 404),
        ("GET", "//pods", 404),
        ("POST", "/pods", 405),
    ] {
        for upgrade in ["", UPGRADE] {
            let mut stream = TcpStream::connect(world.address).await.unwrap();
            let heard = ask(&mut stream, &request(method, path, upgrade)).await.unwrap();
            let is_wanted =
                heard.status == status || (status == 200 && !upgrade.is_empty() && heard.status == 500);
            assert!(is_wanted, "{method} {path} {upgrade}: {heard:?}");
        }
    }
    for (kind, method, path) in Kind::all_examples() {
        for upgrade in ["", UPGRADE] {
            let mut stream = TcpStream::connect(world.address).await.unwrap();
            let heard = ask(&mut stream, &request(method, path, upgrade)).await.unwrap();
            assert_ne!(heard.status, 101, "{method} {path}");
            let is_shown = matches!(
                kind,
                Kind::Health
                    | Kind::Pods
                    | Kind::Summary
                    | Kind::Metrics
                    | Kind::MetricsOfCgroups
                    | Kind::MetricsOfResources
                    | Kind::MetricsOfProbes
                    | Kind::MetricsOfHealth
            );
            assert!(is_shown || matches!(heard.status, 404 | 405), "{method} {path}: {heard:?}");
        }
    }
    let mut stream = TcpStream::connect(world.address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let heard = read(&mut stream).await;
    assert!(heard.is_none_or(|heard| heard.status != 200), "HTTP/1.1 alone is spoken there");
}
