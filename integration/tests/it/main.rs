//! The whole-node tests: one program, all of it in one lab.

mod lab;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    berth_integration::lab::run(|| {
        let trials: Vec<Trial> = lab::trials();
        libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
    })
}
