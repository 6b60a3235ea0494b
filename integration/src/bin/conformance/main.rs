//! `scripts/conformance`: the suite for clusters of upstream, run against a node in a private world.
//!
//! The world has a control plane, one node of Berth or of the real kubelet, and a registry with the images of the suite. What was
//! said stays in `target/conformance/berth` or `target/conformance/kubelet`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

mod args;
mod images;
mod place;
mod report;
mod suite;

use std::env;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow};
use berth_integration::vm::{self, Backend, Disk, Init, Job};
use berth_integration::{binaries, components, files, lab, stored};
use nix::fcntl::{Flock, FlockArg};

use crate::args::{Args, Asked};
use crate::place::Place;
use crate::report::Report;

fn main() -> ExitCode {
    if vm::inside() {
        return vm::play();
    }
    let args: Vec<String> = env::args().skip(1).collect();
    if lab::inside() {
        return lab::run(|| ended(args::parse(&args).and_then(|asked| in_lab(&asked))));
    }
    ended(match args::parse(&args) {
        Ok(Asked::Help) => {
            print!("{}", args::HELP);
            Ok(ExitCode::SUCCESS)
        }
        Ok(Asked::Run(asked)) => match asked.guest {
            None => enter(&args),
            Some(init) => in_guest(&asked, init),
        },
        Err(wrong) => Err(wrong),
    })
}

fn ended(result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|failure| {
        eprintln!("conformance: {failure:#}");
        ExitCode::FAILURE
    })
}

/// What a guest needs was built outside.
fn build() -> Result<()> {
    if vm::is_guest() {
        return Ok(());
    }
    binaries::build()?;
    stored::build()
}

/// This process becomes the supervisor of the lab, which ends everything when it is interrupted.
fn enter(args: &[String]) -> Result<ExitCode> {
    build()?;
    let failure = lab::command(args.iter().map(String::as_str))?.exec();
    Err(failure).context("start the lab")
}

/// Everything is in a virtual machine, and what it leaves here.
fn in_guest(args: &Args, init: Init) -> Result<ExitCode> {
    build()?;
    let kept = Kept::fresh(&args.name())?;
    let disk = Disk::build(Backend::choose()?, |step| eprintln!("conformance: {step}"))?;
    let program = env::current_exe().context("find this program")?;
    let command = std::iter::once(program.display().to_string()).chain(args.inside()).collect();
    let job = Job { kept: Some(kept.dir.clone()), ..Job::new("conformance", init, command)? };
    let code = vm::run(&disk, &job)?;
    println!("all of it is in {}", kept.dir.display());
    Ok(ExitCode::from(code))
}

/// Where what is said stays.
struct Kept {
    dir: PathBuf,
    /// As long as the run lasts; a guest's directory is its own.
    _lock: Option<Flock<File>>,
}

impl Kept {
    /// An empty directory, which no other run of this kind has.
    fn fresh(name: &str) -> Result<Self> {
        let all = components::workspace().join("target/conformance");
        files::make_dir(&all)?;
        let dir = all.join(name);
        let lock = files::create(all.join(format!("{name}.lock")))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
            anyhow!(errno)
                .context(format!("another run writes into {}: wait until it has ended", dir.display()))
        })?;
        if dir.exists() {
            files::remove_dir(&dir)?;
        }
        files::make_dir(&dir)?;
        Ok(Self { dir, _lock: Some(lock) })
    }
}

fn in_lab(asked: &Asked) -> Result<ExitCode> {
    let Asked::Run(args) = asked else { return Ok(ExitCode::SUCCESS) };
    let own = |dir| Ok(Kept { dir, _lock: None });
    let kept = vm::logs().map_or_else(|| Kept::fresh(&args.name()), own)?;
    let out = &kept.dir;
    let place = Place::start(args.node).inspect_err(|_| place::keep_logs(out))?;
    println!("the node is ready: {}", args.node.name());
    let ran = suite::run(place.cluster(), args, out).and_then(|()| Report::read(out));
    // A pod of a spec that failed may be left; the lab ends it.
    place::keep_logs(out);
    let report = ran?;
    report.write(out)?;
    print!("{report}");
    if !vm::is_guest() {
        println!("all of it is in {}", out.display());
    }
    if !report.passed() {
        return Ok(ExitCode::FAILURE);
    }
    place.end()?;
    Ok(ExitCode::SUCCESS)
}
