//! The network's configuration, which comes and goes.

use anyhow::Result;
use berth_integration::cni;
use berth_integration::files;
use berth_integration::node::Node;
use jiff::Timestamp;

use crate::kit::saw_network_change;

pub(super) fn connect(node: &Node) -> Result<()> {
    cni::write(node.cni_conf(), &cni::network(&node.world.root().join("leases")))
}

/// Takes the network's configuration away.
pub(super) fn disconnect(node: &Node) -> Result<()> {
    files::remove_dir(node.cni_conf())?;
    files::make_dir(node.cni_conf())
}

/// It comes, goes and comes again, and the agent looks since each of these changed its configuration.
pub(super) fn is_followed(node: &Node) -> Result<()> {
    for (change, is_ready) in
        [(connect as fn(&Node) -> Result<()>, true), (disconnect, false), (connect, true)]
    {
        let begun = Timestamp::now();
        change(node)?;
        saw_network_change(node.agent.log(), is_ready, begun)?;
    }
    Ok(())
}
