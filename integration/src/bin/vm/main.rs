//! `scripts/vm`: runs commands and tests in a virtual machine with cgroup v2.

#![expect(clippy::print_stderr, reason = "a command line program")]

mod suites;

use std::env;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use berth_integration::lab;
use berth_integration::vm::{self, Backend, Disk, Init, Job, Stdio};

const USAGE: &str = "usage: scripts/vm build
       scripts/vm run [--systemd] [--cmd PROGRAM ARGUMENT…]
       scripts/vm test [--systemd] [SUITE] [FILTER | OPTION…]
       scripts/vm shell [--systemd]";

fn main() -> ExitCode {
    if vm::inside() {
        return vm::play();
    }
    if lab::inside() {
        // Of the tests' own worlds only the one that pulls is made here.
        return lab::run(|| ExitCode::FAILURE);
    }
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    command(&args).map_or_else(
        |failure| {
            eprintln!("vm: {failure:#}");
            ExitCode::FAILURE
        },
        ExitCode::from,
    )
}

fn command(args: &[&str]) -> Result<u8> {
    let (verb, rest) = args.split_first().ok_or_else(|| anyhow!(USAGE))?;
    let (init, rest) = match rest.split_first() {
        Some((&"--systemd", rest)) => (Init::Systemd, rest),
        _ => (Init::Plain, rest),
    };
    match (*verb, rest) {
        ("build", []) => disk().map(|_| 0),
        ("run", []) => run(init, &["true"], Stdio::Outputs),
        ("run", ["--cmd", command @ ..]) if !command.is_empty() => run(init, command, Stdio::Outputs),
        ("test", args) => suites::run(&disk()?, init, args),
        ("shell", []) => run(init, &["bash", "--login"], Stdio::Terminal),
        _ => Err(anyhow!(USAGE)),
    }
}

fn disk() -> Result<Disk> {
    Disk::build(Backend::choose()?, |step| eprintln!("vm: {step}"))
}

fn run(init: Init, command: &[&str], stdio: Stdio) -> Result<u8> {
    let command = command.iter().map(|&word| word.to_owned()).collect();
    let mut job = Job::new("run", init, command)?;
    job.stdio = stdio;
    if let Ok(term) = env::var("TERM") {
        job.environment.insert("TERM".to_owned(), term);
    }
    vm::run(&disk()?, &job)
}
