//! A containerd that only tells its version: one gRPC answer, written by hand over HTTP/2.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

const PREFACE: usize = 24;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Answers every call as `containerd.services.version.v1.Version/Version`.
pub(crate) struct FakeContainerd {
    socket: std::path::PathBuf,
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl FakeContainerd {
    pub(crate) fn start(socket: &Path, version: &str) -> Result<Self> {
        drop(fs::remove_file(socket));
        let listener = UnixListener::bind(socket).context("listen as containerd")?;
        let ended = Arc::new(AtomicBool::new(false));
        let (stop, version) = (Arc::clone(&ended), version.to_owned());
        let thread = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                // A client that hangs up is no concern here.
                drop(serve(stream, &version));
            }
        });
        Ok(Self { socket: socket.to_owned(), ended, thread })
    }

    pub(crate) fn stop(self) -> Result<()> {
        self.ended.store(true, Ordering::Release);
        drop(UnixStream::connect(&self.socket)?);
        self.thread.join().ok().context("the fake panicked")?;
        Ok(fs::remove_file(&self.socket)?)
    }
}

fn serve(mut stream: UnixStream, version: &str) -> io::Result<()> {
    stream.read_exact(&mut [0; PREFACE])?;
    frame(&mut stream, SETTINGS, 0, 0, &[])?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let [a, b, c, kind, flags, w, x, y, z] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload)?;
        let id = u32::from_be_bytes([w, x, y, z]);
        match kind {
            SETTINGS if flags & ACK == 0 => frame(&mut stream, SETTINGS, ACK, 0, &[])?,
            PING if flags & ACK == 0 => frame(&mut stream, PING, ACK, 0, &payload)?,
            HEADERS | DATA if flags & END_STREAM != 0 => answer(&mut stream, id, version)?,
            _ => {}
        }
    }
}

/// Head, message and trailers of the answer.
fn answer(stream: &mut UnixStream, id: u32, version: &str) -> io::Result<()> {
    // HPACK: `:status: 200` is entry 8 of the static table; the rest is literal, without indexing.
    let mut head = vec![0x88];
    literal(&mut head, "content-type", "application/grpc");
    frame(stream, HEADERS, END_HEADERS, id, &head)?;
    // VersionResponse { version = 1; revision = 2 }
    let mut message = vec![0x0a, u8::try_from(version.len()).unwrap_or_default()];
    message.extend(version.bytes());
    let mut data = vec![0];
    data.extend(u32::try_from(message.len()).unwrap_or_default().to_be_bytes());
    data.extend(message);
    frame(stream, DATA, 0, id, &data)?;
    let mut trailers = Vec::new();
    literal(&mut trailers, "grpc-status", "0");
    frame(stream, HEADERS, END_HEADERS | END_STREAM, id, &trailers)
}

fn literal(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        block.push(u8::try_from(text.len()).unwrap_or_default());
        block.extend(text.bytes());
    }
}

fn frame(stream: &mut UnixStream, kind: u8, flags: u8, id: u32, payload: &[u8]) -> io::Result<()> {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
    let mut whole = vec![a, b, c, kind, flags];
    whole.extend(id.to_be_bytes());
    whole.extend(payload);
    stream.write_all(&whole)
}
