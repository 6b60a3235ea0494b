//! Just enough of a WebSocket client (RFC 6455) to run a command in a container: binary messages whose first byte is a channel
//! (`v5.channel.k8s.io`).

use std::io::{Read as _, Write as _};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::https::{Client, Stream};

/// The protocol of channels.
pub const PROTOCOL: &str = "v5.channel.k8s.io";
/// What goes to the command's input.
pub const STDIN: u8 = 0;
/// What comes from its output.
pub const STDOUT: u8 = 1;
/// What comes from its other output.
pub const STDERR: u8 = 2;
/// How it has ended: a `Status` of Kubernetes.
pub const STATUS: u8 = 3;
/// The other side sends no more on the channel that follows.
pub const CLOSE: u8 = 255;

const FINAL: u8 = 0x80;
const MASKED: u8 = 0x80;
const CONTINUATION: u8 = 0x0;
const BINARY: u8 = 0x2;
const CLOSING: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;
/// Lengths from which two, and eight, bytes tell the length.
const SHORT: u8 = 126;
const LONG: u8 = 127;
/// A key that is the same for everybody: what it protects from are proxies, of which there are none.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
/// What a server makes of it (RFC 6455, section 1.3).
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// Longest message that is taken.
const MESSAGE_MAX: u64 = 64 << 20;

/// A connection of channels.
#[derive(Debug)]
pub struct WebSocket {
    stream: Stream,
}

impl WebSocket {
    /// Opens one.
    ///
    /// # Errors
    /// It is refused; the failure has the answer's code.
    pub fn open(client: &Client, path: &str) -> Result<Self> {
        let headers = [
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", KEY),
            ("Sec-WebSocket-Protocol", PROTOCOL),
        ];
        let (answer, stream) = client.upgrade("GET", path, &headers)?;
        ensure!(answer.status == 101, "GET {path}: {}", answer.status);
        let says = |name| answer.header(name).unwrap_or_default().to_owned();
        ensure!(says("Sec-WebSocket-Accept") == ACCEPT, "accepted as {:?}", says("Sec-WebSocket-Accept"));
        let protocol = says("Sec-WebSocket-Protocol");
        ensure!(protocol == PROTOCOL, "the protocol is {protocol:?}");
        Ok(Self { stream })
    }

    /// Sends bytes on a channel.
    ///
    /// # Errors
    /// The connection is broken, or the other side takes nothing for long.
    pub fn send(&mut self, channel: u8, bytes: &[u8]) -> Result<()> {
        let message = [&[channel], bytes].concat();
        self.write(BINARY, &message)
    }

    /// Says that nothing more comes on a channel.
    ///
    /// # Errors
    /// As of [`Self::send`].
    pub fn close(&mut self, channel: u8) -> Result<()> {
        self.write(BINARY, &[CLOSE, channel])
    }

    /// The next message: its channel, and its bytes; nothing when the other side has ended the connection.
    ///
    /// # Errors
    /// The connection is broken, or nothing comes for long.
    pub fn receive(&mut self) -> Result<Option<(u8, Vec<u8>)>> {
        let mut message = Vec::new();
        loop {
            let (first, piece) = self.read()?;
            match first & !FINAL {
                CONTINUATION | BINARY => message.extend(piece),
                PING => {
                    self.write(PONG, &piece)?;
                    continue;
                }
                PONG => continue,
                CLOSING => return Ok(None),
                other => bail!("a frame of kind {other}"),
            }
            if first & FINAL != 0 {
                ensure!(!message.is_empty(), "a message without a channel");
                let bytes = message.split_off(1);
                return Ok(Some((message[0], bytes)));
            }
        }
    }

    /// Everything until the end: output, the other output, and how the command has ended.
    ///
    /// # Errors
    /// The connection breaks before it is told how.
    pub fn finish(mut self) -> Result<Done> {
        let mut done = Done::default();
        let mut status = None;
        while let Some((channel, bytes)) = self.receive()? {
            match channel {
                STDOUT => done.stdout.extend(bytes),
                STDERR => done.stderr.extend(bytes),
                STATUS => status = Some(serde_json::from_slice(&bytes).context("the status is no JSON")?),
                CLOSE => {}
                other => bail!("{} bytes on channel {other}", bytes.len()),
            }
        }
        done.status = status.context("the connection ended without a status")?;
        Ok(done)
    }

    fn write(&mut self, kind: u8, message: &[u8]) -> Result<()> {
        let mut frame = vec![FINAL | kind];
        match (u8::try_from(message.len()), u16::try_from(message.len())) {
            (Ok(length), _) if length < SHORT => frame.push(MASKED | length),
            (_, Ok(length)) => {
                frame.push(MASKED | SHORT);
                frame.extend(length.to_be_bytes());
            }
            _ => {
                frame.push(MASKED | LONG);
                frame.extend(u64::try_from(message.len())?.to_be_bytes());
            }
        }
        // A mask of zeros changes nothing.
        frame.extend([0; 4]);
        frame.extend(message);
        self.stream.write_all(&frame).context("write to a WebSocket")
    }

    /// A frame: its first byte, and what it has.
    fn read(&mut self) -> Result<(u8, Vec<u8>)> {
        let [first, length] = self.bytes()?;
        let length = match length {
            SHORT => u64::from(u16::from_be_bytes(self.bytes()?)),
            LONG => u64::from_be_bytes(self.bytes()?),
            length => u64::from(length),
        };
        ensure!(length <= MESSAGE_MAX, "a frame of {length} bytes");
        let mut piece = vec![0; usize::try_from(length)?];
        self.stream.read_exact(&mut piece).context("read from a WebSocket")?;
        Ok((first, piece))
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).context("read from a WebSocket")?;
        Ok(bytes)
    }
}

/// What a command has printed, and how it has ended.
#[derive(Debug, Default)]
pub struct Done {
    /// Its output.
    pub stdout: Vec<u8>,
    /// Its other output.
    pub stderr: Vec<u8>,
    /// `Status` of Kubernetes.
    pub status: Value,
}
