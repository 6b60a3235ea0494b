//! The streams of a process in a container, on this terminal.

use std::{
    io::{self, Read},
    process::ExitCode,
    thread,
};

use serde::{Serialize, Serializer};
use tokio::{
    io::AsyncWrite,
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc::{self, Receiver},
};

use super::{
    ask::Failure,
    output::{TextOrJson, show},
    terminal,
};
use crate::control::{
    Client, ClientError,
    protocol::{ANSWER_MAX, Answer, Frame, FrameError, FrameKind, PIECE_MAX},
};

/// Pieces of input that wait to be sent; then the reader of the terminal waits too.
const INPUT_MAX: usize = 8;

/// Most that is kept of each stream for JSON.
pub(super) const KEPT_MAX: usize = 16 << 20;

/// Where the output of the process goes.
#[derive(Debug)]
pub(super) enum Output {
    /// To our own streams, as it comes.
    Passed,
    /// Into memory, until the process has ended.
    Kept(Kept),
}

impl Output {
    pub(super) fn new(shown: TextOrJson) -> Self {
        match shown {
            TextOrJson::Text => Self::Passed,
            TextOrJson::Json => Self::Kept(Kept::default()),
        }
    }

    fn stdout(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Passed => return show(&mut io::stdout().lock(), bytes),
            Self::Kept(kept) => kept.truncated |= keep(&mut kept.stdout, bytes),
        }
        Ok(())
    }

    fn stderr(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Passed => return show(&mut io::stderr().lock(), bytes),
            Self::Kept(kept) => kept.truncated |= keep(&mut kept.stderr, bytes),
        }
        Ok(())
    }
}

/// What a process wrote. As JSON, what is no UTF-8 of it is replaced.
#[derive(Debug, Default, Serialize)]
pub(super) struct Kept {
    #[serde(serialize_with = "as_text")]
    pub(super) stdout: Vec<u8>,
    #[serde(serialize_with = "as_text")]
    pub(super) stderr: Vec<u8>,
    /// More was written than is kept.
    pub(super) truncated: bool,
}

fn as_text<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(bytes))
}

