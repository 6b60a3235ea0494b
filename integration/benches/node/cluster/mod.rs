//! A node of Berth and one of the real kubelet in one cluster, each with its own containerd of the same build, with the same images,
//! network and OCI runtime: what a pod costs on each.
//!
//! What is measured of one is measured of the other right after it or before it, in turn. Idle time is measured of both at once.

mod burst;
mod daemons;
mod idle;
mod pair;
mod pods;
mod probes;
mod scraped;
mod starts;

use anyhow::Result;

use self::pair::Pair;
use crate::figure::Figure;

/// How often many pods at once are started and deleted on each node.
const BURSTS: usize = 3;

/// Single starts, and many at once, with one OCI runtime.
pub(crate) fn starts(oci_runtime: &'static str, runs: usize, pods: usize) -> Result<Vec<Figure>> {
    let pair = Pair::start(oci_runtime)?;
    let mut figures = starts::measure(&pair, oci_runtime, runs)?;
    figures.extend(burst::measure(&pair, oci_runtime, pods, BURSTS)?);
    pair.end()?;
    Ok(figures)
}

/// What nodes cost that have so many pods and nothing to do, and when those are probed.
pub(crate) fn idle(pods: usize) -> Result<Vec<Figure>> {
    let pair = Pair::start("crun")?;
    let mut figures = idle::measure(&pair, pods)?;
    figures.extend(probes::measure(&pair, pods)?);
    pair.end()?;
    Ok(figures)
}

/// What nodes cost that have so many pods and are asked for metrics.
pub(crate) fn scraped(pods: usize) -> Result<Vec<Figure>> {
    let pair = Pair::start_asked("crun")?;
    let figures = scraped::measure(&pair, pods)?;
    pair.end()?;
    Ok(figures)
}
