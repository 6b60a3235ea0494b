//! A server that probes ask, which does as it is told and counts.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use berth_integration::node::POD_LIMIT;
use berth_integration::wait::{self, Look};

/// Between the end of what a client says and that of the connection: a client that resets it has done so by then, on a busy machine too.
const BETWEEN: Duration = Duration::from_millis(100);

/// What it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Answers that all is well.
    Good,
    /// Answers that it is not.
    Bad,
    /// Sends its clients to another host.
    Elsewhere,
    /// Never answers.
    Silent,
}

/// The server. Its threads end with the test's process.
#[derive(Debug)]
pub(super) struct Server {
    port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    counts: BTreeMap<String, usize>,
    heads: BTreeMap<String, String>,
    /// Connections that are never answered.
    held: Vec<TcpStream>,
}

impl Server {
    pub(super) fn http() -> Result<Self> {
        Self::start(http)
    }

    pub(super) fn grpc() -> Result<Self> {
        Self::start(grpc)
    }

    fn start(serve: fn(TcpStream, &Mutex<State>) -> std::io::Result<()>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).context("listen")?;
        let port = listener.local_addr()?.port();
        let (counts, heads) = (BTreeMap::new(), BTreeMap::new());
        let state = Arc::new(Mutex::new(State { mode: Mode::Good, counts, heads, held: Vec::new() }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                // A client that goes is no matter.
                thread::spawn(move || drop(serve(stream, &shared)));
            }
        });
        Ok(Self { port, state })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// What it does from now on; how often it was asked until then. What waits for an answer gets none.
    pub(super) fn set(&self, mode: Mode) -> usize {
        let mut state = lock(&self.state);
        state.mode = mode;
        state.held.clear();
        state.counts.values().sum()
    }

    /// How often a path was asked for.
    pub(super) fn count(&self, path: &str) -> usize {
        lock(&self.state).counts.get(path).copied().unwrap_or_default()
    }

    pub(super) fn total(&self) -> usize {
        lock(&self.state).counts.values().sum()
    }

    /// The head of the last request for a path.
    pub(super) fn head(&self, path: &str) -> Result<String> {
        lock(&self.state).heads.get(path).cloned().with_context(|| format!("{path} was never asked for"))
    }

    /// Waits until a path was asked for so often.
    pub(super) fn asked(&self, path: &str, times: usize) -> Result<()> {
        wait::until(&format!("{times} requests for {path}"), POD_LIMIT, || {
            let count = self.count(path);
            Ok(if count >= times { Look::Ready(()) } else { Look::NotYet(format!("{count} so far")) })
        })
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a request; what to do with it.
fn count(state: &Mutex<State>, path: &str, head: String) -> Mode {
    let mut state = lock(state);
    *state.counts.entry(path.to_owned()).or_default() += 1;
    state.heads.insert(path.to_owned(), head);
    state.mode
}

fn http(mut stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte)? == 0 {
            thread::sleep(BETWEEN);
            return Ok(());
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let answer = match count(state, &path, head) {
        Mode::Silent => {
            lock(state).held.push(stream);
            return Ok(());
        }
        Mode::Good => "200 OK",
        Mode::Bad => "503 Service Unavailable",
        Mode::Elsewhere => "302 Found\r\nLocation: http://elsewhere.example/",
    };
    write!(stream, "HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n")
}

/// One call of `grpc.health.v1.Health/Check`: just enough of HTTP/2 for its answer.
fn grpc(mut stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    const PREFACE: usize = 24;
    const HEADERS: u8 = 1;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    let mut preface = [0; PREFACE];
    stream.read_exact(&mut preface)?;
    // SETTINGS, and that theirs are taken.
    stream.write_all(&frame(4, 0, 0, &[]))?;
    stream.write_all(&frame(4, 1, 0, &[]))?;
    let id = loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let [a, b, c, kind, _flags, id @ ..] = head;
        let len = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or_default();
        let mut payload = vec![0; len];
        stream.read_exact(&mut payload)?;
        if kind == HEADERS {
            break u32::from_be_bytes(id);
        }
    };
    let status = match count(state, "check", String::new()) {
        Mode::Silent => {
            lock(state).held.push(stream);
            return Ok(());
        }
        Mode::Good => 1,
        Mode::Bad | Mode::Elsewhere => 2,
    };
    // `:status: 200` of the static table, then names and values without compression.
    let mut head = vec![0x88];
    head.extend(field("content-type", "application/grpc"));
    stream.write_all(&frame(HEADERS, END_HEADERS, id, &head))?;
    stream.write_all(&frame(0, 0, id, &[0, 0, 0, 0, 2, 8, status]))?;
    stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, id, &field("grpc-status", "0")))?;
    // The client ends the connection.
    while stream.read(&mut [0; 64])? > 0 {}
    Ok(())
}

fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
    [&len[1..], &[kind, flags], &id.to_be_bytes(), payload].concat()
}

/// A header, literal and not indexed.
fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap_or_default()], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}
