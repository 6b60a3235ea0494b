//! Everything that `kubectl` asks of a node, over WebSockets and over SPDY, passed on by the API server and spoken by it.

use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use berth_integration::cluster;
use berth_integration::wait::{self, Look};
use serde_json::json;

use super::{KUBECTL_LIMIT, Parts, Served, attach, copy, debug, exec, forward, logs, raw, rights};
use crate::kit::{FOR_EVER, shell};

/// What kubectl and the API server speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    WebSocket,
    Spdy,
}

impl Protocol {
    pub(super) const BOTH: [Self; 2] = [Self::WebSocket, Self::Spdy];

    /// A short name for pods and containers.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::WebSocket => "websocket",
            Self::Spdy => "spdy",
        }
    }

    /// `kubectl …` that speaks it.
    pub(super) fn kubectl(self, served: &Served, args: &[&str]) -> Result<Command> {
        let mut command = served.cluster.command(args)?;
        let is_websocket = (self == Self::WebSocket).to_string();
        command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", &is_websocket);
        command.env("KUBECTL_PORT_FORWARD_WEBSOCKETS", &is_websocket);
        Ok(command)
    }
}

/// Runs a command with an input to its end, whatever it ends with.
pub(super) fn with_input(command: &mut Command, input: &[u8]) -> Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut to = child.stdin.take().context("no input")?;
    std::thread::scope(|scope| {
        // One that ends early reads nothing.
        scope.spawn(move || drop(std::io::Write::write_all(&mut to, input)));
        child.wait_with_output().context("wait for kubectl")
    })
}

/// What a command that succeeds has printed.
pub(super) fn output(command: &mut Command, input: &[u8]) -> Result<Vec<u8>> {
    let done = with_input(command, input)?;
    ensure!(
        done.status.success(),
        "{command:?} ended with {}: {}",
        done.status,
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(done.stdout)
}

/// Waits until a process has ended by itself, and gives its code.
pub(super) fn ended(child: &mut Child, what: &str) -> Result<Option<i32>> {
    wait::until(&format!("{what} to end"), KUBECTL_LIMIT, || {
        Ok(child.try_wait()?.map_or_else(|| Look::NotYet("running".to_owned()), |it| Look::Ready(it.code())))
    })
}

/// The pod that most parts ask.
pub(super) const TARGET: &str = "target";

pub(super) fn all() -> Result<()> {
    let configuration = json!({
        "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" },
        "containerLogMaxSize": "32Ki",
        "containerLogMonitorInterval": "3s",
        "enableSystemLogHandler": true,
        "enableDebuggingHandlers": true,
    });
    let mut served = Served::start(&cluster::Settings::asking_nodes(), &configuration)?;
    logs::create(&served)?;
    attach::create(&served)?;
    forward::create(&served)?;
    served.create(TARGET, json!({ "containers": [shell("main", FOR_EVER, json!({}))] }))?;
    served.ready(TARGET)?;
    let mut parts = Parts::of(&served);
    parts.part("raw", raw::all);
    parts.part("rights", rights::all);
    parts.part("logs", logs::options);
    parts.part("logs of several", logs::several);
    parts.part("logs since a time", logs::since);
    parts.part("logs followed through rotations", logs::followed);
    streams(&mut parts, "passed on");
    for protocol in Protocol::BOTH {
        parts.part(&format!("cp over {protocol:?}"), |served| copy::both_ways(served, protocol));
        parts.part(&format!("port-forward over {protocol:?}"), |served| forward::both_ways(served, protocol));
        parts.part(&format!("ports of nobody over {protocol:?}"), |served| {
            forward::of_nobody(served, protocol)
        });
    }
    parts.part("debug", debug::all);
    let first = parts.failed;

    // An API server that does not pass WebSockets on speaks SPDY with the node. One that is asked to end waits for what is open.
    served.cluster.kill_api_server()?;
    served.cluster.add_api_server_argument("--feature-gates=ExtendWebSocketsToKubelet=false");
    served.cluster.start_api_server()?;
    let mut parts = Parts { served: &served, failed: first };
    streams(&mut parts, "translated");
    parts.part("port-forward, translated", |served| forward::both_ways(served, Protocol::WebSocket));
    parts.done()?;
    served.end()
}

fn streams(parts: &mut Parts<'_>, how: &str) {
    for protocol in Protocol::BOTH {
        parts.part(&format!("exec over {protocol:?}, {how}"), |served| exec::plain(served, protocol));
        parts.part(&format!("exec with a terminal over {protocol:?}, {how}"), |served| {
            exec::terminal(served, protocol)
        });
        let to = attach::name(protocol, how);
        parts.part(&format!("attach over {protocol:?}, {how}"), |served| attach::to(served, protocol, &to));
    }
}
