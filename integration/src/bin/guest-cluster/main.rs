//! In a guest with systemd: kubeadm makes a node of it, and it is booted again.
//!
//! The guest runs this program in each of its lives. What it has done is on its disk, so the first life ends with a reboot and the
//! second one tells how it went.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

mod life;
mod machine;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use std::{fs, thread};

use anyhow::{Context, Result, ensure};
use berth_integration::vm;

use crate::machine::{DIR, END_LIMIT};

/// There in the second life.
const BOOTED: &str = "/var/lib/lab/booted";

fn main() -> ExitCode {
    match run() {
        Ok(()) => {
            println!("test result: ok. 1 passed");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("guest-cluster: {failure:#}\n{}", machine::situation());
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    ensure!(vm::is_guest(), "this is no guest: run scripts/vm test --systemd cluster");
    let told = Told(Instant::now());
    if Path::new(BOOTED).exists() {
        let cluster = machine::start_again()?;
        told.step("booted again: the control plane serves");
        return life::second(&cluster, &told);
    }
    fs::create_dir_all(DIR)?;
    let cluster = machine::start()?;
    told.step("the control plane serves");
    machine::join(&cluster)?;
    told.step("kubeadm join");
    life::first(&cluster, &told)?;
    fs::write(BOOTED, fs::read(machine::BOOT_ID)?).context("keep what this boot is called")?;
    // An API server that is asked to end waits for whoever watches.
    cluster.end()?;
    machine::reboot()?;
    thread::sleep(END_LIMIT);
    anyhow::bail!("the machine did not end in {END_LIMIT:?}")
}

/// Says how far it is, with the seconds since its start.
struct Told(Instant);

impl Told {
    fn step(&self, what: &str) {
        println!("{:6.1} s  {what}", self.0.elapsed().as_secs_f64());
    }
}
