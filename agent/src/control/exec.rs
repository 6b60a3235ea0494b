//! A process in a container: the client's streams on one side, the shim's on the other.

use std::time::Duration;

use berth_core::{
    id::{ContainerId, PodName},
    oci::{ConfigError, ExecTerminal, exec_process},
    status::{ContainerState, ContainerStatus},
};
use berth_proto::{
    EXEC_BY_COMMAND,
    client::{AttachReceiver, AttachSender},
    shim::{AttachInput, ExecStart, Resize, attach_input, attach_output},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
    time::timeout,
};

use super::{
    protocol::{Answer, ExecRequest, Frame, FrameError, FrameKind, PIECE_MAX, Size},
    server::{Runtime, Service},
};
use crate::{causes::with_causes, view::PodView};

/// How long containerd may take to tell the spec of a container: who asks holds a place of the socket.
const SPEC_WITHIN: Duration = Duration::from_secs(10);

/// Runs the process and passes its streams on until it ends. The answer is its exit code, or why there is none. A client
/// that goes takes both halves of the process's streams along, which ends it.
pub(super) async fn run<R: Runtime>(
    stream: &mut UnixStream,
    service: &Service<R>,
    request: &ExecRequest,
) -> Result<Answer, FrameError> {
    let (sender, receiver) = match start(service, request).await {
        Ok(streams) => streams,
        Err(answer) => return Ok(answer),
    };
    let (mut reader, mut writer) = stream.split();
    // The input's end is not the end of the process; only a lost client or process ends both.
    tokio::select! {
        answer = output(receiver, &mut writer) => answer,
        Err(error) = input(&mut reader, sender) => Err(error),
    }
}

async fn start<R: Runtime>(
    service: &Service<R>,
    request: &ExecRequest,
) -> Result<(AttachSender, AttachReceiver), Answer> {
    let name = PodName { namespace: request.namespace.clone(), name: request.name.clone() };
    let not_found = |message: String| Answer::NotFound { message };
    let view =
        service.view.pod(&name).ok_or_else(|| not_found(format!("pod `{name}` is not on this node")))?;
    let id = running(&view, request.container.as_deref()).map_err(not_found)?;
    let sandbox = view.sandbox.as_ref().ok_or_else(|| not_found(format!("pod `{name}` has no sandbox")))?;
    if request.command.is_empty() {
        return Err(failed("describe the process", &with_causes(&ConfigError::NoCommand)));
    }
    let container_id = id.as_str().to_owned();
    let start = ExecStart { container_id, stdin: request.stdin, ..ExecStart::default() };
    let protocol = service.shims.protocol(sandbox).await;
    let protocol = protocol.map_err(|error| failed("ask the shim", &with_causes(&error)))?;
    let start = if protocol >= EXEC_BY_COMMAND {
        ExecStart { command: request.command.clone(), terminal: request.tty, ..start }
    } else {
        ExecStart { process: process(service, &id, request).await?, ..start }
    };
    service
        .shims
        .exec(sandbox, start)
        .await
        .map_err(|error| failed("start the process", &with_causes(&error)))
}

/// The process as JSON, for a shim that does not know how the container's own runs.
async fn process<R: Runtime>(
    service: &Service<R>,
    id: &ContainerId,
    request: &ExecRequest,
) -> Result<Vec<u8>, Answer> {
    let spec = timeout(SPEC_WITHIN, service.runtime.spec(id)).await;
    let spec = spec.unwrap_or_else(|_elapsed| Err("containerd does not answer: see to it".to_owned()));
    let spec = spec.map_err(|error| failed("read the spec of the container", &error))?;
    let terminal = if request.tty { ExecTerminal::Own } else { ExecTerminal::None };
    let describe = |why: &dyn std::error::Error| failed("describe the process", &with_causes(why));
    let process = exec_process(&spec, &request.command, terminal).map_err(|error| describe(&error))?;
    serde_json::to_vec(&process).map_err(|error| describe(&error))
}

/// The id of the container that is meant, when it runs.
fn running(view: &PodView, container: Option<&str>) -> Result<ContainerId, String> {
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
        (ContainerState::Running { .. }, Some(id)) => Ok(id.clone()),
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

/// Passes input on; returns only when the client is gone or breaks the protocol.
async fn input(
    reader: &mut (impl AsyncRead + Unpin),
    sender: AttachSender,
) -> Result<std::convert::Infallible, FrameError> {
    loop {
        let gone = || FrameError::Io(std::io::ErrorKind::BrokenPipe.into());
        let frame = Frame::read(reader, PIECE_MAX).await?.ok_or_else(gone)?;
        let what = match frame.kind {
            FrameKind::Stdin => attach_input::What::Stdin(frame.payload),
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
