//! What a pod costs on this machine, beside what the same work costs by hand and with containerd's own shim.
//!
//! Every phase runs in a lab of its own, with release builds. What is compared is measured alternately in the same
//! phase, so that a busy machine slows both. A figure that has an aim is judged by it in the report.
//!
//! Readiness is observed on the agent's control socket, asked every millisecond: figures of starts are up to 1 ms and
//! one answer too long, never too short.

mod against;
mod bare;
mod calls;
mod cluster;
mod command;
mod control;
mod density;
mod exec;
mod figure;
mod floor;
mod phase;
mod plugins;
mod processes;
mod programs;
mod report;
mod serving;
mod shims;
mod start;
mod stdio;

use std::process::ExitCode;

use anyhow::Result;
use berth_integration::{components, lab};

use crate::command::{Command, Output};
use crate::phase::Phase;

fn main() -> ExitCode {
    if lab::inside() {
        return lab::run(|| ended(phase::run_here()));
    }
    ended(Command::from_args().and_then(|command| run(&command)))
}

fn run(command: &Command) -> Result<()> {
    let machine = report::Machine::look()?;
    let programs = programs::build(Phase::CLUSTER.into_iter().any(|phase| command.wants(phase)))?;
    if command.wants(Phase::ClusterScraped) {
        components::install_prometheus(report::say)?;
    }
    if let Some(commit) = &command.against {
        let before = programs::build_of(commit)?;
        let comparisons = against::measure(command, &before, &programs)?;
        return report::comparisons(command.output, &machine, &comparisons);
    }
    let mut figures = Vec::new();
    for phase in Phase::all().into_iter().filter(|phase| command.wants(*phase)) {
        if command.output == Output::Table {
            report::say(&format!("measuring {phase}"));
        }
        figures.extend(phase::in_a_lab(phase, command, &programs)?);
    }
    match command.output {
        Output::Table => report::table(&machine, &figures),
        Output::Json => report::json(&machine, &figures)?,
    }
    Ok(())
}

#[expect(clippy::print_stderr, reason = "the last word of a command line program")]
fn ended(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("bench: {failure:#}");
            ExitCode::FAILURE
        }
    }
}
