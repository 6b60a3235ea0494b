//! The message bus stops or hangs. The agent asks systemd itself, and so does runc when there is no bus; crun needs one to
//! start a scope: then its pods wait.

use anyhow::{Result, ensure};
use berth_integration::node::{Node, POD_LIMIT, PodState, system};
use berth_integration::systemd::properties;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::node_with;
use crate::kit::{inside, sleeper};
use crate::lives::Identity;
use crate::suite::same;

/// What is the matter with the bus; the end of the value ends it.
struct Trouble {
    /// The process that hangs, or none where the bus is stopped.
    hanging: Option<Pid>,
}

impl Trouble {
    fn stop() -> Result<Self> {
        let trouble = Self { hanging: None };
        system("systemctl", &["stop", "dbus.socket", "dbus.service"])?;
        Ok(trouble)
    }

    fn hang() -> Result<Self> {
        let [pid] = properties("dbus.service", ["MainPID"])?;
        let pid = Pid::from_raw(pid.parse()?);
        kill(pid, Signal::SIGSTOP)?;
        Ok(Self { hanging: Some(pid) })
    }

    fn end(&self) -> Result<()> {
        match self.hanging {
            Some(pid) => Ok(kill(pid, Signal::SIGCONT)?),
            None => system("systemctl", &["start", "dbus.socket"]).map(drop),
        }
    }
}

impl Drop for Trouble {
    fn drop(&mut self) {
        // Once more, for a test that failed; a second time does nothing.
        drop(self.end());
    }
}

/// A pod waits until a trouble with the bus is over, and says `why` if crun notices soon; others live on.
fn pods_wait_under(mut node: Node, trouble: impl FnOnce() -> Result<Trouble>, why: &str) -> Result<()> {
    for name in ["stays", "goes"] {
        node.apply(name, &sleeper(name))?;
    }
    let before = Identity::of(&node.ready("stays")?)?;
    node.ready("goes")?;
    let trouble = trouble()?;
    node.apply("waits", &sleeper("waits"))?;
    node.remove("goes")?;
    let told = |pod: &PodState| {
        let waiting = &pod.container("main")["state"]["waiting"];
        waiting["message"].as_str().unwrap_or_default().contains(why)
            && pod.holds("PodReadyToStartContainers")
    };
    node.wait("waits", "waiting for the bus", POD_LIMIT, told)?;
    lives_on(&node, &before)?;
    // Another agent finds all of it as it was.
    node.agent.kill()?;
    node.agent.start()?;
    lives_on(&node, &before)?;
    ensure!(!node.pod("waits")?.is_some_and(|pod| pod.is_ready()), "the bus was not needed");
    trouble.end()?;
    node.ready("waits")?;
    node.gone("goes")?;
    lives_on(&node, &before)?;
    node.end()
}

fn lives_on(node: &Node, before: &Identity) -> Result<()> {
    let stays = node.ready("stays")?;
    ensure!(Identity::of(&stays)? == *before, "it changed: {stays}, was {before:?}");
    same("exec", inside(&stays, "echo still")?.as_str(), "still")
}

pub(super) fn stopped_with_crun() -> Result<()> {
    pods_wait_under(node_with("crun")?, Trouble::stop, "bus")
}

/// crun waits for the bus itself, for a minute and a half. The agent that begins meanwhile has a runtime to choose, and none
/// that ends its trial.
pub(super) fn hanging_with_a_choice() -> Result<()> {
    pods_wait_under(Node::start()?, Trouble::hang, "")
}

pub(super) fn stopped_with_runc() -> Result<()> {
    let node = node_with("runc")?;
    node.apply("stays", &sleeper("stays"))?;
    let before = Identity::of(&node.ready("stays")?)?;
    let trouble = Trouble::stop()?;
    node.apply("new", &sleeper("new"))?;
    node.ready("new")?;
    node.remove("new")?;
    node.gone("new")?;
    lives_on(&node, &before)?;
    trouble.end()?;
    node.apply("later", &sleeper("later"))?;
    node.ready("later")?;
    node.end()
}
