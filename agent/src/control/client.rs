//! The command line's end.

use std::{
    io,
    path::{Path, PathBuf},
};

use tokio::net::UnixStream;

use super::protocol::{ANSWER_MAX, Answer, Envelope, Frame, FrameError, FrameKind, Request, VERSION};

/// A connection on which one request was or will be made.
#[derive(Debug)]
pub struct Client {
    /// The connection, for streams.
    pub stream: UnixStream,
}

/// Why the agent did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("reach the agent at {path}: it is not running; start it with `berth run`, or name its socket with --socket", path = .0.display())]
    NotRunning(PathBuf),
    /// Only root may.
    #[error("reach the agent at {path}: only root may; try `sudo`", path = .0.display())]
    Forbidden(PathBuf),
    /// Another failure to connect.
    #[error("reach the agent at {path}", path = .path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The connection broke.
    #[error("talk to the agent")]
    Talk(#[from] FrameError),
    /// The connection ended without an answer.
    #[error("hear from the agent: it ended the connection; it may be stopping, try again")]
    NoAnswer,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// When the agent does not run, or may not be asked.
    pub async fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path).await.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ClientError::NotRunning(path.to_owned())
            }
            io::ErrorKind::PermissionDenied => ClientError::Forbidden(path.to_owned()),
            _ => ClientError::Connect { path: path.to_owned(), source },
        })?;
        Ok(Self { stream })
    }

    /// Asks for something that has one answer.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn ask(mut self, request: Request) -> Result<Answer, ClientError> {
        self.send(request).await?;
        let frame = Frame::read(&mut self.stream, ANSWER_MAX).await?.ok_or(ClientError::NoAnswer)?;
        if frame.kind != FrameKind::Message {
            return Err(ClientError::NoAnswer);
        }
        Ok(frame.parse()?)
    }

    /// Sends a request whose answer is read from [`Self::stream`].
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn send(&mut self, request: Request) -> Result<(), ClientError> {
        Ok(Frame::message(&Envelope { version: VERSION, request })?.write(&mut self.stream).await?)
    }
}
