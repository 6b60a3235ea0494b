//! A process in a container: the client's streams on one side, the shim's on the other.

use berth_core::{
    id::{ContainerId, ContainerName, PodName, SandboxId},
    spec::{Stdin, Stdio},
    status::{ContainerState, ContainerStatus},
};
use berth_proto::{
    client::{AttachReceiver, AttachSender},
    shim::{AttachInput, AttachStart, Resize, attach_input, attach_output},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};

use super::{
    protocol::{Answer, AttachRequest, ExecRequest, Frame, FrameError, FrameKind, PIECE_MAX, Size},
    server::Service,
};
use crate::{
    causes::with_causes,
    runtime::{Exec, Specs},
    view::PodView,
};

/// Runs the process and passes its streams on until it ends. The answer is its exit code, or why there is none. A client
/// that goes takes both halves of the process's streams along, which ends it.
pub(super) async fn run<R: Specs>(
    stream: &mut UnixStream,
    service: &Service<R>,
    request: &ExecRequest,
) -> Result<Answer, FrameError> {
    let found = find(service, &request.namespace, &request.name, request.container.as_deref());
    let (_, sandbox, container) = match found {
        Ok(found) => found,
        Err(answer) => return Ok(answer),
    };
    let exec =
        Exec { sandbox, container, command: request.command.clone(), stdin: request.stdin, tty: request.tty };
    match exec.start(&service.shims, &service.runtime).await {
        Ok(streams) => pass(stream, streams, AtInputEnd::Closes).await,
        Err(error) => Ok(Answer::Failed { message: format!("failed to {}", with_causes(&error)) }),
    }
}

/// Passes the streams of a container's own process on, until it ends or is left. The answer is its exit code.
pub(super) async fn attach<R: Specs>(
    stream: &mut UnixStream,
    service: &Service<R>,
    request: &AttachRequest,
) -> Result<Answer, FrameError> {
    let found = find(service, &request.namespace, &request.name, request.container.as_deref());
    let (stdio, sandbox, container) = match found {
        Ok(found) => found,
        Err(answer) => return Ok(answer),
    };
    let start = AttachStart {
        container_id: container.to_string(),
        stdin: request.stdin && stdio.stdin != Stdin::Closed,
        stdout: true,
        stderr: !stdio.tty,
    };
    let at_end =
        if stdio.stdin == Stdin::Once && !stdio.tty { AtInputEnd::Closes } else { AtInputEnd::Leaves };
    match service.shims.attach(&sandbox, start).await {
        Ok(streams) => pass(stream, streams, at_end).await,
        Err(error) => Ok(failed("attach to the container", &with_causes(&error))),
    }
}

/// What the end of the client's input means for the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtInputEnd {
    Closes,
    Leaves,
}

async fn pass(
    stream: &mut UnixStream,
    (sender, receiver): (AttachSender, AttachReceiver),
    at_end: AtInputEnd,
) -> Result<Answer, FrameError> {
    let (mut reader, mut writer) = stream.split();
    tokio::select! {
        answer = output(receiver, &mut writer) => answer,
        left = input(&mut reader, sender, at_end) => left.map(|()| Answer::Left),
    }
}

/// The container that is meant, when it runs: its streams, and where it is.
fn find<R>(
    service: &Service<R>,
    namespace: &str,
    name: &str,
    container: Option<&str>,
) -> Result<(Stdio, SandboxId, ContainerId), Answer> {
    let name = PodName { namespace: namespace.to_owned(), name: name.to_owned() };
    let not_found = |message: String| Answer::NotFound { message };
    let view =
        service.view.pod(&name).ok_or_else(|| not_found(format!("pod `{name}` is not on this node")))?;
    let (container, id) = running(&view, container).map_err(not_found)?;
    let sandbox = view.sandbox.ok_or_else(|| not_found(format!("pod `{name}` has no sandbox")))?;
    let own = view.pod.all_containers().find(|own| own.name == container);
    let stdio = own.map_or(Stdio { stdin: Stdin::Closed, tty: false }, |own| own.stdio);
    Ok((stdio, sandbox, id))
}

/// Name and id of the container that is meant, when it runs.
fn running(view: &PodView, container: Option<&str>) -> Result<(ContainerName, ContainerId), String> {
    let status = &view.status;
    let first = view.pod.containers.first().map(|container| container.name.as_str());
    let wanted = container.or(first).unwrap_or_default();
    let Some(found) = status.all_containers().find(|status| status.name.as_str() == wanted) else {
        let names: Vec<_> = view.pod.all_containers().map(|container| container.name.as_str()).collect();
        return Err(format!(
            "pod `{}` has no container `{wanted}`, only {}",
            view.pod.name,
            names.join(", ")
        ));
    };
    match (&found.state, &found.id) {
        (ContainerState::Running { .. }, Some(id)) => Ok((found.name.clone(), id.clone())),
        _ => Err(format!(
            "container `{wanted}` of pod `{}` is not running: it is {}",
            view.pod.name,
            word(found)
        )),
    }
}

fn word(status: &ContainerStatus) -> String {
    match &status.state {
        ContainerState::Waiting { reason, .. } => format!("waiting ({reason})"),
        ContainerState::Running { .. } => "running".to_owned(),
        ContainerState::Terminated(ended) => format!("terminated ({})", ended.reason),
    }
}

fn failed(tried: &str, why: &str) -> Answer {
    Answer::Failed { message: format!("failed to {tried}: {why}") }
}

async fn output(
    mut receiver: AttachReceiver,
    writer: &mut (impl AsyncWrite + Unpin),
) -> Result<Answer, FrameError> {
    loop {
        let message = match receiver.recv().await {
            Ok(Some(message)) => message,
            Ok(None) => {
                return Ok(failed("follow the process", "the shim ended the stream without an exit code"));
            }
            Err(error) => return Ok(failed("follow the process", &with_causes(&error))),
        };
        let (kind, bytes) = match message.what {
            Some(attach_output::What::Stdout(bytes)) => (FrameKind::Stdout, bytes),
            Some(attach_output::What::Stderr(bytes)) => (FrameKind::Stderr, bytes),
            Some(attach_output::What::ExitCode(code)) => return Ok(Answer::Exited { code }),
            None => continue,
        };
        for piece in bytes.chunks(PIECE_MAX) {
            Frame { kind, payload: piece.to_vec() }.write(writer).await?;
        }
    }
}

/// Passes input on. Returns when the process is left; it is an error when the client is gone or breaks the protocol.
async fn input(
    reader: &mut (impl AsyncRead + Unpin),
    sender: AttachSender,
    at_end: AtInputEnd,
) -> Result<(), FrameError> {
    loop {
        let gone = || FrameError::Io(std::io::ErrorKind::BrokenPipe.into());
        let frame = Frame::read(reader, PIECE_MAX).await?.ok_or_else(gone)?;
        let what = match frame.kind {
            FrameKind::Stdin => attach_input::What::Stdin(frame.payload),
            FrameKind::StdinEnd if at_end == AtInputEnd::Leaves => return Ok(()),
            FrameKind::StdinEnd => attach_input::What::CloseStdin(true),
            FrameKind::Resize => {
                let Size { width, height } = frame.parse()?;
                attach_input::What::Resize(Resize { width: width.into(), height: height.into() })
            }
            FrameKind::Message | FrameKind::Stdout | FrameKind::Stderr => return Err(gone()),
        };
        if sender.send(&AttachInput::from(what)).await.is_err() {
            // The process has ended; its exit code is on its way to the other direction.
            std::future::pending::<()>().await;
        }
    }
}
