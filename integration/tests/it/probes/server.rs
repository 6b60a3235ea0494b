//! A server that probes ask, which does as it is told and counts.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use berth_integration::node::POD_LIMIT;
use berth_integration::wait::{self, Look};
use jiff::Timestamp;

/// Between the end of what a client says and that of the connection: a client that resets it has done so by then, on a busy machine too.
const BETWEEN: Duration = Duration::from_millis(100);

/// What it does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Answers that all is well.
    #[default]
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
pub(crate) struct Server {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    mode: Mode,
    /// Paths of which only some requests are answered.
    gates: BTreeMap<String, Gate>,
    counts: BTreeMap<String, usize>,
    firsts: BTreeMap<String, First>,
    heads: BTreeMap<String, String>,
    /// Connections that are never answered.
    held: Vec<TcpStream>,
}

/// What becomes of requests for a path.
#[derive(Debug)]
struct Gate {
    mode: Mode,
    /// How many are answered; further ones wait.
    left: usize,
}

/// The first request for a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct First {
    /// When it came.
    pub(crate) at: Timestamp,
    /// How many for others had come by then.
    pub(crate) others: usize,
}

impl Server {
    pub(crate) fn http() -> Result<Self> {
        Self::start(http)
    }

    pub(crate) fn grpc() -> Result<Self> {
        Self::start(grpc)
    }

    fn start(serve: fn(TcpStream, &Shared) -> std::io::Result<()>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).context("listen")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let of_threads = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&of_threads);
                // A client that goes is no matter.
                thread::spawn(move || drop(serve(stream, &shared)));
            }
        });
        Ok(Self { port, shared })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// What it does from now on, whatever is asked for. What was not to be answered gets no answer.
    pub(crate) fn set(&self, mode: Mode) {
        let mut state = self.shared.lock();
        state.mode = mode;
        state.gates.clear();
        state.held.clear();
        self.shared.changed.notify_all();
    }

    /// Does this with so many requests for a path from now on, with one that waits first; further ones wait.
    pub(crate) fn answer(&self, path: &str, mode: Mode, requests: usize) {
        let mut state = self.shared.lock();
        state.gates.insert(path.to_owned(), Gate { mode, left: requests });
        self.shared.changed.notify_all();
    }

    /// How often a path was asked for.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.shared.lock().counts.get(path).copied().unwrap_or_default()
    }

    pub(crate) fn total(&self) -> usize {
        self.shared.lock().counts.values().sum()
    }

    pub(crate) fn first(&self, path: &str) -> Result<First> {
        let state = self.shared.lock();
        state.firsts.get(path).copied().with_context(|| format!("{path} was never asked for"))
    }

    /// How many of those who are never answered have closed their connection.
    pub(crate) fn left(&self) -> usize {
        let mut state = self.shared.lock();
        state.held.iter_mut().map(has_left).filter(|has_left| *has_left).count()
    }

    /// The head of the last request for a path.
    pub(crate) fn head(&self, path: &str) -> Result<String> {
        self.shared.lock().heads.get(path).cloned().with_context(|| format!("{path} was never asked for"))
    }

    /// Waits until a path was asked for so often.
    pub(crate) fn asked(&self, path: &str, times: usize) -> Result<()> {
        wait::until(&format!("{times} requests for {path}"), POD_LIMIT, || {
            let count = self.count(path);
            Ok(if count >= times { Look::Ready(()) } else { Look::NotYet(format!("{count} so far")) })
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request, and waits until something is to be done with it; what.
    fn count(&self, path: &str, head: String) -> Mode {
        let mut state = self.lock();
        let first = First { at: Timestamp::now(), others: state.counts.values().sum() };
        state.firsts.entry(path.to_owned()).or_insert(first);
        *state.counts.entry(path.to_owned()).or_default() += 1;
        state.heads.insert(path.to_owned(), head);
        let waits = |state: &mut State| state.gates.get(path).is_some_and(|gate| gate.left == 0);
        let mut state = self.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
        let mode = state.mode;
        state.gates.get_mut(path).map_or(mode, |gate| {
            gate.left -= 1;
            gate.mode
        })
    }
}

/// Whether the other end of a connection has closed it. It has said all that it says.
fn has_left(stream: &mut TcpStream) -> bool {
    let is_still_there = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
    stream.set_nonblocking(true).is_err() || !stream.read(&mut [0]).is_err_and(|error| is_still_there(&error))
}

fn http(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
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
    let answer = match shared.count(&path, head) {
        Mode::Silent => {
            shared.lock().held.push(stream);
            return Ok(());
        }
        Mode::Good => "200 OK",
        Mode::Bad => "503 Service Unavailable",
        Mode::Elsewhere => "302 Found\r\nLocation: http://elsewhere.example/",
    };
    write!(stream, "HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n")
}

/// One call of `grpc.health.v1.Health/Check`: just enough of HTTP/2 for its answer.
fn grpc(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
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
    let status = match shared.count("check", String::new()) {
        Mode::Silent => {
            shared.lock().held.push(stream);
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
