//! The `berth` program; everything is in the library.

use std::{env::args_os, process::ExitCode};

use berth::log_writer;

fn main() -> ExitCode {
    match log_writer::Options::from_args(args_os()) {
        Some(options) => log_writer::run(options),
        None => berth::cli::main(args_os()),
    }
}
