//! `/run`: a process in a container to its end, and what it has written. Source: `getRun` of `server.go`.

use std::sync::Arc;

use berth_core::server::{
    ContainerPath, Query,
    streaming::{Asked, Refusal},
};
use berth_proto::{client::AttachReceiver, shim::attach_output};
use http::{Request, StatusCode};

use super::{Streaming, switch::refused};
use crate::{
    causes::with_causes,
    runtime::Exec,
    server::{Response, answer::of},
};

/// Bytes that are kept of each stream: what follows is read and dropped (containerd `container_execsync.go`).
const OUTPUT_MAX: usize = 16 << 20;

/// Answers `/run`. A client that goes takes the process's streams along.
pub(in crate::server) async fn run<B>(
    streaming: &Arc<Streaming>,
    path: &ContainerPath,
    request: Request<B>,
) -> Response {
    let query = Query::parse(request.uri().query().unwrap_or_default());
    match output(streaming, path, &query).await {
        Ok(output) => of(StatusCode::OK, "application/json", output),
        Err(refusal) => refused(refusal),
    }
}

async fn output(streaming: &Streaming, path: &ContainerPath, query: &Query) -> Result<Vec<u8>, Refusal> {
    let running = streaming.running(path, Asked::Exec)?;
    let _place = streaming.places.take(&running.view.status.uid)?;
    let command: Vec<String> = query.first("cmd").unwrap_or_default().split(' ').map(str::to_owned).collect();
    let exec = Exec {
        sandbox: running.sandbox,
        container: running.container,
        command: command.clone(),
        stdin: false,
        tty: false,
    };
    let failed =
        |why: &str| Refusal::new(500, format!("failed to exec in container: failed to start exec: {why}"));
    let started = exec.start(&streaming.shims, &streaming.containerd).await;
    let (_sender, receiver) = started.map_err(|error| failed(&with_causes(&error)))?;
    let (code, [mut stdout, stderr]) = gather(receiver).await.map_err(|why| failed(&why))?;
    if code != 0 {
        // Source: `ExecSync` of `k8s.io/cri-client` `pkg/remote_runtime.go`.
        let (command, stderr) = (command.join(" "), String::from_utf8_lossy(&stderr));
        return Err(Refusal::new(500, format!("command '{command}' exited with {code}: {stderr}")));
    }
    stdout.extend_from_slice(&stderr);
    Ok(stdout)
}

/// The exit code, and both outputs as far as they are kept.
async fn gather(mut receiver: AttachReceiver) -> Result<(u32, [Vec<u8>; 2]), String> {
    let [mut stdout, mut stderr] = [Vec::new(), Vec::new()];
    loop {
        let message = receiver.recv().await.map_err(|error| with_causes(&error))?;
        let message = message.ok_or("the shim ended the stream without an exit code")?;
        match message.what {
            Some(attach_output::What::Stdout(bytes)) => keep(&mut stdout, &bytes),
            Some(attach_output::What::Stderr(bytes)) => keep(&mut stderr, &bytes),
            Some(attach_output::What::ExitCode(code)) => return Ok((code, [stdout, stderr])),
            None => {}
        }
    }
}

fn keep(kept: &mut Vec<u8>, bytes: &[u8]) {
    let room = OUTPUT_MAX.saturating_sub(kept.len());
    kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
}
