//! A shim that containerd was told to give up in the instant in which it had begun: nobody connects to it, and its bundle is gone.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};
use berth_integration::agent::Settings;
use berth_integration::binaries;
use berth_integration::containerd::SOCKET;
use berth_integration::files;
use berth_integration::node::{Node, POD_LIMIT};
use berth_integration::process::printed;
use berth_integration::records::Records;

use super::dies_at_once;
use crate::kit::sleeper;
use crate::suite::same;

/// What the agent comes to between its record of a sandbox and its call to containerd.
const RECORDED: &str = "sandbox.record-created";

/// The pod starts, and another one that is deleted goes, as soon as such a shim has ended; it does not hang.
pub(super) fn holds_no_pod_up() -> Result<()> {
    let mut node = Node::prepare(&Settings::default())?;
    for is_removed in [false, true] {
        node.apply("victim", &sleeper("victim"))?;
        dies_at_once(&mut node, RECORDED, POD_LIMIT)?;
        let records = Records::open()?.containers()?;
        let [sandbox] = records.as_slice() else { bail!("records of one sandbox, not {records:?}") };
        start(&node, sandbox)?;
        if is_removed {
            node.remove("victim")?;
        }
        node.agent.start()?;
        if !is_removed {
            same("restarts", node.ready("victim")?.restarts("main"), 0)?;
            node.remove("victim")?;
        }
        node.clear()?;
        node.agent.kill()?;
    }
    node.agent.start()?;
    node.end()
}

/// As containerd does it, which then gives up.
fn start(node: &Node, sandbox: &str) -> Result<()> {
    let bundle = node.world.root().join("bundles").join(sandbox);
    files::make_dir(&bundle)?;
    files::write(bundle.join("config.json"), r#"{"ociVersion":"1.1.0","annotations":{}}"#)?;
    let mut start = Command::new(binaries::path("containerd-shim-berth-v1")?);
    start.args(["-namespace", "k8s.io", "-id", sandbox, "-address", SOCKET, "start"]).current_dir(&bundle);
    start.env("TTRPC_SOCKET", format!("{SOCKET}.ttrpc"));
    printed(&mut start)?;
    fs::remove_dir_all(&bundle).context("remove the bundle")
}
