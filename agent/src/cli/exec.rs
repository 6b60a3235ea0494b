//! `berth exec`: a process in a container, on this terminal.

use std::{
    io::{self, IsTerminal, Read},
    path::Path,
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
    ask::{ContainerName, Failure},
    output::{TextOrJson, put_json, show},
    terminal::{self, Raw},
};
use crate::control::{
    Client, ClientError,
    protocol::{ANSWER_MAX, Answer, ExecRequest, Frame, FrameError, FrameKind, PIECE_MAX, Request},
};

/// Pieces of input that wait to be sent; then the reader of the terminal waits too.
const INPUT_MAX: usize = 8;

/// Most that is kept of each stream for JSON.
const KEPT_MAX: usize = 16 << 20;

/// What to run where.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    pub(super) target: ContainerName,
    /// Pass standard input on
    #[arg(short = 'i', long)]
    pub(super) stdin: bool,
    /// Make a terminal
    #[arg(short, long)]
    pub(super) tty: bool,
    /// How to show it: json is one object with the exit code and what was written, when the process has ended
    #[arg(short, long, value_enum, default_value = "text")]
    pub(super) output: TextOrJson,
    /// Program and arguments
    #[arg(last = true, required = true)]
    pub(super) command: Vec<String>,
}

/// Runs the process; its exit code is ours.
pub(super) async fn run(socket: &Path, options: &Options) -> Result<ExitCode, Failure> {
    if options.tty && options.output == TextOrJson::Json {
        return Err(Failure::Usage("a terminal has no output as JSON: leave -t or -o json out".to_owned()));
    }
    let tty = options.tty && options.stdin && io::stdin().is_terminal();
    if options.tty && !tty {
        return Err(Failure::Usage(
            "a terminal needs -i and a terminal on standard input: leave -t out".to_owned(),
        ));
    }
    let object = options.target.pod.object(socket).await?;
    let mut client = Client::connect(socket).await?;
    let request = ExecRequest {
        namespace: object.pod.metadata.namespace.unwrap_or_default(),
        name: object.pod.metadata.name.unwrap_or_default(),
        container: options.target.container.clone(),
        command: options.command.clone(),
        tty,
        stdin: options.stdin,
    };
    client.send(Request::Exec(request)).await?;
    let raw = tty.then(Raw::enter).transpose()?;
    let mut output = Output::new(options.output);
    let input = options.stdin.then(read_input);
    let answer = streams(client, input, &mut output, tty).await;
    drop(raw);
    match answer? {
        Answer::Exited { code } => {
            if let Output::Kept(kept) = output {
                put_json(&ExecEnd { exit_code: code, kept })?;
            }
            Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
        }
        other => Err(other.into()),
    }
}

/// Where the output of the process goes.
#[derive(Debug)]
enum Output {
    /// To our own streams, as it comes.
    Passed,
    /// Into memory, until the process has ended.
    Kept(Kept),
}

impl Output {
    fn new(shown: TextOrJson) -> Self {
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
struct Kept {
    #[serde(serialize_with = "as_text")]
    stdout: Vec<u8>,
    #[serde(serialize_with = "as_text")]
    stderr: Vec<u8>,
    /// More was written than is kept.
    truncated: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExecEnd {
    exit_code: u32,
    #[serde(flatten)]
    kept: Kept,
}

fn as_text<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(bytes))
}

/// Keeps what there is room for; whether something was left out.
fn keep(kept: &mut Vec<u8>, bytes: &[u8]) -> bool {
    let room = KEPT_MAX.saturating_sub(kept.len());
    kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    bytes.len() > room
}

async fn streams(
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

/// Reads standard input on a thread of its own, which ends with the process: a read of a terminal cannot be called off.
fn read_input() -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(INPUT_MAX);
    thread::spawn(move || {
        let mut buffer = vec![0; PIECE_MAX];
        while let Ok(count) = io::stdin().lock().read(&mut buffer) {
            if count == 0 || sender.blocking_send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    /// What is made of an agent that sends these frames.
    async fn heard(frames: Vec<Frame>) -> Result<ExecEnd, Failure> {
        let (stream, mut agent) = UnixStream::pair().unwrap();
        let agent = async move {
            for frame in frames {
                frame.write(&mut agent).await.unwrap();
            }
        };
        let mut output = Output::new(TextOrJson::Json);
        let (answer, ()) = tokio::join!(streams(Client { stream }, None, &mut output, false), agent);
        match (answer?, output) {
            (Answer::Exited { code }, Output::Kept(kept)) => Ok(ExecEnd { exit_code: code, kept }),
            other => panic!("{other:?}"),
        }
    }

    fn frame(kind: FrameKind, payload: &[u8]) -> Frame {
        Frame { kind, payload: payload.to_vec() }
    }

    #[tokio::test]
    async fn what_a_process_wrote_is_one_object() {
        let exited = || Frame::message(&Answer::Exited { code: 3 }).unwrap();
        // A letter in two pieces stays one.
        let pieces = [
            (FrameKind::Stdout, &b"one \xc3"[..]),
            (FrameKind::Stderr, b"no\xff"),
            (FrameKind::Stdout, b"\xa9\n"),
        ];
        let frames = pieces.map(|(kind, bytes)| frame(kind, bytes)).into_iter().chain([exited()]).collect();
        let ended = serde_json::to_value(heard(frames).await.unwrap()).unwrap();
        let expected = serde_json::json!({
            "exitCode": 3, "stdout": "one \u{e9}\n", "stderr": "no\u{fffd}", "truncated": false,
        });
        assert_eq!(ended, expected);

        let much = KEPT_MAX / PIECE_MAX + 1;
        let frames =
            (0..much).map(|_| frame(FrameKind::Stdout, &[b'x'; PIECE_MAX])).chain([exited()]).collect();
        let ended = heard(frames).await.unwrap();
        assert_eq!((ended.kept.stdout.len(), ended.kept.truncated), (KEPT_MAX, true));

        let failure = heard(vec![frame(FrameKind::Stdout, b"x")]).await.unwrap_err();
        assert!(matches!(failure, Failure::Failed(_)), "{failure:?}");
    }
}
