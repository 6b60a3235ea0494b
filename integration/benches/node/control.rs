//! The agent's control socket, asked without a process per question.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth::control::protocol::{ANSWER_MAX, Answer, ExecRequest, Frame, Kind, Request};
use berth::control::{Client, PodObject};
use berth_integration::agent::{NODE_NAME, STATE_DIR};
use tokio::runtime::{Builder, Runtime};

/// Namespace of pods whose manifest names none.
const NAMESPACE: &str = "default";
/// Longest wait for pods to be Ready, on a machine busy with other work.
const READY_LIMIT: Duration = Duration::from_secs(180);

/// Asks the agent.
#[derive(Debug)]
pub(crate) struct Control {
    socket: PathBuf,
    runtime: Runtime,
}

impl Control {
    /// Of the lab's agent.
    pub(crate) fn new() -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        Ok(Self { socket: Path::new(STATE_DIR).join("berth.sock"), runtime })
    }

    /// The pod of a manifest, `None` when the agent has none of this name.
    pub(crate) fn pod(&self, manifest: &str) -> Result<Option<PodObject>> {
        let request = Request::Pod { namespace: NAMESPACE.to_owned(), name: full_name(manifest) };
        match self.ask(request)? {
            Answer::Pod(pod) => Ok(Some(*pod)),
            Answer::NotFound { .. } => Ok(None),
            answer => bail!("the agent answers {answer:?}"),
        }
    }

    /// Looks every `pause` until a pod is Ready, and gives the moment.
    pub(crate) fn ready(&self, manifest: &str, pause: Duration) -> Result<Instant> {
        self.wait(&format!("pod {manifest}"), pause, || {
            Ok(self.pod(manifest)?.is_some_and(|pod| is_ready(&pod)))
        })
    }

    /// Looks every `pause` until this many pods are Ready, and gives the moment.
    pub(crate) fn all_ready(&self, count: usize, pause: Duration) -> Result<Instant> {
        self.wait(&format!("{count} pods"), pause, || match self.ask(Request::Pods)? {
            Answer::Pods(all) => {
                ensure!(all.problems.is_empty(), "manifests cannot be used: {:?}", all.problems);
                Ok(all.pods.iter().filter(|pod| is_ready(pod)).count() == count)
            }
            answer => bail!("the agent answers {answer:?}"),
        })
    }

    /// Runs a command in the first container of a pod and waits for its end, which has to be good.
    pub(crate) fn exec(&self, manifest: &str, command: &[&str]) -> Result<()> {
        let request = Request::Exec(ExecRequest {
            namespace: NAMESPACE.to_owned(),
            name: full_name(manifest),
            container: None,
            command: command.iter().copied().map(str::to_owned).collect(),
            tty: false,
            stdin: false,
        });
        match self.ask(request)? {
            Answer::Exited { code: 0 } => Ok(()),
            answer => bail!("exec in {manifest}: {answer:?}"),
        }
    }

    fn ask(&self, request: Request) -> Result<Answer> {
        self.runtime.block_on(async {
            let mut client = Client::connect(&self.socket).await?;
            client.send(request).await?;
            loop {
                let frame = Frame::read(&mut client.stream, ANSWER_MAX).await?;
                let frame = frame.context("the agent ended the connection")?;
                if frame.kind == Kind::Message {
                    return Ok(frame.parse()?);
                }
            }
        })
    }

    fn wait(&self, what: &str, pause: Duration, mut ready: impl FnMut() -> Result<bool>) -> Result<Instant> {
        let begun = Instant::now();
        loop {
            if ready()? {
                return Ok(Instant::now());
            }
            ensure!(begun.elapsed() < READY_LIMIT, "{what} not Ready within {READY_LIMIT:?}");
            thread::sleep(pause);
        }
    }
}

/// A static pod's name ends with its node's.
fn full_name(manifest: &str) -> String {
    format!("{manifest}-{NODE_NAME}")
}

fn is_ready(pod: &PodObject) -> bool {
    let mut conditions = pod.pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|one| one.type_ == "Ready" && one.status == "True")
}

/// The id of a pod's first container, without `containerd://`.
pub(crate) fn container_id(pod: &PodObject) -> Result<String> {
    let mut statuses = pod.pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let id = statuses.next().and_then(|status| status.container_id.as_deref()).unwrap_or_default();
    Ok(id.strip_prefix("containerd://").context("the container has no id")?.to_owned())
}
