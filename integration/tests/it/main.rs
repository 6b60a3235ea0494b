//! The whole-node tests: one program, each test in a lab of its own.

mod fixtures;
mod lab;
mod shim;
mod suite;

use std::process::ExitCode;

fn main() -> ExitCode {
    suite::main(&[lab::TESTS, fixtures::TESTS, shim::TESTS])
}
