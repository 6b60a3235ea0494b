//! Prometheus, which asks nodes for their metrics in a benchmark: Debian's program, unpacked beside the components. It is not installed,
//! so its service does not start.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{dir, output};

const NAME: &str = "prometheus";
const PROGRAM: &str = "root/usr/bin/prometheus";

/// The program of Prometheus, fetched the first time; `say` hears of it.
///
/// # Errors
/// apt cannot fetch it, or it does not work here.
pub fn install(mut say: impl FnMut(&str)) -> Result<PathBuf> {
    let (dir, program) = (dir(NAME), dir(NAME).join(PROGRAM));
    if program.is_file() {
        return Ok(program);
    }
    say("unpacking prometheus");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    let apt = |args: &[&str]| {
        // Without it apt would fetch as a user who may not write there.
        output(
            Command::new("apt-get")
                .args(["-qq", "-o", "APT::Sandbox::User=root"])
                .args(args)
                .current_dir(&dir),
        )
    };
    // The lists may be of a day whose packages are gone.
    if apt(&["download", NAME]).is_err() {
        apt(&["update"])?;
        apt(&["download", NAME])?;
    }
    let package = fs::read_dir(&dir)?.next().context("apt has fetched nothing")??.path();
    // What is killed in the middle leaves no program.
    let part = dir.join("part");
    output(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&part))?;
    fs::remove_file(&package)?;
    fs::rename(&part, dir.join("root"))?;
    output(Command::new(&program).arg("--version"))?;
    ensure!(program.is_file(), "Debian's package has no {PROGRAM}");
    Ok(program)
}
