//! The command line.

use std::env;

use anyhow::{Context, Result, bail};

use crate::phase::Phase;

const USAGE: &str = "usage: scripts/bench [--runs N] [--pods N] [--output table|json] [--against COMMIT [--rounds N]] [PHASE…]\n\
                     phases: start-crun start-runc density shims serving exec stdio calls\n\
                     beside the real kubelet, in a cluster: cluster-crun cluster-runc cluster-idle cluster-scraped; all four: cluster";

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Command {
    /// Measured starts of each kind.
    pub(crate) runs: usize,
    /// Pods at once; of containers without an agent, twice as many under each shim.
    pub(crate) pods: usize,
    /// The form of the report.
    pub(crate) output: Output,
    /// The commit that is measured too, in turn.
    pub(crate) against: Option<String>,
    /// Turns of each.
    pub(crate) rounds: usize,
    /// Phases to run; all but those of a cluster when there are none.
    phases: Vec<String>,
}

/// The form of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// For a terminal.
    Table,
    /// For programs: every sample.
    Json,
}

impl Command {
    /// Reads the arguments of this process.
    pub(crate) fn from_args() -> Result<Self> {
        let mut command =
            Self { runs: 20, pods: 50, output: Output::Table, against: None, rounds: 3, phases: Vec::new() };
        let mut args = env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value\n{USAGE}"));
            match arg.as_str() {
                // Cargo says this to every benchmark.
                "--bench" => {}
                "--runs" => command.runs = number(&value()?)?,
                "--pods" => command.pods = number(&value()?)?,
                "--against" => command.against = Some(value()?),
                "--rounds" => command.rounds = number(&value()?)?,
                "--output" => command.output = form(&value()?)?,
                "cluster" => command.phases.extend(Phase::CLUSTER.map(|phase| phase.to_string())),
                name if Phase::all().iter().any(|phase| phase.to_string() == name) => {
                    command.phases.push(arg);
                }
                _ => bail!("cannot use {arg:?}\n{USAGE}"),
            }
        }
        Ok(command)
    }

    /// Whether a phase is to run.
    pub(crate) fn wants(&self, phase: Phase) -> bool {
        let is_usual = self.phases.is_empty() && !Phase::CLUSTER.contains(&phase);
        is_usual || self.phases.contains(&phase.to_string())
    }
}

fn number(text: &str) -> Result<usize> {
    match text.parse() {
        Ok(0) | Err(_) => bail!("cannot use {text:?} as a number of runs or pods\n{USAGE}"),
        Ok(number) => Ok(number),
    }
}

fn form(text: &str) -> Result<Output> {
    match text {
        "table" => Ok(Output::Table),
        "json" => Ok(Output::Json),
        _ => bail!("there is no output {text:?}\n{USAGE}"),
    }
}
