//! `berth exec`: a process in a container, on this terminal.

use std::{
    io::{self, IsTerminal, Read, Write},
    path::Path,
    process::ExitCode,
    thread,
};

use tokio::{
    io::AsyncWrite,
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc::{self, Receiver},
};

use super::{
    ask::{self, Failure},
    terminal::{self, Raw},
};
use crate::control::{
    Client, ClientError,
    protocol::{ANSWER_MAX, Answer, ExecRequest, Frame, FrameError, Kind, PIECE_MAX, Request},
};

/// Pieces of input that wait to be sent; then the reader of the terminal waits too.
const INPUT_MAX: usize = 8;

/// What to run where.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub(super) struct Options {
    /// Name of the pod, or namespace/name
    pub(super) pod: String,
    /// Namespace of the pod
    #[arg(short, long, default_value = "default")]
    pub(super) namespace: String,
    /// Container; the first when not given
    #[arg(short, long)]
    pub(super) container: Option<String>,
    /// Pass standard input on
    #[arg(short = 'i', long)]
    pub(super) stdin: bool,
    /// Make a terminal
    #[arg(short, long)]
    pub(super) tty: bool,
    /// Program and arguments
    #[arg(last = true, required = true)]
    pub(super) command: Vec<String>,
}

/// Runs the process; its exit code is ours.
pub(super) async fn run(socket: &Path, options: &Options) -> Result<ExitCode, Failure> {
    let tty = options.tty && options.stdin && io::stdin().is_terminal();
    if options.tty && !tty {
        return Err(Failure::Usage(
            "a terminal needs -i and a terminal on standard input: leave -t out".to_owned(),
        ));
    }
    let object = ask::pod(socket, &options.namespace, &options.pod).await?;
    let mut client = Client::connect(socket).await?;
    let request = ExecRequest {
        namespace: object.pod.metadata.namespace.unwrap_or_default(),
        name: object.pod.metadata.name.unwrap_or_default(),
        container: options.container.clone(),
        command: options.command.clone(),
        tty,
        stdin: options.stdin,
    };
    client.send(Request::Exec(request)).await?;
    let raw = tty.then(Raw::enter).transpose()?;
    let answer = streams(client, options, tty).await;
    drop(raw);
    match answer? {
        Answer::Exited { code } => Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))),
        other => Err(other.into()),
    }
}

async fn streams(mut client: Client, options: &Options, tty: bool) -> Result<Answer, Failure> {
    let (mut reader, mut writer) = client.stream.split();
    let mut resized = signal(SignalKind::window_change())?;
    let mut ended = [signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
    let input = options.stdin.then(read_input);
    let [terminate, hangup] = &mut ended;
    let output = async {
        loop {
            let frame = Frame::read(&mut reader, ANSWER_MAX).await.map_err(ClientError::from)?;
            let frame = frame.ok_or(ClientError::NoAnswer)?;
            match frame.kind {
                Kind::Stdout => show(&mut io::stdout().lock(), &frame.payload)?,
                Kind::Stderr => show(&mut io::stderr().lock(), &frame.payload)?,
                Kind::Message => return Ok(frame.parse::<Answer>().map_err(ClientError::from)?),
                Kind::Stdin | Kind::StdinEnd | Kind::Resize => return Err(ClientError::NoAnswer.into()),
            }
        }
    };
    tokio::select! {
        answer = output => answer,
        error = send_input(&mut writer, input, &mut resized, tty) => Err(Failure::from(ClientError::from(error))),
        _ = terminate.recv() => Err(Failure::Failed("ended by SIGTERM".to_owned())),
        _ = hangup.recv() => Err(Failure::Failed("the terminal has gone".to_owned())),
    }
}

fn show(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.flush()
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
                Some(payload) => Frame { kind: Kind::Stdin, payload }.write(writer).await,
                None => {
                    input = None;
                    Frame { kind: Kind::StdinEnd, payload: Vec::new() }.write(writer).await
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
    Frame { kind: Kind::Resize, payload }.write(writer).await
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
