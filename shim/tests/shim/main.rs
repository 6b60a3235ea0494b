//! Black-box tests of what this shim has besides the contract: its own service, logs, records, and runtimes that fail.
//! What any shim must do is shown by the conformance suite, whose harness this is.
//!
//! The program isolates itself in a mount namespace before anything else, so that nothing it mounts can stay behind.
//! Called by the name `fake-runtime` it is an OCI runtime that does what a test says. After each test the world is
//! torn down in good order and searched for what should be gone: processes, mounts, sockets, cgroups.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a failure here is the failure of the test")]

mod harness;

mod attach;
mod bootstrap;
mod checkpoint;
mod cleanup;
mod crash;
mod events;
mod exec;
mod exits;
mod fuzz;
mod groups;
mod hostile;
mod inherited;
mod lifecycle;
mod loggers;
mod logs;
mod memory;
mod mounts;
mod namespaces;
mod protocol;
mod publish;
mod resources;
mod rotation;
mod sandbox;
mod stalls;
mod streams;
mod terminal;
mod userns;
mod windows;

use std::path::Path;
use std::process::ExitCode;

use berth_shim_conformance::fake_runtime;
use libtest_mimic::{Arguments, Trial};

use crate::harness::{Runtime, World, isolate, trial};

/// A test, and the runtimes that it makes sense with.
type Case = (&'static str, &'static [Runtime], fn(&World));

const EVERY: &[Runtime] = &[Runtime::Fake, Runtime::Crun, Runtime::Runc];
const REAL: &[Runtime] = &[Runtime::Crun, Runtime::Runc];
const RUNC: &[Runtime] = &[Runtime::Runc];
const FAKE: &[Runtime] = &[Runtime::Fake];

fn main() -> ExitCode {
    if fake_runtime::is_called() {
        return fake_runtime::main();
    }
    if bootstrap::is_stranger() {
        return bootstrap::be_stranger();
    }
    let arguments = Arguments::from_args();
    if let Err(reason) = isolate() {
        eprintln!("the shim's tests need root and a mount namespace of their own: {reason}");
        return ExitCode::FAILURE;
    }
    let groups: &[(&str, &[Case])] = &[
        ("attach", attach::CASES),
        ("bootstrap", bootstrap::CASES),
        ("checkpoint", checkpoint::CASES),
        ("cleanup", cleanup::CASES),
        ("crash", crash::CASES),
        ("events", events::CASES),
        ("exec", exec::CASES),
        ("exits", exits::CASES),
        ("fuzz", fuzz::CASES),
        ("groups", groups::CASES),
        ("hostile", hostile::CASES),
        ("inherited", inherited::CASES),
        ("lifecycle", lifecycle::CASES),
        ("loggers", loggers::CASES),
        ("logs", logs::CASES),
        ("memory", memory::CASES),
        ("mounts", mounts::FORMS),
        ("mounts", mounts::MANAGED),
        ("mounts", mounts::MAPPED),
        ("mounts", mounts::REFUSED),
        ("namespaces", namespaces::CASES),
        ("protocol", protocol::CASES),
        ("publish", publish::CASES),
        ("resources", resources::CASES),
        ("rotation", rotation::CASES),
        ("sandbox", sandbox::CASES),
        ("stalls", stalls::CASES),
        ("streams", streams::CASES),
        ("terminal", terminal::CASES),
        ("userns", userns::CASES),
        ("windows", windows::CASES),
    ];
    let trials = groups.iter().flat_map(|(group, cases)| trials(group, cases));
    let trials = trials.chain(trials_of_unified("groups", groups::UNIFIED)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trials(group: &str, cases: &[Case]) -> Vec<Trial> {
    let of = |(name, runtimes, test): &Case| {
        let name = format!("{group}::{name}");
        runtimes.iter().map(move |runtime| trial(&name, *runtime, *test)).collect::<Vec<_>>()
    };
    cases.iter().flat_map(of).collect()
}

/// Tests of what only version 2 of control groups has. Where the machine has the other one, a virtual machine runs them.
fn trials_of_unified(group: &str, cases: &[Case]) -> Vec<Trial> {
    let is_unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let left_out = |trial: Trial| {
        if !is_unified {
            eprintln!(
                "LEFT OUT, since this machine has no cgroup v2 (scripts/vm test shim has): {}",
                trial.name()
            );
        }
        trial.with_ignored_flag(!is_unified)
    };
    trials(group, cases).into_iter().map(left_out).collect()
}
