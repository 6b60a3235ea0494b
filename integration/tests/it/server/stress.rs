//! Very many streams, streams without an end, and clients that mean ill: the agent holds as much afterwards as before, and meanwhile pods
//! start as at any other time.

use std::io::Write as _;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::https::Stream;
use berth_integration::websocket::{STDOUT, WebSocket};
use serde_json::json;

use super::alone::Alone;
use super::is_of_kubelet;
use crate::kit::{FOR_EVER, eventually, measured, pod, shell, sleeper, spent};
use crate::soak::Held;
use crate::suite::same;

/// Commands at once.
const EXECS: usize = 200;
/// Attached and broken off.
const ATTACHES: usize = 1_000;
/// By so many at once.
const ATTACHERS: usize = 4;
/// Whose output nobody reads.
const UNREAD: usize = 16;
/// Connections that never finish what they begin, of each kind.
const SLOW: usize = 64;
/// Starts of pods, of which the median counts.
const STARTS: usize = 3;
/// What one stream whose client does not read may hold in the agent, KiB: what goes through it in pieces, and the buffers of TLS.
const STREAM_KIB: u64 = 1_024;
/// Pages that the allocator has not given back, KiB.
const SLACK_KIB: u64 = 4_096;
/// Of the stream of the soak, MiB.
const TEN_GIGABYTES: u64 = 10 * 1024;

pub(super) fn all() -> Result<()> {
    let alone = Alone::start()?;
    alone.run("target", &pod("target", json!({ "containers": [shell("main", FOR_EVER, json!({}))] })))?;
    let before = starts(&alone, "before")?;
    // What the first of each leaves is there for good.
    execs(&alone)?;
    attaches(&alone, ATTACHES / 10)?;
    let held = settled(&alone, None)?;

    let began = Instant::now();
    execs(&alone)?;
    spent(&format!("{EXECS} commands at once"), began);
    let began = Instant::now();
    attaches(&alone, ATTACHES)?;
    spent(&format!("{ATTACHES} attached and broken off"), began);
    settled(&alone, held)?;

    let unread = unread(&alone)?;
    let slow = slow(&alone)?;
    let meanwhile = starts(&alone, "meanwhile")?;
    same("others are answered", alone.client.get("/healthz")?.text().as_str(), "ok")?;
    if let Some(held) = held {
        let now = Held::by(&alone.node)?;
        let most = held.rss_kib + STREAM_KIB * u64::try_from(UNREAD)? + SLACK_KIB;
        ensure!(now.rss_kib <= most, "{now:?} with output that nobody reads, {held:?} before");
    }
    drop((unread, slow));
    settled(&alone, held)?;
    // The machine may be as busy with something else by now as it was then.
    let others = before.max(starts(&alone, "after")?);
    measured(&format!("a pod starts in {others:?}, and in {meanwhile:?} beside clients that mean ill"));
    ensure!(meanwhile <= others * 2 + Duration::from_secs(1), "a pod takes {meanwhile:?}, else {others:?}");
    alone.end()
}

/// What the agent holds when nothing is left of streams: no more than before, where that is known.
fn settled(alone: &Alone, before: Option<Held>) -> Result<Option<Held>> {
    // No command is left in the container either: there are its shell, what that waits for, and the shell that counts.
    let processes = || -> Result<String> {
        let path = alone.exec("target", &["sh", "-c", "set -- /proc/[0-9]*; echo $#"], "");
        let done = WebSocket::open(&alone.client, &path)?.finish()?;
        Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
    };
    eventually("commands to end with their clients", &"3".to_owned(), processes)?;
    if is_of_kubelet() {
        return Ok(None);
    }
    let Some(before) = before else { return Held::at_rest(&alone.node).map(Some) };
    eventually("descriptors and threads as before", &true, || {
        let now = Held::at_rest(&alone.node)?;
        Ok(now.descriptors <= before.descriptors && now.threads <= before.threads)
    })?;
    let now = Held::at_rest(&alone.node)?;
    ensure!(now.rss_kib <= before.rss_kib + SLACK_KIB, "{now:?}, before {before:?}");
    Ok(Some(now))
}

