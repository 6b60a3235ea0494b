//! One phase: a lab in which some figures are measured, handed out as JSON on standard output.

use std::path::Path;
use std::process::Stdio;
use std::{env, fmt};

use anyhow::{Context, Result, ensure};
use berth_integration::lab;

use crate::command::Command;
use crate::figure::Figure;
use crate::{calls, cluster, density, exec, programs, report, serving, shims, start, stdio};

/// What is measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Single starts and the bare floor, with crun.
    StartCrun,
    /// The same with runc.
    StartRunc,
    /// Many pods at once, and what they cost then.
    Density,
    /// Containers under our shim and under containerd's own.
    Shims,
    /// From a shim's start command to its first answer.
    Serving,
    /// A process in a container.
    Exec,
    /// Execs and output under our shim and under containerd's own.
    Stdio,
    /// System calls and durable commits of a pod start.
    Calls,
    /// Pods of a cluster on a node of Berth and on one of the real kubelet, with crun.
    ClusterCrun,
    /// The same with runc.
    ClusterRunc,
    /// What both nodes cost with many pods of a cluster, idle and probed.
    ClusterIdle,
    /// The same when they are asked for metrics.
    ClusterScraped,
}

impl Phase {
    /// Those that need a control plane and a kubelet, and take an hour.
    pub(crate) const CLUSTER: [Self; 4] =
        [Self::ClusterCrun, Self::ClusterRunc, Self::ClusterIdle, Self::ClusterScraped];

    /// In the order of the report.
    pub(crate) fn all() -> [Self; 12] {
        [
            Self::StartCrun,
            Self::StartRunc,
            Self::Density,
            Self::Shims,
            Self::Serving,
            Self::Exec,
            Self::Stdio,
            Self::Calls,
            Self::ClusterCrun,
            Self::ClusterRunc,
            Self::ClusterIdle,
            Self::ClusterScraped,
        ]
    }

    fn measure(self, runs: usize, pods: usize) -> Result<Vec<Figure>> {
        match self {
            Self::StartCrun => start::measure("crun", runs),
            Self::StartRunc => start::measure("runc", runs),
            Self::Density => density::measure(pods),
            Self::Shims => shims::measure(2 * pods),
            Self::Serving => serving::measure(runs),
            Self::Exec => exec::measure(runs),
            Self::Stdio => stdio::measure(runs),
            Self::Calls => calls::measure(),
            Self::ClusterCrun => cluster::starts("crun", runs, pods),
            Self::ClusterRunc => cluster::starts("runc", runs, pods),
            Self::ClusterIdle => cluster::idle(pods),
            Self::ClusterScraped => cluster::scraped(pods),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::StartCrun => "start-crun",
            Self::StartRunc => "start-runc",
            Self::Density => "density",
            Self::Shims => "shims",
            Self::Serving => "serving",
            Self::Exec => "exec",
            Self::Stdio => "stdio",
            Self::Calls => "calls",
            Self::ClusterCrun => "cluster-crun",
            Self::ClusterRunc => "cluster-runc",
            Self::ClusterIdle => "cluster-idle",
            Self::ClusterScraped => "cluster-scraped",
        })
    }
}

/// Runs a phase in a lab of its own.
pub(crate) fn in_a_lab(phase: Phase, command: &Command, programs: &Path) -> Result<Vec<Figure>> {
    let name = phase.to_string();
    let (runs, pods) = (command.runs.to_string(), command.pods.to_string());
    let done = lab::command([name.as_str(), &runs, &pods])?
        .env(programs::BIN_DIR, programs)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("start a lab")?;
    ensure!(done.status.success(), "measure {phase}: the lab ended with {}", done.status);
    serde_json::from_slice(&done.stdout).with_context(|| format!("read the figures of {phase}"))
}

/// In the lab: measures the phase that the arguments name.
pub(crate) fn run_here() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [name, runs, pods] = args.as_slice() else { anyhow::bail!("a phase, runs and pods: {args:?}") };
    let phase = Phase::all().into_iter().find(|phase| phase.to_string() == *name);
    let figures = phase.with_context(|| format!("no phase {name}"))?.measure(runs.parse()?, pods.parse()?)?;
    report::line(&serde_json::to_string(&figures)?);
    Ok(())
}
