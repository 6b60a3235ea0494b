//! `/run`: a process in a container to its end, and what it has written. Source: `getRun` of `server.go`.

use std::{future::pending, sync::Arc, time::Duration};

use berth_core::server::{
    ContainerPath, Query,
    streaming::{Asked, Refusal},
};
use berth_proto::{client::AttachReceiver, shim::attach_output};
use http::{Request, StatusCode};
use tokio::time::sleep;

use super::Streaming;
use crate::{
    causes::with_causes,
    runtime::Exec,
    server::{
        Response,
        answer::{of, refused},
    },
};

/// Bytes that are kept of each stream: what follows is read and dropped (containerd `container_execsync.go`).
pub(in crate::server) const OUTPUT_MAX: usize = 16 << 20;

/// Answers `/run`. A client that goes takes the process along, and so does the end of the time that a session may be idle: whoever waits
/// for this answer hears nothing before it.
pub(in crate::server) async fn run<B>(
    streaming: &Arc<Streaming>,
    path: &ContainerPath,
    request: Request<B>,
) -> Response {
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let ended = tokio::select! {
        ended = output(streaming, path, &query) => ended,
        refusal = too_long(streaming.idle) => Err(refusal),
    };
    match ended {
        Ok(output) => of(StatusCode::OK, "application/json", output),
        Err(refusal) => refused(refusal),
    }
}

async fn too_long(limit: Option<Duration>) -> Refusal {
    let Some(limit) = limit else { return pending().await };
    sleep(limit).await;
    Refusal::new(
        500,
        format!(
            "the command ran for {} s, which is as long as it may (streamingConnectionIdleTimeout)",
            limit.as_secs()
        ),
    )
}

async fn output(streaming: &Streaming, path: &ContainerPath, query: &Query) -> Result<Vec<u8>, Refusal> {
    let running = streaming.running(path, Asked::Exec)?;
    let _place = streaming.place(&running.view)?;
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

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn so_much_of_each_stream_is_kept() {
        let mut kept = Vec::new();
        for length in [OUTPUT_MAX - 1, 3, 1] {
            keep(&mut kept, &vec![b'x'; length]);
        }
        assert_eq!(kept.len(), OUTPUT_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_may_run_for_so_long() {
        let (begun, limit) = (Instant::now(), Duration::from_secs(60));
        let refusal = too_long(Some(limit)).await;
        assert_eq!((begun.elapsed(), refusal.status), (limit, 500));
        assert!(futures::future::poll_immediate(too_long(None)).await.is_none());
    }
}
