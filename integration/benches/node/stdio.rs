//! Execs and output under our shim and under containerd's own, alternately: how long `/bin/true` takes through
//! containerd, how fast output flows, and how a shim grows with it.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::bare::{Bare, Container, Shim, timed};
use crate::figure::{Figure, Unit};
use crate::processes;

const WARM_UP: usize = 2;
/// Output of one run, MiB.
const OUTPUT: usize = 512;
/// Bytes of a line, without its end.
const LINE: usize = 99;
/// Runs that output is measured with.
const OUTPUT_RUNS: usize = 5;
/// Execs at once, the output of each in MiB, and the growth of the shim that is aimed at.
const FLOOD: (usize, usize) = (8, 32);
const GROWTH: f64 = 16.0;

/// Measures execs and output.
pub(crate) fn measure(runs: usize) -> Result<Vec<Figure>> {
    let bare = Bare::start()?;
    let both = [bare.sleeper(Shim::Ours, 0)?, bare.sleeper(Shim::Stock, 0)?];
    let mut figures = execs(&both, runs)?;
    figures.extend(throughput("exec's output through a FIFO and ctr", &mut |shim, round| {
        let id = format!("flow-{round}");
        both[shim as usize].exec(&id, &zeros(OUTPUT).each_ref().map(String::as_str))
    })?);
    let file = bare.world.root().join("output");
    let uri = format!("file://{}", file.display());
    let log = format!("cri-log://{}", file.display());
    let run = |shim, kind, round, options: &[&str], args: &[&str]| {
        // Everybody only appends.
        if file.exists() {
            fs::remove_file(&file)?;
        }
        let options = [&["--rm"], options].concat();
        bare.run(shim, &options, &format!("{kind}-{shim}-{round}"), args)
    };
    figures.extend(throughput("container's output into file://", &mut |shim, round| {
        run(shim, "file", round, &["--log-uri", &uri], &zeros(OUTPUT).each_ref().map(String::as_str))
    })?);
    let lines = bare.world.root().join("lines");
    fs::write(&lines, format!("{}\n", "x".repeat(LINE)).repeat((OUTPUT << 20) / (LINE + 1)))?;
    let mount = format!("type=bind,src={},dst=/lines,options=rbind:ro", lines.display());
    let section = "lines into a CRI log by ours, as they are into file:// by stock";
    figures.extend(throughput(section, &mut |shim, round| {
        let uri = if shim == Shim::Ours { &log } else { &uri };
        run(shim, "lines", round, &["--mount", &mount, "--log-uri", uri], &["/bin/cat", "/lines"])
    })?);
    fs::remove_file(lines)?;
    figures.extend(flood(&both)?);
    bare.end(&both)?;
    Ok(figures)
}

fn execs(both: &[Container; 2], runs: usize) -> Result<Vec<Figure>> {
    const SECTION: &str = "ctr tasks exec of /bin/true, runc";
    let mut taken = [Vec::new(), Vec::new()];
    for round in 0..WARM_UP + runs {
        for shim in Shim::in_turn(round) {
            let one = timed(&mut both[shim as usize].exec(&format!("true-{round}"), &["/bin/true"])?)?;
            if round >= WARM_UP {
                taken[shim as usize].push(one);
            }
        }
    }
    let mut figures = Vec::new();
    for shim in Shim::BOTH {
        figures.extend(Figure::times(SECTION, &shim.to_string(), &taken[shim as usize])?);
    }
    let [ours, stock] = taken;
    figures.push(Figure::ratio(SECTION, "ours / stock", &ours, &stock)?);
    Ok(figures)
}

/// How fast a command's [`OUTPUT`] goes out, its start and end included.
fn throughput(name: &str, command: &mut dyn FnMut(Shim, usize) -> Result<Command>) -> Result<Vec<Figure>> {
    let section = format!("{name}, {OUTPUT} MiB");
    let mut taken: [Vec<Duration>; 2] = [Vec::new(), Vec::new()];
    for round in 0..OUTPUT_RUNS {
        for shim in Shim::in_turn(round) {
            taken[shim as usize].push(timed(&mut command(shim, round)?)?);
        }
    }
    let mut figures = Vec::new();
    for shim in Shim::BOTH {
        let rates: Vec<f64> =
            taken[shim as usize].iter().map(|taken| OUTPUT as f64 / taken.as_secs_f64()).collect();
        figures.push(Figure::median(&section, &shim.to_string(), &rates, Unit::MebibytesPerSecond)?);
    }
    let [ours, stock] = taken;
    figures.push(Figure::ratio(&section, "time of ours / stock", &ours, &stock)?);
    Ok(figures)
}

/// Growth of the shims while many execs write at once.
fn flood(both: &[Container; 2]) -> Result<Vec<Figure>> {
    let (execs, each) = FLOOD;
    let section = format!("{execs} execs at once, {each} MiB of output each");
    let mut figures = Vec::new();
    for shim in Shim::BOTH {
        let container = &both[shim as usize];
        let pid = container.shim(shim)?;
        let before = processes::rss(pid)?;
        processes::forget_peak(pid)?;
        let mut running = Vec::new();
        for number in 0..execs {
            let args = zeros(each);
            let mut exec =
                container.exec(&format!("flood-{number}"), &args.each_ref().map(String::as_str))?;
            running.push(exec.stderr(Stdio::piped()).spawn().with_context(|| format!("start {exec:?}"))?);
        }
        for exec in running {
            let done = exec.wait_with_output()?;
            ensure!(done.status.success(), "an exec of the flood failed: {done:?}");
        }
        let growth = processes::peak(pid)? - before;
        let figure = Figure::new(&section, &format!("growth of RSS, {shim}"), growth, Unit::Mebibytes);
        figures.push(if shim == Shim::Ours { figure.at_most(GROWTH) } else { figure });
    }
    Ok(figures)
}

/// A program that writes so many MiB.
fn zeros(mebibytes: usize) -> [String; 5] {
    ["/bin/dd", "if=/dev/zero", "bs=1M", &format!("count={mebibytes}"), "status=none"].map(str::to_owned)
}
