//! The report: a table for a terminal, or everything as JSON.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

use std::fs;
use std::process::Command;

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use crate::figure::Figure;

const NAME_WIDTH: usize = 44;

/// Where it was measured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Machine {
    kernel: String,
    processors: usize,
    /// One, five and fifteen minutes, before anything was started.
    load: String,
    crun: String,
    runc: String,
}

impl Machine {
    /// Looks.
    pub(crate) fn look() -> Result<Self> {
        let text = |path: &str| Ok::<_, anyhow::Error>(fs::read_to_string(path)?.trim().to_owned());
        Ok(Self {
            kernel: text("/proc/sys/kernel/osrelease")?,
            processors: std::thread::available_parallelism()?.get(),
            load: text("/proc/loadavg")?.split(' ').take(3).collect::<Vec<_>>().join(" "),
            crun: version(Command::new("crun"))?,
            runc: version(Command::new(berth_integration::components::bin_dir().join("runc")))?,
        })
    }
}

/// Says what goes on, beside the report.
pub(crate) fn say(step: &str) {
    eprintln!("{step}");
}

/// Prints one line.
pub(crate) fn line(text: &str) {
    println!("{text}");
}

/// Prints a table; a figure with an aim is judged.
pub(crate) fn table(machine: &Machine, figures: &[Figure]) {
    let Machine { kernel, processors, load, crun, runc } = machine;
    println!("Linux {kernel}, {processors} processors, load before {load}; {crun}, {runc}");
    let mut section = "";
    for figure in figures {
        if figure.section != section {
            section = &figure.section;
            println!("\n{section}");
        }
        let value = format!("{:.*}", if figure.value < 100.0 { 2 } else { 0 }, figure.value);
        let unit = figure.unit.to_string();
        let aim = match (figure.at_most, figure.met()) {
            (Some(most), Some(true)) => format!("≤ {most}: met"),
            (Some(most), _) => format!("≤ {most}: MISSED"),
            _ => String::new(),
        };
        let text = format!("  {:<NAME_WIDTH$} {value:>8} {unit:<5} {aim}", figure.name);
        println!("{}", text.trim_end());
    }
}

/// Prints everything, samples too.
pub(crate) fn json(machine: &Machine, figures: &[Figure]) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(&json!({ "machine": machine, "figures": figures }))?);
    Ok(())
}

fn version(mut command: Command) -> Result<String> {
    let said = command.arg("--version").output()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    Ok(said.lines().next().unwrap_or_default().to_owned())
}
