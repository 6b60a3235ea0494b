//! `scripts/differential`: the same pods on a node of Berth and on one of the real kubelet, and all that differs between them.
//!
//! What was seen stays in `target/differential`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

mod args;

use std::env;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use berth_integration::differential::case::Case;
use berth_integration::differential::place::Place;
use berth_integration::differential::play::{self, Played};
use berth_integration::differential::report::Report;
use berth_integration::differential::{catalogue, generate};
use berth_integration::lab::World;
use berth_integration::{binaries, components, files, lab, stored};
use serde_json::json;

use crate::args::{Args, Asked};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    if lab::inside() {
        return lab::run(|| ended(args::parse(&args).and_then(|asked| in_lab(&asked))));
    }
    ended(match args::parse(&args) {
        Ok(Asked::Help) => {
            print!("{}", args::HELP);
            Ok(ExitCode::SUCCESS)
        }
        Ok(Asked::Run(_)) => enter(&args),
        Err(wrong) => Err(wrong),
    })
}

fn ended(result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|failure| {
        eprintln!("differential: {failure:#}");
        ExitCode::FAILURE
    })
}

/// This process becomes the supervisor of the lab, which ends everything when it is interrupted.
fn enter(args: &[String]) -> Result<ExitCode> {
    binaries::build()?;
    stored::build()?;
    let failure = lab::command(args.iter().map(String::as_str))?.exec();
    Err(failure).context("start the lab")
}

fn in_lab(asked: &Asked) -> Result<ExitCode> {
    let Asked::Run(args) = asked else { return Ok(ExitCode::SUCCESS) };
    let out = components::workspace().join("target/differential");
    if out.exists() {
        files::remove_dir(&out)?;
    }
    files::make_dir(&out)?;
    let mut place = Place::start().inspect_err(|_| keep_logs(&out))?;
    let cases = cases(args, &place)?;
    ensure!(!cases.is_empty(), "no case is named so");
    let report = play(&mut place, &cases, args, &out).inspect_err(|_| keep_logs(&out))?;
    keep_logs(&out);
    files::write(out.join("report.txt"), report.to_string())?;
    files::write(out.join("report.json"), format!("{:#}\n", report.json()))?;
    if args.as_json {
        println!("{:#}", report.json());
    } else {
        print!("{report}");
    }
    let is_whole = args.only.is_empty() && args.seeds.is_none();
    let stale: Vec<&str> = if is_whole { report.stale().collect() } else { Vec::new() };
    for one in &stale {
        eprintln!("explained, and not there: {one}");
    }
    eprintln!("all of it is in {}", out.display());
    place.end()?;
    let is_well = report.unexplained().next().is_none() && stale.is_empty();
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn cases(args: &Args, place: &Place) -> Result<Vec<Case>> {
    let is_wanted = |case: &Case| {
        args.only.is_empty() || args.only.iter().any(|name| case.name.starts_with(name.as_str()))
    };
    let mut cases = Vec::new();
    if args.seeds.is_none() || !args.only.is_empty() {
        cases.extend(catalogue::examples(&place.cluster)?);
        cases.extend(catalogue::all());
        cases.retain(is_wanted);
    }
    cases.extend(args.seeds.iter().cloned().flatten().map(generate::pod));
    Ok(cases)
}

fn play(place: &mut Place, cases: &[Case], args: &Args, out: &Path) -> Result<Report> {
    let mut report = Report::default();
    let (mut done, began) = (0, Instant::now());
    for (number, batch) in cases.chunks(args.at_once).enumerate() {
        let restarts = number % args.restart_every == 0;
        let played = play::batch(place, batch, restarts, &|line| eprintln!("{line}"))?;
        keep(&played, out)?;
        done += batch.len();
        eprintln!(
            "{done} of {} cases, {} findings in this batch, {} s",
            cases.len(),
            played.findings.len(),
            began.elapsed().as_secs()
        );
        report.add(batch.len(), played.findings);
        // So that something is there of a run that is broken off.
        files::write(out.join("report.txt"), report.to_string())?;
    }
    Ok(report)
}

/// What was seen of each case in which something differs.
fn keep(played: &Played, out: &Path) -> Result<()> {
    for (case, phase, [ours, theirs]) in &played.seen {
        if ours != theirs {
            let dir = out.join("seen").join(case);
            files::make_dir(&dir)?;
            let both = json!({ "berth": ours, "kubelet": theirs });
            files::write(dir.join(format!("{phase:?}.json").to_lowercase()), format!("{both:#}\n"))?;
        }
    }
    Ok(())
}

/// Copies what the programs of this lab have logged; what cannot be copied is said.
fn keep_logs(out: &Path) {
    if let Err(failure) = copy_logs(&out.join("logs")) {
        eprintln!("differential: keep logs: {failure:#}");
    }
}

fn copy_logs(to: &Path) -> Result<()> {
    let root = World::here()?.root().clone();
    files::make_dir(to)?;
    for log in [
        "agent/agent.log",
        "theirs/kubelet.log",
        "theirs/containerd.log",
        "containerd/containerd.log",
        "cluster/kube-apiserver.log",
    ] {
        let from = root.join(log);
        if from.exists() {
            fs::copy(&from, to.join(log.replace('/', "-")))
                .with_context(|| format!("keep {}", from.display()))?;
        }
    }
    Ok(())
}
