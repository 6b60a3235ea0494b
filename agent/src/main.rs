//! The `berth` program; everything is in the library.

use std::{env::args_os, process::ExitCode};

use berth::{effects::perform_work, hidden, log_writer, netns, workers};

fn main() -> ExitCode {
    hidden::keep_out_of_core_dumps();
    if let Some(options) = workers::Options::from_args(args_os()) {
        return workers::serve(options, perform_work);
    }
    if netns::is_asked(args_os()) {
        return netns::hold();
    }
    match log_writer::Options::from_args(args_os()) {
        Some(options) => log_writer::run(options),
        None => berth::cli::main(args_os()),
    }
}
