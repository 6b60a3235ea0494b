//! Between a client and a process.

use std::convert::Infallible;

use berth_core::server::streaming::AtInputEnd;
use berth_proto::{
    client::{AttachReceiver, AttachSender},
    shim::{AttachInput, Resize, attach_input, attach_output},
};
use berth_stream::remote_command::{Options, Outcome, TerminalSize};
use hyper::body::Bytes;
use tokio::sync::mpsc::{Receiver, Sender};

use super::session::{Input, Output};
use crate::causes::with_causes;

/// A process of a pod, and what a client takes of it.
#[derive(Debug)]
pub(super) struct Process {
    /// To the shim.
    pub(super) sender: AttachSender,
    /// From the shim.
    pub(super) receiver: AttachReceiver,
    /// What the client sends and takes.
    pub(super) options: Options,
    /// Which process it is.
    pub(super) kind: Kind,
}

/// Which process of a container it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One that was begun for the client: it reads its input to the end, and tells how it ended.
    Own,
    /// The container's own, to which the client is attached.
    Attached(AtInputEnd),
}

/// Passes everything on until the process has ended or is left, and tells how.
pub(super) async fn run(process: Process, input: &mut Receiver<Input>, output: &Sender<Output>) -> Outcome {
    let Process { sender, receiver, options, kind } = process;
    tokio::select! {
        outcome = pass_outputs(receiver, options, output, kind) => outcome,
        () = pass_inputs(&sender, input, kind) => Outcome::Success,
    }
}

/// Ends only when the process is left.
async fn pass_inputs(sender: &AttachSender, input: &mut Receiver<Input>, kind: Kind) {
    if kind == Kind::Attached(AtInputEnd::Nothing) {
        return;
    }
    while let Some(said) = input.recv().await {
        let is_end = said == Input::StdinEnd;
        let what = match said {
            // Nobody reads it: no shim would take it, and what comes behind it would wait.
            Input::Stdin(_) | Input::StdinEnd if kind == Kind::Attached(AtInputEnd::Ignored) => continue,
            Input::Stdin(bytes) => attach_input::What::Stdin(bytes.into()),
            Input::StdinEnd if kind == Kind::Attached(AtInputEnd::Leaves) => return,
            Input::StdinEnd => attach_input::What::CloseStdin(true),
            // No terminal is as small. Source: containerd `internal/cri/server/streaming.go` `handleResizing`.
            Input::Resize(TerminalSize { width: 0, .. } | TerminalSize { height: 0, .. }) => continue,
            Input::Resize(TerminalSize { width, height }) => {
                attach_input::What::Resize(Resize { width: width.into(), height: height.into() })
            }
        };
        if sender.send(&AttachInput::from(what)).await.is_err() {
            // The process has ended, or its shim is lost: the receiver tells which.
            break;
        }
        if is_end && kind == Kind::Attached(AtInputEnd::ClosesAndLeaves) {
            return;
        }
    }
    let _never: Infallible = std::future::pending().await;
}

async fn pass_outputs(
    mut receiver: AttachReceiver,
    options: Options,
    output: &Sender<Output>,
    kind: Kind,
) -> Outcome {
    loop {
        let what = match receiver.recv().await {
            Ok(Some(message)) => message.what,
            Ok(None) => return failed(kind, "the shim ended the stream without an exit code"),
            Err(error) => return failed(kind, &with_causes(&error)),
        };
        let piece = match what {
            Some(attach_output::What::Stdout(bytes)) if options.stdout => Output::Stdout(Bytes::from(bytes)),
            Some(attach_output::What::Stderr(bytes)) if options.stderr => Output::Stderr(Bytes::from(bytes)),
            Some(attach_output::What::Stdout(_) | attach_output::What::Stderr(_)) | None => continue,
            Some(attach_output::What::ExitCode(code)) => return ended(kind, code),
        };
        if output.send(piece).await.is_err() {
            // The client has gone, and with it everybody who is told.
            return Outcome::Success;
        }
    }
}

/// How a container has ended to which a client is attached is told by its status, not by the session.
fn ended(kind: Kind, code: u32) -> Outcome {
    match (kind, code) {
        (Kind::Attached(_), _) | (Kind::Own, 0) => Outcome::Success,
        (Kind::Own, code) => Outcome::ExitCode(i32::try_from(code).unwrap_or(i32::MAX)),
    }
}

/// Why there is no process, or no more of it, in upstream's words. Source: `ServeExec` and `ServeAttach` of
/// `k8s.io/cri-streaming`, `execInContainer` of containerd.
pub(super) fn failed(kind: Kind, why: &str) -> Outcome {
    Outcome::Failure(match kind {
        Kind::Own => {
            format!(
                "error executing command in container: failed to exec in container: failed to start exec: {why}"
            )
        }
        Kind::Attached(_) => format!("error attaching to container: {why}"),
    })
}
