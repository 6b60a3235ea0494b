//! The agent's control socket, asked without a process per question.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use berth::control::protocol::{ANSWER_MAX, Answer, ExecRequest, Frame, FrameKind, Request};
use berth::control::{Client, Overview, PodObject};
use tokio::runtime::{Builder, Runtime};

use crate::agent::{NODE_NAME, STATE_DIR};

/// Namespace of pods whose manifest names none.
const NAMESPACE: &str = "default";

/// Asks the lab's agent.
#[derive(Debug)]
pub struct Control {
    socket: PathBuf,
    runtime: Runtime,
}

impl Control {
    /// Of the lab's agent, which need not run yet.
    ///
    /// # Errors
    /// The kernel gives no descriptors.
    pub fn new() -> Result<Self> {
        Self::at(Path::new(STATE_DIR).join("berth.sock"))
    }

    /// Of an agent with another socket.
    ///
    /// # Errors
    /// The kernel gives no descriptors.
    pub fn at(socket: PathBuf) -> Result<Self> {
        Ok(Self { socket, runtime: Builder::new_current_thread().enable_io().build()? })
    }

    /// Every pod, and manifests that cannot be used.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn overview(&self) -> Result<Overview> {
        match self.ask(Request::Pods)? {
            Answer::Pods(all) => Ok(*all),
            answer => bail!("the agent answers {answer:?}"),
        }
    }

    /// The pod of a manifest, `None` when the agent has none of this name.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn pod(&self, manifest: &str) -> Result<Option<PodObject>> {
        let request = Request::Pod { namespace: NAMESPACE.to_owned(), name: full_name(manifest) };
        match self.ask(request)? {
            Answer::Pod(pod) => Ok(Some(*pod)),
            Answer::NotFound { .. } => Ok(None),
            answer => bail!("the agent answers {answer:?}"),
        }
    }

    /// Runs a command in the first container of a pod and waits for its end, which has to be good.
    ///
    /// # Errors
    /// It ended otherwise, or could not be run.
    pub fn exec(&self, manifest: &str, command: &[&str]) -> Result<()> {
        let request = Request::Exec(ExecRequest {
            namespace: NAMESPACE.to_owned(),
            name: full_name(manifest),
            container: None,
            command: command.iter().copied().map(str::to_owned).collect(),
            tty: false,
            stdin: false,
        });
        let answer = self.ask(request)?;
        ensure!(answer == Answer::Exited { code: 0 }, "exec in {manifest}: {answer:?}");
        Ok(())
    }

    fn ask(&self, request: Request) -> Result<Answer> {
        self.runtime.block_on(async {
            let mut client = Client::connect(&self.socket).await?;
            client.send(request).await?;
            loop {
                let frame = Frame::read(&mut client.stream, ANSWER_MAX).await?;
                let frame = frame.context("the agent ended the connection")?;
                if frame.kind == FrameKind::Message {
                    return Ok(frame.parse()?);
                }
            }
        })
    }
}

/// The name of a manifest's pod: a static pod's ends with its node's.
pub fn full_name(manifest: &str) -> String {
    format!("{manifest}-{NODE_NAME}")
}
