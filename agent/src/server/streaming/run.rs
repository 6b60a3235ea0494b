//! `/run`: a process in a container to its end, and what it has written. Source: `getRun` of `server.go`.

use std::{future::pending, sync::Arc, time::Duration};

use berth_core::server::{
    ContainerPath, Query,
    streaming::{Asked, Refusal},
};
use berth_proto::{client::AttachReceiver, shim::attach_output};
use http::{Request, StatusCode};
use tokio::time::sleep;

use super::{Running, Streaming, places::Place};
use crate::{
    causes::with_causes,
    runtime::Exec,
    server::{
        Response,
        answer::{of, refused},
        held::Kept,
        shares::{Share, Shares},
    },
};

/// Commands at once whose outputs are kept in memory until they were taken.
pub(in crate::server) const ALL_MAX: usize = 4;

/// Those of one namespace, so that none takes those of all others.
pub(in crate::server) const NAMESPACE_MAX: usize = 2;

/// Bytes that are kept of each stream: what follows is read and dropped (containerd `container_execsync.go`).
pub(in crate::server) const OUTPUT_MAX: usize = 16 << 20;

/// Places for outputs that are kept, by the namespace that they are of.
#[derive(Debug)]
pub(super) struct Outputs(Shares<String>);

impl Default for Outputs {
    fn default() -> Self {
        Self(Shares::new(ALL_MAX, NAMESPACE_MAX))
    }
}

impl Outputs {
    fn take(&self, namespace: &str) -> Result<Share<String>, Refusal> {
        self.0.take_for_request(&namespace.to_owned(), "the namespace", "commands of /run under way")
    }
}

/// Answers `/run`. A client that goes takes the process along, and so does the end of the time that a session may be idle: whoever waits
/// for this answer hears nothing before it.
pub(in crate::server) async fn run<B>(
    streaming: &Arc<Streaming>,
    path: &ContainerPath,
    request: Request<B>,
) -> Response {
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let (running, places) = match enter(streaming, path) {
        Ok(entered) => entered,
        Err(refusal) => return refused(refusal),
    };
    let mut response = tokio::select! {
        response = output(streaming, running, &query) => response,
        refusal = too_long(streaming.idle) => refused(refusal),
    };
    Kept::put(&mut response, places);
    response
}

/// The container that is meant, and the places of a session and of its outputs.
fn enter(streaming: &Streaming, path: &ContainerPath) -> Result<(Running, (Share<String>, Place)), Refusal> {
    let running = streaming.running(path, Asked::Exec)?;
    let outputs = streaming.outputs.take(&path.pod.name.namespace)?;
    let place = streaming.place(&running.view)?;
    Ok((running, (outputs, place)))
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

async fn output(streaming: &Streaming, running: Running, query: &Query) -> Response {
    let exec = Exec {
        sandbox: running.sandbox,
        container: running.container,
        command: query.first("cmd").unwrap_or_default().split(' ').map(str::to_owned).collect(),
        stdin: false,
        tty: false,
    };
    let ended = streaming.counted("exec_sync", output_of(streaming, &exec)).await;
    let internal = StatusCode::INTERNAL_SERVER_ERROR;
    match ended {
        Ok(output) => of(StatusCode::OK, "application/json", output),
        Err(Failed::Command(output)) => of(internal, "text/plain; charset=utf-8", output),
        Err(Failed::Call(why)) => {
            let why = format!("failed to exec in container: failed to start exec: {why}");
            refused(Refusal::new(500, why))
        }
    }
}

/// Why there is no output of a command that ended well.
enum Failed {
    /// It could not be run to its end.
    Call(String),
    /// It failed, and says so.
    Command(Vec<u8>),
}

/// What a command writes until it ends well.
async fn output_of(streaming: &Streaming, exec: &Exec) -> Result<Vec<u8>, Failed> {
    let started = exec.start(&streaming.shims, &streaming.containerd).await;
    let (_sender, receiver) = started.map_err(|error| Failed::Call(with_causes(&error)))?;
    let (code, [mut output, stderr]) = gather(receiver).await.map_err(Failed::Call)?;
    if code != 0 {
        // Source: `ExecSync` of `k8s.io/cri-client` `pkg/remote_runtime.go`.
        output = format!("command '{}' exited with {code}: ", exec.command.join(" ")).into_bytes();
        output.extend_from_slice(&stderr);
        return Err(Failed::Command(output));
    }
    output.extend_from_slice(&stderr);
    Ok(output)
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

    #[test]
    fn neither_the_node_nor_a_namespace_has_more_than_its_outputs() {
        let outputs = Outputs::default();
        let refused = |namespace: &str| {
            let refusal = outputs.take(namespace).unwrap_err();
            assert_eq!(refusal.status, 429);
            refusal.text
        };
        let mut held: Vec<_> = ["a", "a"].map(|namespace| outputs.take(namespace).unwrap()).into();
        let text = refused("a");
        assert!(text.starts_with("the namespace has 2 commands of /run under way"), "{text}");
        held.extend(["b", "b"].map(|namespace| outputs.take(namespace).unwrap()));
        let text = refused("c");
        assert!(text.starts_with("the node has 4 commands of /run under way"), "{text}");
        held.pop();
        let text = refused("a");
        assert!(text.starts_with("the namespace has 2 commands of /run under way"), "{text}");
        held.push(outputs.take("c").unwrap());
        drop(held);
        assert!(outputs.0.is_empty(), "nothing is kept of namespaces that have none");
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_may_run_for_so_long() {
        let (begun, limit) = (Instant::now(), Duration::from_secs(60));
        let refusal = too_long(Some(limit)).await;
        assert_eq!((begun.elapsed(), refusal.status), (limit, 500));
        assert!(futures::future::poll_immediate(too_long(None)).await.is_none());
    }
}
