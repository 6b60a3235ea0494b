//! The network's configuration, which comes and goes.

use std::fs;

use anyhow::{Result, ensure};
use berth_integration::cni;
use berth_integration::node::Node;
use berth_integration::wait::{self, Look};
use jiff::{SignedDuration, Timestamp};

use crate::kit::{SOON, said_at};

/// When the agent looks again by itself, without having seen a change: at a network that is ready, and at one that is not
/// (`derived/network/upkeep.rs`).
const READY_EVERY: SignedDuration = SignedDuration::from_secs(60);
const NOT_READY_EVERY: SignedDuration = SignedDuration::from_secs(10);

pub(super) fn connect(node: &Node) -> Result<()> {
    cni::write(node.cni_conf(), &cni::network(&node.world.root().join("leases")))
}

/// Takes the network's configuration away.
pub(super) fn disconnect(node: &Node) -> Result<()> {
    fs::remove_dir_all(node.cni_conf())?;
    fs::create_dir(node.cni_conf())?;
    Ok(())
}

/// It comes, goes and comes again, and each change is known sooner than who looks from time to time can know it, by the times in the
/// agent's own log.
pub(super) fn is_followed(node: &Node) -> Result<()> {
    let begun = Timestamp::now();
    connect(node)?;
    let ready = said_after(node, "network is ready", begun)?;
    disconnect(node)?;
    let gone = said_after(node, "network is not ready", ready)?;
    let took = gone.duration_since(ready);
    ensure!(took < READY_EVERY, "the network went, and the agent said so {took:?} after it had come");
    connect(node)?;
    let took = said_after(node, "network is ready", gone)?.duration_since(gone);
    ensure!(took < NOT_READY_EVERY, "the network came, and the agent said so {took:?} after it had gone");
    Ok(())
}

/// Waits until the agent has said something after a time, and gives when.
fn said_after(node: &Node, text: &str, after: Timestamp) -> Result<Timestamp> {
    wait::until(&format!("the agent to say that the {text}"), SOON * 2, || {
        let all = said_at(node.agent.log(), text)?;
        let said = all.iter().find(|at| **at > after).copied();
        Ok(said.map_or_else(|| Look::NotYet(format!("{all:?}, not after {after}")), Look::Ready))
    })
}
