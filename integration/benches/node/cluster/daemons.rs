//! What the daemons of a node cost: the agent or the kubelet, its containerd, and the shims.

use std::time::Duration;

use anyhow::{Context, Result};

use super::pair::{Pair, Side};
use crate::bare::Shim;
use crate::processes;

/// Every process of them that there is.
pub(super) fn pids(pair: &Pair, side: Side) -> Result<Vec<u32>> {
    Ok(match side {
        Side::Berth => {
            let containerd = pair.node.containerd.pid().context("no containerd")?;
            let mut pids = vec![containerd];
            pids.extend(processes::of_program("berth", "")?);
            pids.extend(processes::of_program(Shim::Ours.program(), "")?);
            pids
        }
        Side::Kubelet => {
            let mut pids = pair.kubelet.pids();
            pids.extend(processes::of_program(Shim::Stock.program(), "")?);
            pids
        }
    })
}

/// Their processor time, with that of the programs that they have called and waited for.
pub(super) fn cpu(pids: &[u32]) -> Result<Duration> {
    pids.iter().map(|pid| Ok(processes::cpu(*pid)? + processes::cpu_of_children(*pid)?)).sum()
}

/// Their resident memory in MiB, each process by itself.
pub(super) fn rss(pids: &[u32]) -> Result<f64> {
    pids.iter().map(|pid| processes::rss(*pid)).sum()
}

/// Their memory in MiB, what they share counted once.
pub(super) fn pss(pids: &[u32]) -> Result<f64> {
    pids.iter().map(|pid| processes::pss(*pid)).sum()
}
