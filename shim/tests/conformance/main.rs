//! The conformance suite over the stock shim, which proves the suite, and over ours with each OCI runtime.

#![expect(clippy::print_stderr, reason = "what cannot run says why")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use berth_shim_conformance::deviations::STOCK;
use berth_shim_conformance::harness::{Endurance, Runtime, isolate};
use berth_shim_conformance::{
    Attempts, Candidate, SandboxService, announce, fake_runtime, proofs, run, trials,
};
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if fake_runtime::is_called() {
        return fake_runtime::main();
    }
    let arguments = Arguments::from_args();
    match test(&arguments) {
        Ok(code) => code,
        Err(why) => {
            eprintln!("the conformance suite cannot run: {why}");
            ExitCode::FAILURE
        }
    }
}

fn test(arguments: &Arguments) -> Result<ExitCode, String> {
    isolate().map_err(|error| format!("it needs root and a mount namespace of its own: {error}"))?;
    let runc = Runtime::real(&find("runc")?, Vec::new());
    let crun = Runtime::real(&find("crun")?, Vec::new());
    let stock = Candidate {
        name: "stock".to_owned(),
        program: find("containerd-shim-runc-v2")?,
        runtimes: vec![runc.clone()],
        sandbox: SandboxService::Probed,
        deviations: STOCK,
        endurance: Endurance::COLLECTED,
        attempts: Attempts::Two,
    };
    let ours = Candidate {
        name: "berth".to_owned(),
        program: PathBuf::from(env!("CARGO_BIN_EXE_containerd-shim-berth-v1")),
        runtimes: vec![crun, runc],
        sandbox: SandboxService::Required,
        deviations: &[],
        endurance: Endurance::EXACT,
        attempts: Attempts::One,
    };
    let mut all: Vec<Trial> = Vec::new();
    for candidate in [&ours, &stock] {
        let trials = trials(candidate);
        announce(candidate, &trials);
        all.extend(trials);
    }
    all.extend(proofs(&ours));
    Ok(run(arguments, all))
}

/// A program among the components that the workspace builds, or installed.
fn find(name: &str) -> Result<PathBuf, String> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/components/bin");
    let path = env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = std::iter::once(built).chain(env::split_paths(&path)).collect();
    let found = places.iter().map(|place| place.join(name)).find(|program| program.is_file());
    let found = found.ok_or_else(|| format!("{name} is in none of {places:?}: run scripts/setup"))?;
    fs::canonicalize(&found).map_err(|error| format!("{}: {error}", found.display()))
}
