//! Who does not take their answer, who goes before it, and many who come at once.

use std::time::Duration;

use berth_core::server::Places;
use futures::{future::join_all, poll};
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{
    super::{lanes::WHOLE, parts::OF_USER},
    client::{LONG, get, request, usual_http2},
    world::{Settings, World},
};

const SOON: Duration = Duration::from_millis(50);
/// How long an answer may not be taken: longer than a busy machine takes to give one that is.
const TAKEN: Duration = Duration::from_secs(5);
/// More than sockets hold.
const MANY: usize = 64 << 20;

/// Waits until the other side has closed a connection; says how much came before.
async fn rest(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> usize {
    let mut rest = Vec::new();
    // Closed or reset: it has ended.
    drop(timeout(LONG, stream.read_to_end(&mut rest)).await.expect("an end"));
    rest.len()
}

#[tokio::test]
async fn two_hundred_at_once_are_let_in_beside_a_flood() {
    // Both ends of all connections are here.
    crate::limits::raise_open_files().unwrap();
    let world = World::start(Settings::default()).await;
    let admin = world.authority.client("admin");
    let mut flood: Vec<TcpStream> = Vec::new();
    for _ in 0..Places::SERVER.not_admitted {
        flood.push(world.elsewhere().await);
    }
    let asked = join_all((0..200).map(|_| world.status(Some(&admin), "/pods")));
    let more = async {
        for _ in 0..50 {
            flood.push(world.elsewhere().await);
        }
    };
    let (statuses, ()) = tokio::join!(asked, more);
    assert_eq!(statuses, [200; 200]);
    assert_eq!(rest(&mut flood[0]).await, 0, "the flood has made room");
}

#[tokio::test]
async fn an_answer_that_nobody_takes_is_dropped_with_its_connection() {
    let mut settings = Settings::default();
    settings.times.taken = TAKEN;
    let world = World::start(settings).await;
    let admin = world.authority.client("admin");
    let path = format!("/pods?bytes={MANY}");
    let mut stream = world.connect(Some(&admin)).await;
    stream.write_all(&request("GET", &path, "")).await.unwrap();
    world.has_endless(1).await;
    world.has_endless(0).await;
    assert!(rest(&mut stream).await < MANY);
}

#[tokio::test]
async fn a_stream_whose_answer_nobody_takes_ends_alone() {
    let mut settings = Settings::default();
    settings.times.taken = TAKEN;
    let world = World::start(settings).await;
    let admin = world.authority.client("admin");
    let client = world.http2(Some(&admin), usual_http2().initial_connection_window_size(1 << 30)).await;
    let ask = async |query: &str| get(&client, &format!("/pods?{query}")).await;
    // One waits for its maker, and is owed nothing.
    let mut followed = ask("waits=1").await.into_body();
    assert_eq!(followed.frame().await.unwrap().unwrap().into_data().unwrap(), "first");
    for _ in 0..2 {
        let untaken = ask(&format!("bytes={MANY}")).await;
        world.has_endless(1).await;
        let told = untaken.into_body().collect().await.unwrap_err();
        let reason = std::error::Error::source(&told).and_then(|cause| cause.downcast_ref::<h2::Error>());
        assert_eq!(reason.and_then(h2::Error::reason), Some(h2::Reason::CANCEL), "{told:?}");
        let taken = ask("bytes=200000").await;
        assert_eq!(taken.into_body().collect().await.unwrap().to_bytes().len(), 200_000);
    }
    assert!(poll!(followed.frame()).is_pending());
}

/// All of it lies with the connection already, but for what the client's window leaves out.
#[tokio::test]
async fn an_end_of_an_answer_that_nobody_takes_ends_its_stream_alone() {
    let mut settings = Settings::default();
    settings.times.taken = TAKEN;
    let world = World::start(settings).await;
    let admin = world.authority.client("admin");
    let mut speaks = usual_http2();
    speaks.initial_stream_window_size(65_535).initial_connection_window_size(1 << 30);
    let client = world.http2(Some(&admin), &speaks).await;
    let ask = async |bytes: usize| get(&client, &format!("/pods?bytes={bytes}")).await.into_body();
    let untaken = ask(65_536).await;
    world.has_endless(0).await;
    untaken.collect().await.unwrap_err();
    for bytes in [0, 1, 65_535, 65_536, 65_537] {
        let taken = timeout(LONG, ask(bytes).await.collect()).await.unwrap();
        assert_eq!(taken.unwrap().to_bytes().len(), bytes);
    }
}

#[tokio::test]
async fn an_answer_that_is_taken_is_given_whole() {
    let world = World::start(Settings::default()).await;
    let admin = world.authority.client("admin");
    for bytes in [0, 1, 65_536, 65_537, 3 << 20] {
        let answer = world.ask(Some(&admin), "GET", &format!("/pods?bytes={bytes}"), "").await;
        assert_eq!((answer.status, answer.body.len()), (200, bytes));
        assert!(answer.head.contains(&format!("content-length: {bytes}\r\n")), "{}", answer.head);
        world.has_endless(0).await;
    }
}

/// Each is larger than what a client takes that reads nothing.
#[tokio::test]
async fn a_user_has_a_part_of_answers_that_are_kept_for_all_their_requests_together() {
    let world = World::start(Settings::default()).await;
    let admin = world.authority.client("admin");
    let client = world.http2(Some(&admin), usual_http2().initial_stream_window_size(64 << 10)).await;
    let ask = || get(&client, "/pods?whole=1048576");
    let mut held = Vec::new();
    for _ in 0..OF_USER {
        held.push(ask().await);
    }
    assert_eq!(world.whole.free(), WHOLE - OF_USER, "each is kept");
    let mut fifth = Box::pin(ask());
    assert!(poll!(fifth.as_mut()).is_pending());
    world.has_endless(1).await;
    assert_eq!(world.whole.free(), WHOLE - OF_USER, "it waits, and has no place of the others'");
    let mut elsewhere = Box::pin(world.status(Some(&admin), "/pods?whole=1"));
    let waits = async {
        while *world.endless.borrow() < 2 {
            assert!(poll!(elsewhere.as_mut()).is_pending());
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, waits).await.expect("another connection's request");
    assert_eq!(world.whole.free(), WHOLE - OF_USER, "another connection has no part of its own");
    let other = world.authority.client("old");
    assert_eq!(world.status(Some(&other), "/pods?whole=1").await, 200, "another user has another part");
    assert!(poll!(fifth.as_mut()).is_pending());
    held.clear();
    assert_eq!((fifth.await.status().as_u16(), elsewhere.await), (200, 200));
}

#[tokio::test]
async fn who_goes_takes_along_what_is_made_for_them() {
    let mut settings = Settings::default();
    settings.times.end = SOON;
    let world = World::start(settings).await;
    let admin = world.authority.client("admin");
    for ask in ["never=1", "waits=1"] {
        for (method, headers) in [
            ("GET", ""),
            ("POST", "Content-Length: 3\r\n\r\nabc"),
            // It asks for more before it has its answer.
            ("GET", "\r\nGET /pods HTTP/1.1\r\nHost: localhost\r\n"),
        ] {
            let path = if method == "POST" { "/run/ns/p/c" } else { "/pods" };
            let mut stream = world.connect(Some(&admin)).await;
            let asked = request(method, &format!("{path}?{ask}"), headers);
            stream.write_all(&asked).await.unwrap();
            stream.flush().await.unwrap();
            world.has_endless(1).await;
            drop(stream);
            world.has_endless(0).await;
        }
    }
}
