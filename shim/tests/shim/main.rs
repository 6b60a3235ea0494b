//! Black-box tests of the shim: driven over ttrpc as containerd drives it, with OCI runtimes real and fake.
//!
//! The program isolates itself in a mount namespace before anything else, so that nothing it mounts can stay behind.
//! Called by the name `fake-runtime` it is an OCI runtime that does what a test says. After each test the world is
//! torn down in good order and searched for what should be gone: processes, mounts, sockets, cgroups.

#![expect(
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    clippy::print_stderr,
    reason = "a failure here is the failure of the test"
)]

mod fake_runtime;
mod harness;

mod attach;
mod crash;
mod events;
mod exec;
mod lifecycle;
mod logs;
mod protocol;
mod resources;
mod sandbox;
mod terminal;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use crate::harness::{Runtime, World, isolate, trial};

/// A test, and the runtimes that it makes sense with.
type Case = (&'static str, &'static [Runtime], fn(&World));

const EVERY: &[Runtime] = &[Runtime::Fake, Runtime::Crun, Runtime::Runc];
const REAL: &[Runtime] = &[Runtime::Crun, Runtime::Runc];
const FAKE: &[Runtime] = &[Runtime::Fake];

fn main() -> ExitCode {
    if fake_runtime::is_called() {
        return fake_runtime::main();
    }
    let arguments = Arguments::from_args();
    if let Err(reason) = isolate() {
        eprintln!("the shim's tests need root and a mount namespace of their own: {reason}");
        return ExitCode::FAILURE;
    }
    let groups: [(&str, &[Case]); 10] = [
        ("attach", attach::CASES),
        ("crash", crash::CASES),
        ("events", events::CASES),
        ("exec", exec::CASES),
        ("lifecycle", lifecycle::CASES),
        ("logs", logs::CASES),
        ("protocol", protocol::CASES),
        ("resources", resources::CASES),
        ("sandbox", sandbox::CASES),
        ("terminal", terminal::CASES),
    ];
    let trials: Vec<Trial> = groups
        .into_iter()
        .flat_map(|(group, cases)| cases.iter().map(move |case| (group, case)))
        .flat_map(|(group, (name, runtimes, test))| {
            runtimes.iter().map(move |runtime| trial(&format!("{group}::{name}"), *runtime, *test))
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