/// The median time from a manifest to a pod that is ready.
fn starts(alone: &Alone, name: &str) -> Result<Duration> {
    let mut all = Vec::new();
    for number in 0..STARTS {
        let name = format!("{name}-{number}");
        let began = Instant::now();
        alone.run(&name, &sleeper(&name))?;
        all.push(began.elapsed());
        alone.remove(&name)?;
    }
    all.sort();
    Ok(all[STARTS / 2])
}

/// Many commands at once, each with its own word.
fn execs(alone: &Alone) -> Result<()> {
    thread::scope(|scope| {
        let one = |number: usize| {
            scope.spawn(move || -> Result<()> {
                let word = format!("word-{number}");
                let done =
                    WebSocket::open(&alone.client, &alone.exec("target", &["echo", &word], ""))?.finish()?;
                same("output", String::from_utf8_lossy(&done.stdout).trim_end(), word.as_str())?;
                same("status", &done.status["status"], &json!("Success"))
            })
        };
        let all: Vec<_> = (0..EXECS).map(one).collect();
        all.into_iter().try_for_each(|one| one.join().ok().context("a command panicked")?)
    })
}

/// Attaches so often and breaks off at once.
fn attaches(alone: &Alone, count: usize) -> Result<()> {
    let path = format!("/attach/default/{}/main?output=1&error=1", alone.pod("target"));
    thread::scope(|scope| {
        let cycle = || {
            scope.spawn(|| -> Result<()> {
                (0..count / ATTACHERS).try_for_each(|_| WebSocket::open(&alone.client, &path).map(drop))
            })
        };
        let all: Vec<_> = (0..ATTACHERS).map(|_| cycle()).collect();
        all.into_iter().try_for_each(|one| one.join().ok().context("who attaches panicked")?)
    })
}

/// Commands that print for ever, of which nobody reads more than the beginning.
fn unread(alone: &Alone) -> Result<Vec<WebSocket>> {
    let one = |_| {
        let mut socket = WebSocket::open(&alone.client, &alone.exec("target", &["yes"], ""))?;
        let first = socket.receive()?.context("it ended")?;
        same("what is printed", first.0, STDOUT)?;
        Ok(socket)
    };
    (0..UNREAD).map(one).collect()
}

/// Connections that begin: TLS, the head of a request, and its body.
fn slow(alone: &Alone) -> Result<(Vec<TcpStream>, Vec<Stream>)> {
    let (mut plain, mut begun) = (Vec::new(), Vec::new());
    for _ in 0..SLOW {
        let mut stream = TcpStream::connect(alone.at)?;
        // The first bytes of a message that is longer.
        stream.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01])?;
        plain.push(stream);
        for half in
            ["GET /pods HT", "POST /run/default/a/b?cmd=c HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"]
        {
            let mut stream = alone.client.connect()?;
            stream.write_all(half.as_bytes())?;
            stream.flush()?;
            begun.push(stream);
        }
    }
    Ok((plain, begun))
}

/// Ten gigabytes through one command, for the soak: everything arrives, and the agent grows no more than by one stream.
pub(crate) fn ten_gigabytes() -> Result<()> {
    let alone = Alone::start()?;
    alone.run("target", &pod("target", json!({ "containers": [shell("main", FOR_EVER, json!({}))] })))?;
    let held = Held::at_rest(&alone.node)?;
    let count = format!("count={TEN_GIGABYTES}");
    let command = ["dd", "if=/dev/zero", "bs=1M", &count, "status=none"];
    let mut socket = WebSocket::open(&alone.client, &alone.exec("target", &command, ""))?;
    let (began, mut bytes, mut looked) = (Instant::now(), 0_u64, 0);
    while let Some((channel, piece)) = socket.receive()? {
        if channel != STDOUT {
            continue;
        }
        bytes += u64::try_from(piece.len())?;
        if bytes >> 30 > looked {
            looked = bytes >> 30;
            let now = Held::by(&alone.node)?;
            let most = held.rss_kib + STREAM_KIB + SLACK_KIB;
            ensure!(now.rss_kib <= most, "{now:?} after {looked} GiB, {held:?} before");
        }
    }
    same("MiB that arrived", bytes >> 20, TEN_GIGABYTES)?;
    spent("ten gigabytes", began);
    alone.end()
}
