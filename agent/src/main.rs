//! The `berth` program; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    berth::cli::main(std::env::args_os())
}
