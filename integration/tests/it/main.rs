//! The whole-node tests: one program, each test in a lab of its own.

mod bad_input;
mod cli;
mod crash;
mod demo;
mod examples;
mod fake_containerd;
mod fixtures;
mod images;
mod kit;
mod lab;
mod lifecycle;
mod restarts;
mod runtimes;
mod security;
mod shim;
mod suite;
mod volumes;

use std::process::ExitCode;

fn main() -> ExitCode {
    let all = [
        lab::tests(),
        fixtures::tests(),
        shim::tests(),
        examples::tests(),
        lifecycle::tests(),
        cli::tests(),
        security::tests(),
        volumes::tests(),
        images::tests(),
        runtimes::tests(),
        bad_input::tests(),
        restarts::tests(),
        demo::tests(),
        crash::tests(),
    ];
    suite::main(all.into_iter().flatten().collect())
}
