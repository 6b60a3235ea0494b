//! `berth attach`: the streams of a container's own process, on this terminal.

use std::{
    io::{self, IsTerminal},
    path::Path,
    process::ExitCode,
};

use k8s_openapi::api::core::v1::{Container, Pod};

use super::{
    ask::{ContainerName, Failure},
    output::{TextOrJson, show},
    streams::{LeavingKeys, Output, exit_code, read_input, streams},
    terminal::Raw,
};
use crate::control::{
    Client,
    protocol::{Answer, AttachRequest, Request},
};

/// To what to attach.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    pub(super) target: ContainerName,
    /// Pass standard input on, to a container that reads it
    #[arg(short = 'i', long)]
    pub(super) stdin: bool,
}

/// Attaches until the process ends, whose exit code is ours, or is left.
pub(super) async fn run(socket: &Path, options: &Options) -> Result<ExitCode, Failure> {
    let object = options.target.pod.object(socket).await?;
    let container = named(&object.pod, options.target.container.as_deref());
    let tty = container.is_some_and(|container| container.tty == Some(true));
    let raw = tty && options.stdin && io::stdin().is_terminal();
    let mut client = Client::connect(socket).await?;
    let request = AttachRequest {
        namespace: object.pod.metadata.namespace.unwrap_or_default(),
        name: object.pod.metadata.name.unwrap_or_default(),
        container: options.target.container.clone(),
        stdin: options.stdin,
    };
    client.send(Request::Attach(request)).await?;
    if raw {
        show(&mut io::stderr().lock(), b"Ctrl-P, Ctrl-Q leave the container and let it go on.\n")?;
    }
    let terminal = raw.then(Raw::enter).transpose()?;
    let input = options.stdin.then(|| read_input(raw.then(LeavingKeys::default)));
    let answer = streams(client, input, &mut Output::new(TextOrJson::Text), raw).await;
    drop(terminal);
    match answer? {
        Answer::Exited { code } => Ok(exit_code(code)),
        Answer::Left => Ok(ExitCode::SUCCESS),
        other => Err(other.into()),
    }
}

/// The container of a name, or the first.
fn named<'p>(pod: &'p Pod, name: Option<&str>) -> Option<&'p Container> {
    let spec = pod.spec.as_ref()?;
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    match name {
        Some(name) => all.find(|container| container.name == name),
        None => all.next(),
    }
}
