//! Frames on the control socket.
//!
//! ```text
//!   length u32 big-endian │ kind u8 │ payload (length bytes)
//! ```
//!
//! A client sends one [`Frame`] of kind [`FrameKind::Message`] with an [`Envelope`]; the answer is one message. `exec` and `attach` go
//! on: standard input, its end and sizes of the terminal one way, standard output and error the other, until the
//! message with the exit code. After the answer to `portForward` the connection has no frames any more, but the bytes of the port.
//! A frame beyond its bound, of an unknown kind or at the wrong time ends the connection.

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Version of this protocol. Both ends come from one build, so another version is refused rather than translated.
pub const VERSION: u32 = 1;

/// Largest request, and largest piece of a stream.
pub const PIECE_MAX: usize = 64 << 10;

/// Largest answer: hundreds of pods with everything known about them.
pub const ANSWER_MAX: usize = 64 << 20;

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// JSON: an [`Envelope`] or an [`Answer`].
    Message,
    /// Bytes for standard input.
    Stdin,
    /// Standard input ends here.
    StdinEnd,
    /// JSON: a [`Size`].
    Resize,
    /// Bytes of standard output.
    Stdout,
    /// Bytes of standard error.
    Stderr,
}

const KINDS: [FrameKind; 6] = [
    FrameKind::Message,
    FrameKind::Stdin,
    FrameKind::StdinEnd,
    FrameKind::Resize,
    FrameKind::Stdout,
    FrameKind::Stderr,
];

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What it carries.
    pub kind: FrameKind,
    /// The bytes.
    pub payload: Vec<u8>,
}

/// A request with the version of its protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// [`VERSION`].
    pub version: u32,
    /// What is asked for.
    pub request: Request,
}

/// What can be asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "camelCase")]
pub enum Request {
    /// Every pod, and manifests that cannot be used.
    Pods,
    /// One pod, with everything that is known about it.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A process in a container, with its streams on this connection.
    Exec(ExecRequest),
    /// The streams of a container's own process, on this connection.
    Attach(AttachRequest),
    /// A connection to a port of a pod, which becomes this one.
    PortForward {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// The port.
        port: u16,
    },
}

/// A container to attach to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachRequest {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Container; the first when absent.
    pub container: Option<String>,
    /// Whether standard input follows.
    pub stdin: bool,
}

/// A process to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecRequest {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Container; the first when absent.
    pub container: Option<String>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Whether a terminal is made.
    pub tty: bool,
    /// Whether standard input follows.
    pub stdin: bool,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "camelCase")]
pub enum Answer {
    /// To `pods`.
    Pods(Box<super::Overview>),
    /// To `pod`.
    Pod(Box<super::PodObject>),
    /// The port is reached: what follows is its bytes.
    Forwarded,
    /// The container was left: the client's input has ended, and that of the container goes on.
    Left,
    /// The process of `exec`, or that of an attached container, has ended.
    Exited {
        /// Its exit code; 128 + signal after a signal.
        code: u32,
    },
    /// There is no such pod or container, or it does not run.
    NotFound {
        /// What is not there, and what is.
        message: String,
    },
    /// It could not be done.
    Failed {
        /// What was tried and why it failed.
        message: String,
    },
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// Why a frame could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection failed, or ended within a frame.
    #[error("use the connection")]
    Io(#[from] io::Error),
    /// The other end announces more than is taken.
    #[error("take a frame of {0} bytes: more than {1}")]
    TooLarge(usize, usize),
    /// The kind is none of this version.
    #[error("take a frame of kind {0}: there is no such kind")]
    UnknownKind(u8),
    /// The content is not what it should be.
    #[error("read a message")]
    Malformed(#[from] serde_json::Error),
}

impl Frame {
    /// A message.
    ///
    /// # Errors
    /// Values that JSON has no form for.
    pub fn message<T: Serialize>(value: &T) -> Result<Self, FrameError> {
        Ok(Self { kind: FrameKind::Message, payload: serde_json::to_vec(value)? })
    }

    /// Reads one frame of at most `most` bytes; `None` at the end of the connection. Not cancel-safe: a reader that was
    /// dropped within a frame has lost its place.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub async fn read(
        reader: &mut (impl AsyncRead + Unpin),
        most: usize,
    ) -> Result<Option<Self>, FrameError> {
        let mut header = [0; 5];
        if reader.read(&mut header[..1]).await? == 0 {
            return Ok(None);
        }
        reader.read_exact(&mut header[1..]).await?;
        let [a, b, c, d, kind] = header;
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if length > most {
            return Err(FrameError::TooLarge(length, most));
        }
        let kind = *KINDS.get(usize::from(kind)).ok_or(FrameError::UnknownKind(kind))?;
        // Grows with what arrives, not with what is announced.
        let mut payload = Vec::new();
        let read = reader.take(length as u64).read_to_end(&mut payload).await?;
        if read < length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(Some(Self { kind, payload }))
    }

    /// Writes the frame.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub async fn write(&self, writer: &mut (impl AsyncWrite + Unpin)) -> Result<(), FrameError> {
        let too_large = FrameError::TooLarge(self.payload.len(), ANSWER_MAX);
        let length = u32::try_from(self.payload.len()).ok().filter(|_| self.payload.len() <= ANSWER_MAX);
        let kind =
            KINDS.iter().position(|kind| *kind == self.kind).and_then(|index| u8::try_from(index).ok());
        let (Some(length), Some(kind)) = (length, kind) else { return Err(too_large) };
        let mut bytes = Vec::with_capacity(5 + self.payload.len());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.push(kind);
        bytes.extend_from_slice(&self.payload);
        writer.write_all(&bytes).await?;
        Ok(writer.flush().await?)
    }

    /// The content of a message.
    ///
    /// # Errors
    /// When it is another.
    pub fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, FrameError> {
        Ok(serde_json::from_slice(&self.payload)?)
    }
}
