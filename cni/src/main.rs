//! `berth-cni`: runs the verbs by hand, to find out why a network does not work.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

mod cli;

fn main() -> anyhow::Result<ExitCode> {
    let options = cli::options::Options::parse();
    berth_cni::close_inherited_on_exec().context("failed to keep inherited files from plugins")?;
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(cli::run::run(&options))?;
    writeln!(io::stdout().lock(), "{}", cli::print::print(&answer, options.output))?;
    Ok(if answer.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