/// Ours, of a process that has ended with this one.
pub(super) fn exit_code(code: u32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

/// Keeps what there is room for; whether something was left out.
fn keep(kept: &mut Vec<u8>, bytes: &[u8]) -> bool {
    let room = KEPT_MAX.saturating_sub(kept.len());
    kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    bytes.len() > room
}

/// Passes streams on until the agent has answered.
pub(super) async fn streams(
    mut client: Client,
    input: Option<Receiver<Vec<u8>>>,
    output: &mut Output,
    tty: bool,
) -> Result<Answer, Failure> {
    let (mut reader, mut writer) = client.stream.split();
    let mut resized = signal(SignalKind::window_change())?;
    let mut ended = [signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
    let [terminate, hangup] = &mut ended;
    let answer = async {
        loop {
            let frame = Frame::read(&mut reader, ANSWER_MAX).await.map_err(ClientError::from)?;
            let frame = frame.ok_or(ClientError::NoAnswer)?;
            match frame.kind {
                FrameKind::Stdout => output.stdout(&frame.payload)?,
                FrameKind::Stderr => output.stderr(&frame.payload)?,
                FrameKind::Message => return Ok(frame.parse::<Answer>().map_err(ClientError::from)?),
                FrameKind::Stdin | FrameKind::StdinEnd | FrameKind::Resize => {
                    return Err(ClientError::NoAnswer.into());
                }
            }
        }
    };
    tokio::select! {
        answer = answer => answer,
        error = send_input(&mut writer, input, &mut resized, tty) => Err(Failure::from(ClientError::from(error))),
        _ = terminate.recv() => Err(Failure::Failed("ended by SIGTERM".to_owned())),
        _ = hangup.recv() => Err(Failure::Failed("the terminal has gone".to_owned())),
    }
}

/// Sends input and sizes; returns only with an error, since the process ends the conversation.
async fn send_input(
    writer: &mut (impl AsyncWrite + Unpin),
    mut input: Option<Receiver<Vec<u8>>>,
    resized: &mut Signal,
    tty: bool,
) -> FrameError {
    if let Err(error) = send_size(writer, tty).await {
        return error;
    }
    loop {
        let sent = tokio::select! {
            piece = next(&mut input) => match piece {
                Some(payload) => Frame { kind: FrameKind::Stdin, payload }.write(writer).await,
                None => {
                    input = None;
                    Frame { kind: FrameKind::StdinEnd, payload: Vec::new() }.write(writer).await
                }
            },
            _ = resized.recv() => send_size(writer, tty).await,
        };
        match sent {
            Ok(()) => {}
            // The agent has answered and hung up: what it said is being read.
            Err(FrameError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                std::future::pending::<()>().await;
            }
            Err(error) => return error,
        }
    }
}

/// The next piece of input, `None` at its end; never when there is no input.
async fn next(input: &mut Option<Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    match input {
        Some(input) => input.recv().await,
        None => std::future::pending().await,
    }
}

async fn send_size(writer: &mut (impl AsyncWrite + Unpin), tty: bool) -> Result<(), FrameError> {
    let Some(size) = terminal::size().filter(|_| tty) else { return Ok(()) };
    let payload = serde_json::to_vec(&size)?;
    Frame { kind: FrameKind::Resize, payload }.write(writer).await
}

/// Reads standard input on a thread of its own, which ends with the process: a read of a terminal cannot be called off. Keys end it,
/// where there are any.
pub(super) fn read_input(mut keys: Option<LeavingKeys>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(INPUT_MAX);
    thread::spawn(move || {
        let mut buffer = vec![0; PIECE_MAX];
        while let Ok(count @ 1..) = io::stdin().lock().read(&mut buffer) {
            let (piece, is_last) = match &mut keys {
                Some(keys) => keys.read(&buffer[..count]),
                None => (buffer[..count].to_vec(), false),
            };
            if !piece.is_empty() && sender.blocking_send(piece).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

/// Ctrl-P and then Ctrl-Q, as docker has them.
#[derive(Debug, Default)]
pub(super) struct LeavingKeys {
    /// Ctrl-P was the last, and is held back.
    is_first_down: bool,
}

impl LeavingKeys {
    /// What is passed on of some input, and whether the keys were in it.
    fn read(&mut self, input: &[u8]) -> (Vec<u8>, bool) {
        const CTRL_P: u8 = 0x10;
        const CTRL_Q: u8 = 0x11;
        let mut passed = Vec::with_capacity(input.len() + 1);
        for &byte in input {
            let was_down = std::mem::replace(&mut self.is_first_down, byte == CTRL_P);
            match byte {
                CTRL_Q if was_down => return (passed, true),
                CTRL_P if was_down => passed.push(CTRL_P),
                CTRL_P => {}
                other => {
                    passed.extend(was_down.then_some(CTRL_P));
                    passed.push(other);
                }
            }
        }
        (passed, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_both_keys_one_after_the_other_leave() {
        for (pieces, passed, leaves) in [
            (&[&b"ls\n"[..]][..], &b"ls\n"[..], false),
            (&[b"a\x10\x11b"], b"a", true),
            (&[b"a\x10", b"\x11"], b"a", true),
            (&[b"a\x10", b"b\x11"], b"a\x10b\x11", false),
            (&[b"\x10\x10", b"\x11"], b"\x10", true),
            (&[b"\x11\x10"], b"\x11", false),
        ] {
            let mut keys = LeavingKeys::default();
            let mut all = Vec::new();
            let left = pieces.iter().any(|piece| {
                let (piece, is_last) = keys.read(piece);
                all.extend(piece);
                is_last
            });
            assert_eq!((all.as_slice(), left), (passed, leaves), "{pieces:?}");
        }
    }
}
