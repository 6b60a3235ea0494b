//! containerd's shim for Berth: one process per pod that is the pod's sandbox (`docs/decisions/0001`, `0002`).
//!
//! `start` makes the shim and prints its address, `serve` is the shim, `delete` cleans up after a lost one. The decisions
//! are those of `berth-shim-core`; the files here perform them around one poll loop.

mod answer;
mod args;
mod bundle;
mod call;
mod cgroup;
mod conn;
mod container;
mod criu;
mod delete;
#[cfg(test)]
mod hostile;
mod info;
mod io;
mod log;
mod mount;
mod notice;
mod oom_score;
mod pod;
mod poll;
mod publish;
mod runtime;
mod serve;
mod shim;
mod start;
mod sys;

use std::error::Error;
use std::process::ExitCode;

use args::Command;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::plain(&format!("failed to {}", with_causes(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let args = args::parse(std::env::args_os().skip(1))?;
    match args.command {
        Command::Start => start::start(&args)?,
        Command::Delete => delete::delete(&args)?,
        Command::Serve => serve::serve(&args)?,
        Command::PodInit => sys::pod_init()?,
        Command::Info => info::info()?,
        Command::Version => info::version()?,
    }
    Ok(())
}

/// An error with everything that caused it, outermost first.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
