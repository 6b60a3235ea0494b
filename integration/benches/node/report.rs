//! The report: a table for a terminal, or everything as JSON.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

use std::process::Command;
use std::{fmt, fs};

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use crate::against::Comparison;
use crate::command::Output;
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

impl fmt::Display for Machine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, processors, load, crun, runc } = self;
        write!(out, "Linux {kernel}, {processors} processors, load before {load}; {crun}, {runc}")
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
    println!("{machine}");
    let mut section = "";
    for figure in figures {
        if figure.section != section {
            section = &figure.section;
            println!("\n{section}");
        }
        let value = number(figure.value);
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

/// Prints two versions beside each other.
pub(crate) fn comparisons(output: Output, machine: &Machine, all: &[Comparison]) -> Result<()> {
    if output == Output::Json {
        println!("{}", serde_json::to_string_pretty(&json!({ "machine": machine, "comparisons": all }))?);
        return Ok(());
    }
    println!("{machine}");
    let mut section = "";
    for Comparison { section: of, name, unit, before, after, ratio } in all {
        if section != of {
            section = of;
            println!(
                "\n{section:<WIDTH$} {:>8} {:>8}       ratio (95 %)",
                "before",
                "after",
                WIDTH = NAME_WIDTH + 2
            );
        }
        let ratio = ratio.map_or_else(String::new, |ratio| {
            format!("{:.3} ({:.3} to {:.3}, n = {})", ratio.median, ratio.low, ratio.high, ratio.samples)
        });
        let text = format!(
            "  {name:<NAME_WIDTH$} {:>8} {:>8} {:<5} {ratio}",
            number(*before),
            number(*after),
            unit.to_string()
        );
        println!("{}", text.trim_end());
    }
    Ok(())
}

fn number(value: f64) -> String {
    format!("{value:.*}", if value < 100.0 { 2 } else { 0 })
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
