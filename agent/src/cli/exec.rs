//! `berth exec`: a process in a container, on this terminal.

use std::{
    io::{self, IsTerminal},
    path::Path,
    process::ExitCode,
};

use serde::Serialize;

use super::{
    ask::{ContainerName, Failure},
    output::{TextOrJson, put_json},
    streams::{Kept, Output, exit_code, read_input, streams},
    terminal::Raw,
};
use crate::control::{
    Client,
    protocol::{Answer, ExecRequest, Request},
};

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
    let input = options.stdin.then(|| read_input(None));
    let answer = streams(client, input, &mut output, tty).await;
    drop(raw);
    match answer? {
        Answer::Exited { code } => {
            if let Output::Kept(kept) = output {
                put_json(&ExecEnd { exit_code: code, kept })?;
            }
            Ok(exit_code(code))
        }
        other => Err(other.into()),
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExecEnd {
    exit_code: u32,
    #[serde(flatten)]
    kept: Kept,
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;
    use crate::{
        cli::streams::KEPT_MAX,
        control::protocol::{Frame, FrameKind, PIECE_MAX},
    };

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
