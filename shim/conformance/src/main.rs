//! Shows whether a containerd shim conforms: `shim-conformance --shim PROGRAM --runtime PROGRAM [filter]`.
//!
//! It needs root, makes a mount namespace of its own, and leaves nothing behind. Everything that it does not take itself
//! goes to the test harness, such as a filter, `--list` or `--test-threads`.

#![expect(clippy::print_stderr, reason = "a command line speaks on standard error")]

use std::path::PathBuf;
use std::process::ExitCode;

use berth_shim_conformance::deviations::STOCK;
use berth_shim_conformance::harness::{Endurance, Runtime, isolate};
use berth_shim_conformance::{Attempts, Candidate, SandboxService, announce, fake_runtime, run, trials};
use libtest_mimic::Arguments;

const USAGE: &str = "usage: shim-conformance --shim PROGRAM [--runtime PROGRAM [--runtime-arg ARG]...]...
    [--require-sandbox] [--cycles N] [--growth-kib N] [arguments of the test harness, such as a filter]";

fn main() -> ExitCode {
    if fake_runtime::is_called() {
        return fake_runtime::main();
    }
    if cfg!(panic = "abort") {
        eprintln!(
            "shim-conformance: build it with `--profile conformance`: a failure would end all that follows"
        );
        return ExitCode::FAILURE;
    }
    match test(std::env::args().skip(1)) {
        Ok(code) => code,
        Err(why) => {
            eprintln!("shim-conformance: {why}\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}

fn test(arguments: impl Iterator<Item = String>) -> Result<ExitCode, String> {
    let (candidate, rest) = parse(arguments)?;
    let arguments = Arguments::from_iter(std::iter::once("shim-conformance".to_owned()).chain(rest));
    isolate().map_err(|error| format!("needs root and a mount namespace of its own: {error}"))?;
    let trials = trials(&candidate);
    announce(&candidate, &trials);
    Ok(run(&arguments, trials))
}

/// The shim, and the arguments that are the test harness's.
fn parse(mut arguments: impl Iterator<Item = String>) -> Result<(Candidate, Vec<String>), String> {
    let mut shim = None;
    let mut runtimes: Vec<(PathBuf, Vec<String>)> = Vec::new();
    let mut sandbox = SandboxService::Probed;
    let mut endurance = Endurance::COLLECTED;
    let mut rest = Vec::new();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--shim" => shim = Some(absolute(&value()?)?),
            "--runtime" => runtimes.push((absolute(&value()?)?, Vec::new())),
            "--runtime-arg" => {
                let (_, args) = runtimes.last_mut().ok_or("--runtime-arg follows a --runtime")?;
                args.push(value()?);
            }
            "--require-sandbox" => sandbox = SandboxService::Required,
            "--cycles" => endurance.cycles = number(&value()?)?,
            "--growth-kib" => endurance.growth_kib_max = number(&value()?)?.into(),
            _ => rest.push(argument),
        }
    }
    let program = shim.ok_or("which shim?")?;
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let deviations = if name == "containerd-shim-runc-v2" { STOCK } else { &[] };
    let runtimes = runtimes.into_iter().map(|(program, args)| Runtime::real(&program, args)).collect();
    let attempts = Attempts::One;
    Ok((Candidate { name, program, runtimes, sandbox, deviations, endurance, attempts }, rest))
}

fn absolute(path: &str) -> Result<PathBuf, String> {
    std::fs::canonicalize(path).map_err(|error| format!("cannot find {path}: {error}"))
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_error| format!("{text:?} is not a number"))
}
